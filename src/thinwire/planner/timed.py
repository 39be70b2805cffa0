"""A worker's body that takes time and computes nothing: the methods' own programs run on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from thinwire.errors import InputError
from thinwire.flat import Layer
from thinwire.models import LayerTimes, ModelTable, NodeTimes
from thinwire.wire.base import Comm, Work
from thinwire.worker import Batch, Plan, step_work

__all__ = ["Load", "Pace", "TimedBody", "load_of_table", "measured_paces", "paces_of"]

FORWARD = 1 / 3
"""The forward pass's share of a step whose parts nobody has measured."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """The parameter tensors of a model.

    Args:
        layers: their places in the flat vector, in the order of `model.parameters()`.
        order: their indices in the order in which gradients are complete; all of them, those that
            get none at the end.
        forward: share of the forward pass that follows the arrival of each, by tensor.
        backward: share of the backward pass between the gradient before each one's and its own.
    """

    layers: tuple[Layer, ...]
    order: tuple[int, ...]
    forward: tuple[float, ...]
    backward: tuple[float, ...]

    @property
    def numel(self) -> int:
        """Parameters."""
        return self.layers[-1].stop


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Seconds that a node's passes over a full batch take, at its nominal speed.

    Args:
        forward: of the forward pass, by tensor.
        backward: of the backward pass, by tensor.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]


def load_of_table(table: ModelTable) -> Load:
    """The tensors of a model's table."""
    tensors = table.tensors
    starts = [0, *accumulate(tensor.numel for tensor in tensors)]
    layers = tuple(
        Layer(t.name, start, start + t.numel, t.shape)
        for t, start in zip(tensors, starts, strict=False)
    )
    ready = table.ready_order
    rest = sorted(set(range(len(tensors))) - set(ready), reverse=True)
    return Load(
        layers=layers,
        order=(*ready, *rest),
        forward=table.forward_shares(),
        backward=table.backward_shares(),
    )


def paces_of(load: Load, seconds: Sequence[float], forward: float = FORWARD) -> list[Pace]:
    """Every node's pace from the seconds of its whole step.

    Args:
        load: of the model.
        seconds: forward and backward of a full batch, by node.
        forward: the forward pass's share of them.
    """
    return [
        Pace(
            forward=tuple(each * forward * share for share in load.forward),
            backward=tuple(each * (1 - forward) * share for share in load.backward),
        )
        for each in seconds
    ]


def measured_paces(load: Load, times: LayerTimes, nodes: Sequence[str], batch: int) -> list[Pace]:
    """Every node's pace as it was measured, in proportion to the batch.

    Args:
        load: of the model that was measured.
        times: of `thinwire probe`.
        nodes: names of the cluster's.
        batch: samples of a step.

    Raises:
        InputError: other tensors than the model's, or a node without times.
    """
    if [t.numel for t in times.tensors] != [layer.numel for layer in load.layers]:
        raise InputError(
            f"layer times are of {times.model!r} with {len(times.tensors)} tensors; the model has "
            f"{len(load.layers)} of {load.numel} elements: measure this model"
        )
    scale = batch / times.batch
    return [_measured(load, times.of(name), scale) for name in nodes]


def _measured(load: Load, node: NodeTimes, scale: float) -> Pace:
    """Differences of the moments; what is known of no tensor goes to the last."""
    backward, before = [0.0] * len(load.layers), 0.0
    for index in load.order:
        ready = node.ready[index]
        if ready is not None and ready > before:
            backward[index] = (ready - before) * scale
            before = ready
    backward[load.order[-1]] += max(0.0, node.backward - before) * scale
    forward = [share * node.forward * scale for share in load.forward]
    return Pace(forward=tuple(forward), backward=tuple(backward))


class TimedBody:
    """A `thinwire.worker.Body`, `Layered` too, on the meta device: packets have their sizes,
    gradients no values.

    Args:
        load: of the model.
        pace: of the node it is on.
        batch: samples that the pace is for.
        plan: how much there is to do.
        comm: charged with the computation.
        check: called before every step; may raise.
    """

    def __init__(
        self,
        load: Load,
        pace: Pace,
        batch: int,
        plan: Plan,
        comm: Comm,
        check: Callable[[], None] | None = None,
    ):
        self.plan = plan
        self.done = 0
        self.layers = load.layers
        self.params = torch.empty(load.numel, device="meta")
        self._grad_P = torch.empty(load.numel, device="meta")
        self._load, self._pace, self._batch, self._comm = load, pace, batch, comm
        self._check = check
        self._wait: Callable[[int], None] | None = None
        self._left: dict[int, None] = {}

    def next_batch(self, step: int, stream: Any) -> Batch:
        """See `Body`."""
        if self._check is not None:
            self._check()
        share = self.plan.shares[self._comm.rank]
        x = torch.empty(share, device="meta")
        return Batch(x, x, x, share / self.plan.global_batch)

    def gradient(
        self,
        batch: Batch,
        before_layer: Callable[[int], None] | None = None,
        on_layer: Callable[[int, torch.Tensor], None] | None = None,
    ) -> torch.Tensor:
        """See `Body`: the time of both passes, and the calls at their moments."""
        scale = batch.size / self._batch
        with self._comm.phase("compute"):
            if before_layer is None and not self._left:
                self._spend(scale * sum(self._pace.forward))
            else:
                for index in range(len(self.layers)):
                    self._catch_up(index)
                    if before_layer is not None:
                        before_layer(index)
                    self._spend(scale * self._pace.forward[index])
            if on_layer is None:
                self._spend(scale * sum(self._pace.backward))
            else:
                self._backward(scale, on_layer)
        return self._grad_P

    def _backward(self, scale: float, on_layer: Callable[[int, torch.Tensor], None]) -> None:
        for index in self._load.order:
            self._spend(scale * self._pace.backward[index])
            layer = self.layers[index]
            self._comm.in_hook = True
            try:
                on_layer(index, self._grad_P[layer.start : layer.stop])
            finally:
                self._comm.in_hook = False

    def _spend(self, seconds: float) -> None:
        self._comm.spend(Work(elapsed=seconds))

    def apply(self, direction: torch.Tensor) -> None:
        """See `Body`."""
        with self._comm.phase("apply"):
            self._comm.spend(step_work(self.params))

    def apply_late(self, direction: torch.Tensor, wait: Callable[[int], None]) -> None:
        """See `thinwire.worker.Layered`."""
        self.wait_applied()
        self._wait, self._left = wait, dict.fromkeys(range(len(self.layers)))

    def wait_applied(self) -> None:
        """See `thinwire.worker.Layered`."""
        while self._left:
            self._catch_up(next(iter(self._left)))

    def _catch_up(self, index: int) -> None:
        if index not in self._left:
            return
        assert self._wait is not None
        self._wait(index)
        layer = self.layers[index]
        with self._comm.phase("apply"):
            self._comm.spend(step_work(self.params[layer.start : layer.stop]))
        del self._left[index]

    def evaluate(self, steps: int, samples: int, *, final: bool = False) -> None:
        """See `Body`: there is nothing to test."""

    def log(self, values: dict[str, float]) -> None:
        """See `Body`: nothing is recorded."""
