"""Gradients of somebody's own backward passes, given to a method as they become complete.

On the real wire a parameter's gradient is given away inside the backward pass that completes it.
On the virtual cluster, where time passes only as it is told, and alone, they are given away
in the same order when the optimizer is called: the clock can't tell the difference.

What has been given away is not the loop's any more, until its next step. A gradient that is changed
in between (clipped, unscaled, zeroed) has not been changed in what was sent; so it is noticed and
refused. In the place of each gradient a stand-in is put, which shares its memory but counts its
changes by itself: those of the method, made meanwhile, are not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import nn

from thinwire.errors import InputError, NonFiniteError
from thinwire.flat import Flat, is_finite
from thinwire.methods import Method
from thinwire.operations import Inputs, layer_shares
from thinwire.wire.base import Comm, Work

__all__ = ["Overlap", "overlap_of"]

OnLayer: TypeAlias = Callable[[int, torch.Tensor], None]

_NO_WORK = Work()


class Overlap:
    """Between the backward passes of a loop and a method that sends during them.

    Args:
        model: the loop's.
        flat: its parameters.
        comm: this rank's endpoint.
        accumulate: backward passes before each step; a gradient is complete in the last of them.

    Attributes:
        inputs: what the model's forward pass is called with; None where nobody has looked.
    """

    def __init__(self, model: nn.Module, flat: Flat, comm: Comm, accumulate: int):
        self.inputs: Inputs | None = None
        self._model = model
        self._flat = flat
        self._comm = comm
        self._accumulate = accumulate
        self._alone = comm.size == 1
        self._at_once = not self._alone and not comm.simulated
        self._on_layer: OnLayer | None = None
        self._passes = [0] * len(flat.layers)
        self._given: dict[int, torch.Tensor | None] = {}
        self._sent: dict[int, None] = {}
        self._work = _NO_WORK
        self._shares: tuple[float, ...] = ()

    # In the loop.

    def watch(self, ready: Callable[[int], None]) -> Callable[[], None]:
        """Have `ready`, which is to call ours, called for each gradient; returns how to stop."""
        return self._flat.watch(ready)

    def charge(self, work: Work) -> bool:
        """Work of a backward pass that begins: whether its time passes layer by layer, later."""
        if max(self._passes) < self._accumulate - 1:
            return False
        self._work = Work(flops=self._work.flops + work.flops)
        return True

    def ready(self, layer: int) -> None:
        """A backward pass has added to a gradient.

        Raises:
            InputError: one more time than it was said to before a step.
            NonFiniteError: the gradient that is complete is NaN or infinite somewhere.
        """
        self._passes[layer] += 1
        if self._alone:
            self._given.pop(layer, None)  # the order of the last pass
            self._given[layer] = None
            return
        if self._passes[layer] > self._accumulate:
            raise InputError(
                f"{self._where()}: a backward pass has added to the gradient of "
                f"{self._name(layer)!r} after it was sent: {self._passes[layer]} passes have come "
                f"before optimizer.step(), accumulate = {self._accumulate}. A method that sends "
                "during backward must be told how many there are: distribute(..., accumulate=N)"
            )
        if self._passes[layer] == self._accumulate:
            self._give(layer)

    def _give(self, layer: int) -> None:
        view = self._flat.collect_layer(layer)
        self._check_finite(layer)
        stand_in = self._given[layer] = view.data
        self._flat.params[layer].grad = stand_in
        if self._at_once and self._on_layer is not None:
            self._sent[layer] = None
            self._on_layer(layer, self._part(layer))

    def _check_finite(self, layer: int) -> None:
        if not self._alone and not is_finite(self._part(layer)):
            raise NonFiniteError(
                f"{self._where()}: the gradient of {self._name(layer)!r} is not finite. Lower the "
                "learning rate; gradients can't be clipped with a method that sends during backward"
            )

    def refuse_given(self, what: str) -> None:
        """Reject what can't be done once gradients have been given away.

        Raises:
            InputError: naming it.
        """
        if self._given and not self._alone:
            raise InputError(
                f"{self._where()}: {what} between backward and optimizer.step(): gradients have "
                "been sent to the other ranks already; every backward pass needs its step"
            )

    def take_back(self) -> None:
        """Before a step: the gradients that were given away are still what they were.

        Raises:
            InputError: naming one that isn't.
        """
        for layer, stand_in in self._given.items():
            if stand_in is None:
                continue
            param = self._flat.params[layer]
            if param.grad is not stand_in or stand_in._version:
                raise InputError(
                    f"{self._where()}: the gradient of {self._name(layer)!r} was changed between "
                    "backward and optimizer.step() (clipped, scaled or zeroed), after it was sent. "
                    "Take a method that works at the step, such as ssgd, topk or gtopk, or leave "
                    "the gradient as it is"
                )
            param.grad = self._flat.view(layer) if param.requires_grad else None

    # In the method's program.

    def arm(self, on_layer: OnLayer | None) -> None:
        """Whom the gradients of the next backward pass are given to."""
        self._on_layer = on_layer

    def complete(self) -> None:
        """After the backward passes: give away what was not yet, zeros where no gradient came.

        Raises:
            NonFiniteError: one of these is NaN or infinite somewhere.
        """
        rest = sorted(set(range(len(self._flat.layers))) - set(self._given), reverse=True)
        for layer in rest:
            self._check_finite(layer)
        layers = [layer for layer in [*self._given, *rest] if layer not in self._sent]
        on_layer, work = self._on_layer, self._work
        self._on_layer, self._given, self._sent, self._work = None, {}, {}, _NO_WORK
        self._passes = [0] * len(self._passes)
        if on_layer is None:
            if work.flops:
                self._comm.spend(work)
            return
        if work.flops and not self._shares:
            self._shares = layer_shares(self._model, self._flat.layers, self.inputs)
        self._comm.in_hook = True
        try:
            for layer in layers:
                if work.flops:
                    self._comm.spend(Work(flops=work.flops * self._shares[layer]))
                on_layer(layer, self._part(layer))
        finally:
            self._comm.in_hook = False

    def end(self) -> None:
        """The loop has ended. Alone, a backward pass without a step changes nothing.

        Raises:
            InputError: the other ranks have got something of it.
        """
        self.refuse_given("tw.finish() was called")
        self._given, self._work = {}, _NO_WORK

    def _part(self, layer: int) -> torch.Tensor:
        place = self._flat.layers[layer]
        return self._flat.grad_P[place.start : place.stop]

    def _name(self, layer: int) -> str:
        return self._flat.layers[layer].name

    def _where(self) -> str:
        return f"rank {self._comm.rank}, step {self._comm.step}"


def overlap_of(
    method: Method, model: nn.Module, flat: Flat, comm: Comm, accumulate: int
) -> Overlap | None:
    """For a method that sends during backward; None for the others."""
    if method.traits.kind != "overlapped":
        return None
    return Overlap(model, flat, comm, accumulate)
