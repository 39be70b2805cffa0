"""Messages that leave during the backward pass: what the overlapped methods share.

All tasks of a step together are also the agreement that every rank's gradient is finite. A rank is
called for a layer only when that layer's gradient is finite, and a collective ends nowhere before
every rank has begun it; so where all of a step's collectives have ended, all ranks have seen all of
their gradients to be finite. Memories are written after that, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import torch

from thinwire import collectives
from thinwire.flat import Layer
from thinwire.schedule.groups import Groups
from thinwire.wire.base import Comm, Task
from thinwire.worker import Batch, Worker

__all__ = ["Program", "Sending", "agree", "all_reduce_layers", "assumed_order", "seen_order"]

Program: TypeAlias = Callable[[Comm], Any]


class Sending:
    """The messages of one step, each begun when the last gradient in it is complete.

    Args:
        comm: the worker's; alone, the messages' programs run at once.
        groups: tensors by message; every tensor of the model is in one.
        message: given a message's number when it is complete, in the hook; what the task runs.
        at_once: messages under way at a time, in the order of their numbers, as on so many
            channels; 0 for all, each as soon as it is complete.
    """

    def __init__(
        self, comm: Comm, groups: Groups, message: Callable[[int], Program], at_once: int = 0
    ):
        self._comm = comm
        self._message = message
        self._at_once = at_once
        self._missing = [len(group) for group in groups]
        self._number = {tensor: i for i, group in enumerate(groups) for tensor in group}
        self._tasks: list[Task] = []
        self._next = 0

    def ready(self, tensor: int) -> None:
        """A tensor's gradient is complete. Begins what can be begun; never blocks."""
        number = self._number[tensor]
        self._missing[number] -= 1
        if self._missing[number]:
            return
        if not self._at_once:
            self._start(number)
            return
        # In one order on all ranks, or two of them could wait for each other's.
        while self._next < len(self._missing) and not self._missing[self._next]:
            self._start(self._next)
            self._next += 1

    def _start(self, number: int) -> None:
        program = self._message(number)
        if self._comm.size == 1:
            program(self._comm)
            return
        before = None
        if self._at_once and len(self._tasks) >= self._at_once:
            before = self._tasks[-self._at_once]

        def run(comm: Comm) -> None:
            if before is not None:
                before.wait()
            program(comm)

        self._tasks.append(self._comm.start(run, f"gradient {number}"))

    def wait(self) -> None:
        """Block until all messages have been exchanged.

        Raises:
            ThinwireError: what one of them failed with.
        """
        assert not any(self._missing), "gradient() has not called for every layer"
        for task in self._tasks:
            task.wait()


def all_reduce_layers(
    layers: Sequence[Layer], parts: Sequence[torch.Tensor], algorithm: str = "auto"
) -> Program:
    """A program that sums some layers of a flat vector over the workers, in place.

    Args:
        layers: at least one, in any order; side by side they are summed where they lie.
        parts: their parts of the vector (1-D views), written by nobody else until its end.
        algorithm: see `collectives.all_reduce`.
    """
    pairs = sorted(zip(layers, parts, strict=True), key=lambda pair: pair[0].start)
    places, views = [layer for layer, _ in pairs], [part for _, part in pairs]
    joined = all(a.stop == b.start for a, b in pairwise(places))
    if joined:
        whole = views[0].as_strided((places[-1].stop - places[0].start,), (1,))
        return lambda comm: collectives.all_reduce(comm, whole, algorithm)
    packed = torch.cat(views)

    def program(comm: Comm) -> None:
        collectives.all_reduce(comm, packed, algorithm)
        for view, total in zip(views, packed.split([len(view) for view in views]), strict=True):
            view.copy_(total)

    return program


def assumed_order(w: Worker) -> list[int]:
    """The backward order as one has to take it to be before it has been seen: the reverse."""
    return list(range(len(w.layers)))[::-1]


def agree(w: Worker, numbers: Any, found: torch.Tensor) -> Any:
    """Rank 0's numbers, on all ranks. Blocks.

    Args:
        w: the worker.
        numbers: nested lists of rank 0's; those of others are of no account.
        found: int64 of their shape, written.
    """
    if w.rank == 0:
        found.copy_(torch.tensor(numbers, dtype=torch.int64))
    with w.phase("merge"):
        collectives.broadcast(w.comm, found, tag="agree")
    return found.tolist()


def seen_order(
    w: Worker, first: Callable[[Batch], list[int]], found: torch.Tensor
) -> list[int] | None:
    """Train on one batch and have all ranks know rank 0's backward order. Blocks.

    Args:
        w: the worker.
        first: trains on a batch; returns the order in which its gradients came.
        found: int64, one element for each tensor, written.

    Returns:
        None where there was no batch: a loop that has ended before its first step.
    """
    order = None
    for batch in w.batches(min(1, w.plan.steps - w.steps)):
        order = first(batch)
    return None if order is None else agree(w, order, found)
