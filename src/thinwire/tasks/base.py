"""The contract of a task: what is learned, on which data, and how well.

A task knows nothing of workers, methods or time. It hands out data, a fresh model and a loss; the
worker cuts the batches and the run asks for evaluations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import ClassVar, TypeAlias

import torch
from torch import nn

__all__ = ["Split", "Task"]

Split: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Inputs and targets; the first dimension of both counts the samples."""


class Task(ABC):
    """What is learned.

    A task of one's own needs the five abstract methods and a `name`, and is then used as
    `module:Class`. Its settings are the fields of a frozen dataclass; it is created anew in every
    process, so that everything in it must follow from them.

    Attributes:
        name: for tables and records.
        uses_rngs: the global random generators that `loss` draws from (dropout, augmentation), of
            "torch", "numpy" and "random"; virtual workers keep these apart, and swap them at every
            gradient. `model` may draw from all three.
        timing_only: the model lies on the meta device and nothing is computed, only timed.
    """

    name: ClassVar[str]
    uses_rngs: ClassVar[tuple[str, ...]] = ("torch",)
    timing_only: ClassVar[bool] = False

    @abstractmethod
    def train_data(self) -> Split:
        """The training samples, on the CPU; the same two tensors at each call."""

    @abstractmethod
    def test_data(self) -> Split:
        """The test samples, likewise."""

    @abstractmethod
    def model(self) -> nn.Module:
        """A fresh model, in training mode, that follows from torch's global seed alone."""

    @abstractmethod
    def loss(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The mean loss over the samples of a batch, a scalar with gradient.

        A mean, not a sum: workers with different batches are averaged by their sample counts.
        """

    @abstractmethod
    def evaluate(self, model: nn.Module) -> tuple[float, float]:
        """Accuracy in 0..1 and mean loss on the test data.

        Leaves parameters, buffers, the modules' modes and all random generators as they were.
        """

    @property
    def num_train(self) -> int:
        """Number of training samples."""
        return len(self.train_data()[1])

    @property
    def flops_per_sample(self) -> float:
        """Floating-point operations of the forward pass of one sample, two per multiply-add.

        Counted by torch on meta tensors: matrix products and convolutions only, no arithmetic is
        done and no random number drawn. A backward pass takes about twice as many.
        """
        return self._flops_per_sample

    @cached_property
    def _flops_per_sample(self) -> float:
        from torch.utils.flop_counter import FlopCounterMode  # a quarter second that few need

        with torch.random.fork_rng(devices=[]):
            model = self.model().to("meta").eval()
        x, y = (tensor[:1].to("meta") for tensor in self.train_data())
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            self.loss(model, x, y)
        return float(counter.get_total_flops())
