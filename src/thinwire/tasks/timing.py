"""A task without arithmetic: only sizes and times, for models and clusters too large to train."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from thinwire.errors import InputError
from thinwire.tasks.base import Split

__all__ = ["Timing"]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """A model of a given size on the meta device: same programs, same packets by size.

    Gradients and losses do not exist, evaluations are skipped. Kernels whose output size depends
    on values give their nominal size.

    Args:
        num_params: elements of the flat parameter vector, at least 1.
        flops_per_sample: floating-point operations of one sample's forward pass.
        num_train: size of the imagined training set.

    >>> Timing(num_params=25_557_032, flops_per_sample=8.2e9).model().weight.device.type
    'meta'
    """

    name: ClassVar[str] = "timing"
    uses_rngs: ClassVar[tuple[str, ...]] = ()
    timing_only: ClassVar[bool] = True

    num_params: int
    flops_per_sample: float
    num_train: int = 1_000_000

    def __post_init__(self) -> None:
        if self.num_params < 1 or self.num_train < 1:
            raise InputError(
                f"num_params = {self.num_params}, num_train = {self.num_train}: at least 1 each"
            )

    def train_data(self) -> Split:
        """Tensors of the right length and no size."""
        return torch.empty(self.num_train, 0), torch.empty(self.num_train, 0)

    def test_data(self) -> Split:
        """Nothing to test."""
        return torch.empty(0, 0), torch.empty(0, 0)

    def model(self) -> nn.Module:
        """One parameter of the given size on the meta device."""
        return nn.Linear(self.num_params, 1, bias=False, device="meta")

    def loss(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Never asked for."""
        raise AssertionError("a timing-only task has no loss")

    def evaluate(self, model: nn.Module) -> tuple[float, float]:
        """Never asked for."""
        raise AssertionError("a timing-only task has no accuracy")
