"""What is sent in a step, and in which order: a model's times and bytes made into messages.

The schedules of the literature differ in three things only, and a message states them: what is in
it, its `priority` when several are ready, and the layer of the next forward pass that waits for it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Protocol

from thinwire.errors import InputError
from thinwire.schedule.groups import Groups, sizes

__all__ = [
    "BYTEPS_PARTITION",
    "BYTESCHEDULER_CREDIT",
    "BYTESCHEDULER_PARTITION",
    "P3_SLICE",
    "Load",
    "Message",
    "Plan",
    "Table",
    "behind_barrier",
    "fused",
    "load_of",
    "partitioned",
    "prioritised",
    "sparsified",
]

P3_SLICE = 4 * 50_000
"""Bytes of a slice in P3: 50,000 parameters."""

BYTESCHEDULER_PARTITION, BYTESCHEDULER_CREDIT = 4 * 1_000_000, 4 * 4_000_000
"""Bytes of a partition, and in flight, that ByteScheduler takes by default."""

BYTEPS_PARTITION = 4_096_000
"""Bytes of a partition that BytePS takes by default."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What a worker computes in a step, and which gradients come of it when.

    Args:
        order: tensors by completion of their gradients.
        ready: when each is complete, by position in `order`: seconds from the beginning of
            backward, >= 0 and never falling.
        nbytes: bytes of each gradient, by position.
        backward: seconds of the backward pass, not below the last of `ready`.
        forward: the forward pass in its order: a tensor, and the seconds that begin when that
            tensor is up to date and those before it are done.
    """

    order: tuple[int, ...]
    ready: tuple[float, ...]
    nbytes: tuple[int, ...]
    backward: float
    forward: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        if not len(self.order) == len(self.ready) == len(self.nbytes):
            raise InputError(
                f"order, ready and nbytes have {len(self.order)}, {len(self.ready)} and "
                f"{len(self.nbytes)} entries; as many each"
            )
        for before, after in pairwise([0.0, *self.ready, self.backward]):
            if not (before <= after < math.inf):
                raise InputError(
                    f"ready and backward: {after!r} after {before!r}; >= 0 and never falling"
                )
        for tensor, seconds in self.forward:
            if not (seconds >= 0 and math.isfinite(seconds)):
                raise InputError(f"forward of tensor {tensor} = {seconds!r} seconds; >= 0")

    @property
    def computing(self) -> float:
        """Seconds of a step without communication."""
        return self.backward + sum(seconds for _, seconds in self.forward)


class Table(Protocol):
    """What is needed of a `thinwire.models.ModelTable`."""

    @property
    def tensors(self) -> Sequence[Tensor]:
        """One for each parameter tensor."""
        ...

    @property
    def ready_order(self) -> tuple[int, ...]:
        """Tensors by completion of their gradients."""
        ...

    def forward_shares(self) -> tuple[float, ...]:
        """Part of the forward pass that follows each tensor's arrival."""
        ...

    def backward_shares(self) -> tuple[float, ...]:
        """Part of the backward pass before each gradient."""
        ...


class Tensor(Protocol):
    """What is needed of a parameter tensor."""

    @property
    def numel(self) -> int:
        """Elements."""
        ...

    @property
    def layer(self) -> int:
        """Place of its layer in the forward pass."""
        ...


def load_of(table: Table, forward: float, backward: float, itemsize: int = 4) -> Load:
    """A model table's load; the seconds are divided by its operations.

    Args:
        table: as `thinwire.models` has them.
        forward: seconds of the forward pass, >= 0.
        backward: seconds of the backward pass, >= 0.
        itemsize: bytes of an element of a gradient.

    >>> from thinwire.models import published_table
    >>> load = load_of(published_table("resnet50"), 0.1, 0.2)
    >>> len(load.order), sum(load.nbytes), round(load.computing, 6)
    (161, 102228128, 0.3)
    """
    order, tensors = table.ready_order, table.tensors
    ahead, behind = table.forward_shares(), table.backward_shares()
    done = [min(1.0, share) for share in accumulate(behind[i] for i in order)]
    places = sorted(range(len(tensors)), key=lambda i: tensors[i].layer)
    return Load(
        order=order,
        ready=tuple(backward * share for share in done),
        nbytes=tuple(itemsize * tensors[i].numel for i in order),
        backward=backward,
        forward=tuple((i, forward * ahead[i]) for i in places),
    )


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message of a step.

    Args:
        tensors: whose gradients, or parts of them, are in it.
        nbytes: its size.
        ready: when it could leave, seconds from the beginning of backward.
        priority: of those that are ready the least goes first; equal ones as they come.
        needed: place in `Load.forward` before which it must have arrived.
    """

    tensors: tuple[int, ...]
    nbytes: int
    ready: float
    priority: int
    needed: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The messages of a step.

    Args:
        messages: in any order.
        credit: bytes that may be under way at once before the next message is chosen; None: each
            is handed to the channel when it is ready. A message above it goes alone.
    """

    messages: tuple[Message, ...]
    credit: int | None = None


def fused(load: Load, groups: Groups) -> Plan:
    """Whole groups in the order of completion; the next forward pass waits for all: BSP with
    `groups.whole`, WFBP with `per_tensor`, DDP with `buckets`, MG-WFBP with `merged`."""
    last = list(accumulate(len(group) for group in groups))
    return Plan(
        messages=tuple(
            Message(tensors=group, nbytes=size, ready=load.ready[end - 1], priority=i, needed=0)
            for i, (group, size, end) in enumerate(
                zip(groups, sizes(groups, load.nbytes), last, strict=True)
            )
        )
    )


def partitioned(
    load: Load, groups: Groups, partition: int = BYTEPS_PARTITION, credit: int | None = None
) -> Plan:
    """The same in parts, so that a path of several stages passes them on part by part: BytePS.

    Args:
        load: of the step.
        groups: what is fused before it is parted.
        partition: bytes of a part, >= 1.
        credit: see `Plan`.
    """
    return Plan(
        messages=tuple(
            Message(tensors=m.tensors, nbytes=size, ready=m.ready, priority=m.priority, needed=0)
            for m in fused(load, groups).messages
            for size in _parts(m.nbytes, partition)
        ),
        credit=credit,
    )


def prioritised(
    load: Load, partition: int = BYTESCHEDULER_PARTITION, credit: int = BYTESCHEDULER_CREDIT
) -> Plan:
    """Parts of tensors, those of the layers nearest to the input first; each layer of the next
    forward pass begins when its own have arrived.

    P3 with `partition = credit = P3_SLICE`, one slice under way at a time; ByteScheduler with the
    defaults.

    Args:
        load: of the step.
        partition: bytes of a part, >= 1.
        credit: bytes under way, >= 1. More keeps the channel busy and lets less urgent parts go
            ahead of more urgent ones.

    References: Jayarajan et al., "Priority-based Parameter Propagation for Distributed DNN
    Training", SysML 2019; Peng et al., "A Generic Communication Scheduler for Distributed DNN
    Training Acceleration", ACM SOSP 2019.
    """
    if credit < 1:
        raise InputError(f"credit = {credit!r} bytes; it must be >= 1")
    place = {tensor: i for i, (tensor, _) in enumerate(load.forward)}
    if alone := [tensor for tensor in load.order if tensor not in place]:
        raise InputError(f"tensor {alone[0]} has a gradient and no place in the forward pass")
    return Plan(
        messages=tuple(
            Message(
                tensors=(tensor,),
                nbytes=size,
                ready=ready,
                priority=place[tensor],
                needed=place[tensor],
            )
            for tensor, ready, nbytes in zip(load.order, load.ready, load.nbytes, strict=True)
            for size in _parts(nbytes, partition)
        ),
        credit=credit,
    )


def behind_barrier(plan: Plan) -> Plan:
    """The same messages in the same order, and a forward pass that begins when all have arrived."""
    return dataclasses.replace(
        plan, messages=tuple(dataclasses.replace(m, needed=0) for m in plan.messages)
    )


def sparsified(
    load: Load,
    groups: Groups,
    kept: Sequence[int],
    select: Callable[[int], float],
    *,
    itemsize: int = 4,
    entry: int = 8,
) -> tuple[Load, Plan]:
    """A load with entries chosen from each group as soon as it is complete, before backward goes
    on, and the messages with them: LAGS with a group for each tensor, OMGS with `sparse_merged`.

    Args:
        load: of the dense step.
        groups: of its tensors.
        kept: entries kept, for each group.
        select: seconds of choosing from so many elements.
        itemsize: bytes of an element in `load`.
        entry: bytes of a kept entry in a message, index and value.
    """
    if len(kept) != len(groups):
        raise InputError(f"kept has {len(kept)} entries, groups {len(groups)}; one for each")
    elements = [size // itemsize for size in sizes(groups, load.nbytes)]
    late, messages, ready, end = 0.0, [], [], 0
    for i, (group, count) in enumerate(zip(groups, kept, strict=True)):
        begin, end = end, end + len(group)
        ready += [late + moment for moment in load.ready[begin:end]]
        late += select(elements[i])
        messages.append(
            Message(tensors=group, nbytes=entry * count, ready=load.ready[end - 1] + late,
                    priority=i, needed=0)
        )  # fmt: skip
    slower = dataclasses.replace(load, ready=tuple(ready), backward=load.backward + late)
    return slower, Plan(messages=tuple(messages))


def _parts(nbytes: int, partition: int) -> Iterator[int]:
    if partition < 1:
        raise InputError(f"partition = {partition!r} bytes; it must be >= 1")
    whole, rest = divmod(nbytes, partition)
    yield from [partition] * whole
    if rest or not whole:
        yield rest
