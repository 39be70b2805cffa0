"""Parts of tensors, the most urgent first: those of the layers nearest to the input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import ClassVar, TypeAlias

import torch

from thinwire import collectives
from thinwire.errors import InputError
from thinwire.methods.base import Method, Paper, Traits
from thinwire.schedule import BYTESCHEDULER_CREDIT, BYTESCHEDULER_PARTITION
from thinwire.wire.base import Comm, Task
from thinwire.wire.packet import Packet
from thinwire.worker import Batch, Worker

__all__ = ["ByteScheduler", "Queue"]

Part: TypeAlias = tuple[int, int]
"""A tensor, and which of its parts. The smaller, the more urgent."""


class Queue:
    """The parts of one step's gradient on their way: rank 0 says which goes next.

    On each rank a part is a task of its own, begun by the tensor's task. Rank 0 begins a part when
    it is the most urgent of those complete there and the credit allows it, and tells the others,
    which have theirs wait for that word. So all take part in the same sums, and none can hold
    another up in a circle, whatever the order in which gradients are complete on each. A rank that
    is later than rank 0 keeps a part, and its bytes of the credit, waiting.

    All decisions are made in tasks, one at a time; the backward pass only starts them.

    Args:
        comm: the worker's; alone, nothing is sent.
        partition: bytes of a part, at least 1; a part has one element or more.
        credit: bytes under way, at least 1; a larger part goes alone.
    """

    def __init__(self, comm: Comm, partition: int, credit: int):
        self._comm = comm
        self._partition = partition
        self._credit = credit
        self._parts: dict[int, Sequence[torch.Tensor]] = {}
        self._tensors: dict[int, Task] = {}
        self._comms: dict[int, Comm] = {}
        self._complete: list[Part] = []
        self._under_way = 0
        self._tasks: dict[Part, Task] = {}
        self._begun: list[Task] = []
        self._ended = 0

    def ready(self, tensor: int, gradient: torch.Tensor) -> None:
        """A tensor's gradient (1-D) is complete; it is replaced by the sum. Never blocks."""
        if self._comm.size == 1:
            return
        self._parts[tensor] = gradient.split(max(1, self._partition // gradient.itemsize))
        self._tensors[tensor] = self._comm.start(
            lambda comm: self._enter(tensor, comm), f"gradient {tensor}"
        )

    def wait(self, tensor: int) -> None:
        """Block until a tensor's sum is there.

        Raises:
            ThinwireError: what its exchange failed with.
        """
        if self._comm.size == 1:
            return
        self._tensors[tensor].wait()
        for index in range(len(self._parts[tensor])):
            while (tensor, index) not in self._tasks:  # its turn has not come: others take theirs
                self._begun[self._ended].wait()
                self._ended += 1
            self._tasks[tensor, index].wait()

    def _enter(self, tensor: int, comm: Comm) -> None:
        self._comms[tensor] = comm
        for index in range(len(self._parts[tensor])):
            if comm.rank == 0:
                heappush(self._complete, (tensor, index))
            else:
                self._begin((tensor, index))
        self._go_on()

    def _go_on(self) -> None:
        """Begin the most urgent parts, as many as the credit allows."""
        while self._complete:
            nbytes = self._of(self._complete[0]).nbytes
            if self._under_way and self._under_way + nbytes > self._credit:
                return
            self._under_way += nbytes
            self._begin(heappop(self._complete))

    def _begin(self, part: Part) -> None:
        tensor, index = part
        task = self._comms[tensor].start(lambda comm: self._exchange(part, comm), f"part {index}")
        self._tasks[part] = task
        self._begun.append(task)

    def _exchange(self, part: Part, comm: Comm) -> None:
        """What a part's task runs."""
        values = self._of(part)
        if comm.rank != 0:
            comm.wait(0, "go")
            collectives.all_reduce(comm, values)
            return
        for other in range(1, comm.size):
            comm.post(other, Packet((), kind="control"), "go")
        collectives.all_reduce(comm, values)
        self._under_way -= values.nbytes
        self._go_on()

    def _of(self, part: Part) -> torch.Tensor:
        tensor, index = part
        return self._parts[tensor][index]


@dataclass(frozen=True, kw_only=True)
class ByteScheduler(Method):
    """S-SGD whose messages also travel beside the next forward pass, the urgent ones first.

    Exact: the same as one process with the union of the batches. As many bytes as `ssgd`, in more
    messages: 2·m·(P−1)/P values a worker and step, and P−1 empty packets from rank 0 for each part.
    No staleness, no memory beyond the gradient. It hides at most the smaller of the exchange and
    the whole of the computing, where `wfbp` has the backward pass only: of use where the exchange
    takes longer than backward, or large tensors lie near the output. Each part costs the start-ups
    of a collective and a word's way from rank 0. Waits for the slowest worker.

    Update rule: a gradient is cut into parts of `partition` bytes when it is complete. Of all
    complete parts those of the first layers go first, an all-reduce each, while no more than
    `credit` bytes are under way. When a layer's parts are there, `s = Σ_r w_r·g_r`, and before the
    next forward pass comes to it, `x ← x − lr · s` for that layer alone.

    With `partition = credit = 200000` it is P3 (Jayarajan et al., "Priority-based Parameter
    Propagation for Distributed DNN Training", SysML 2019): slices of 50,000 parameters, one under
    way at a time. A smaller credit lets what is urgent overtake sooner, a larger one keeps the
    links busy.

    A sum's bits don't depend on what goes when. They are those of `ssgd` with two workers, and
    where the model has less than 64 KiB for each worker; beyond that all-reduces go round the ring,
    which adds in an order that depends on where in its message an element lies.

    Departures from the papers: rank 0's queue decides for all ranks; the paper's credit is in
    parameters. Layers are in the order of `model.parameters()`. In somebody's own loop the step is
    taken as a whole, when the last part is there: then only backward hides messages. A model with
    compiled or scripted parts waits for all of them before its forward pass.

    Args:
        partition: bytes of a part, at least 1.
        credit: bytes under way, as rank 0 counts them, at least 1; a larger part goes alone.

    Example:
        >>> ByteScheduler(partition=200_000, credit=200_000).partition
        200000
    """

    partition: int = BYTESCHEDULER_PARTITION
    credit: int = BYTESCHEDULER_CREDIT

    paper: ClassVar[Paper | None] = Paper(
        authors="Peng, Zhu, Chen, Bao, Yi, Lan, Wu and Guo",
        title="A Generic Communication Scheduler for Distributed DNN Training Acceleration",
        venue="ACM SOSP",
        year=2019,
        url="https://doi.org/10.1145/3341301.3359642",
    )
    traits: ClassVar[Traits] = Traits(
        traffic="8·m·(P−1)/P, during backward and the next forward pass",
        staleness="0",
        kind="overlapped",
        synchronous=True,
        agree=True,
        packets_only=True,
        resumable=True,
    )

    def __post_init__(self) -> None:
        for key in ("partition", "credit"):
            value = getattr(self, key)
            if value < 1:
                raise InputError(f"{key} = {value}: at least 1 byte is needed")

    def worker(self, w: Worker) -> None:
        """See `Method`."""
        for batch in w.batches():
            self._step(w, batch)
        w.wait_applied()

    def _step(self, w: Worker, batch: Batch) -> None:
        queue = Queue(w.comm, self.partition, self.credit)

        def on_layer(tensor: int, gradient: torch.Tensor) -> None:
            with w.phase("encode"):
                if w.size > 1:
                    gradient.mul_(batch.weight)
                queue.ready(tensor, gradient)

        direction = w.gradient(batch, on_layer=on_layer)
        w.wait_and_apply(direction, queue.wait)
