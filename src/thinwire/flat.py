"""A model's parameters and gradients as two flat vectors, with a table of the layers.

Shape suffixes: P all parameters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from thinwire.errors import InputError

__all__ = ["Flat", "Layer", "digest"]


@dataclass(frozen=True, slots=True)
class Layer:
    """One parameter tensor's place in the flat vectors: elements start..stop-1."""

    name: str
    start: int
    stop: int

    @property
    def numel(self) -> int:
        """Number of elements."""
        return self.stop - self.start


def digest(params_P: torch.Tensor) -> str:
    """16 hex digits that differ when any bit of the parameters differs ("meta" without data)."""
    if params_P.is_meta:
        return "meta"
    data = params_P.detach().cpu().contiguous().view(torch.uint8).numpy()
    return hashlib.blake2b(data.tobytes(), digest_size=8).hexdigest()


class Flat:
    """The trainable parameters of a model, rebound as views of one vector.

    The module itself goes on working: its parameters share memory with `params_P`, and backward
    accumulates into views of `grad_P`.

    Args:
        model: its parameters that require gradients must share one dtype and device, and be dense.

    Attributes:
        params_P: all parameters, in the order of `model.parameters()`; a leaf that an optimizer
            can step.
        grad_P: all gradients.
        layers: one entry per parameter tensor.

    Raises:
        InputError: nothing to train, mixed dtypes or devices, or a distributed tensor, naming the
            parameter.
    """

    def __init__(self, model: nn.Module):
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        _check(named)
        sizes = [p.numel() for _, p in named]
        first = named[0][1]
        self.params_P = nn.Parameter(first.new_empty(sum(sizes)))
        self.grad_P = torch.zeros_like(self.params_P, requires_grad=False)
        self._params = [p for _, p in named]
        self._views: list[torch.Tensor] = []
        layers, start = [], 0
        for (name, param), numel in zip(named, sizes, strict=True):
            stop = start + numel
            flat = self.params_P.data[start:stop]
            flat.copy_(param.data.reshape(-1))
            param.data = flat.view(param.shape)
            self._views.append(self.grad_P[start:stop].view(param.shape))
            layers.append(Layer(name, start, stop))
            start = stop
        self.layers: tuple[Layer, ...] = tuple(layers)

    def clear_grad(self) -> None:
        """Zero the gradients and make the next backward accumulate into `grad_P`."""
        self.grad_P.zero_()
        for param, view in zip(self._params, self._views, strict=True):
            if param.grad is not view:
                param.grad = view

    def watch(self, on_layer: Callable[[int], None]) -> Callable[[], None]:
        """Call `on_layer(index)` as each layer's gradient is complete; returns how to stop.

        A parameter that the loss doesn't depend on never fires.
        """
        handles = [
            p.register_post_accumulate_grad_hook(lambda _, index=i: on_layer(index))
            for i, p in enumerate(self._params)
        ]

        def stop() -> None:
            for handle in handles:
                handle.remove()

        return stop


def _check(named: Sequence[tuple[str, nn.Parameter]]) -> None:
    if not named:
        raise InputError("the model has no parameter that requires a gradient")
    first_name, first = named[0]
    for name, param in named:
        if type(param.data).__name__ == "DTensor":
            raise InputError(f"parameter {name!r} is a DTensor: sharded models are not supported")
        if param.dtype != first.dtype or param.device != first.device:
            raise InputError(
                f"parameter {name!r} is {param.dtype} on {param.device}, {first_name!r} is "
                f"{first.dtype} on {first.device}: all trainable parameters must be alike"
            )
