"""All-reduces between workers of one process: the messages travel empty, the sum is formed once.

On the virtual cluster every worker's tensor lies in the same memory. The algorithm runs as it is,
with packets of the right sizes, so that time, bytes, waits and losses are what they are; the first
worker that comes to its end adds up what all have brought, in the order in which the messages
would have, and the others copy it. Bit for bit the same, at a fraction of the cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, cast

import torch

from thinwire.collectives._all_reduce import ALL_REDUCES
from thinwire.collectives._schedule import power_below, tree_children
from thinwire.collectives._vector import (
    Ghost,
    Vector,
    add,
    add_to,
    copy,
    fill,
    packet,
    split,
    vector,
)
from thinwire.errors import InputError
from thinwire.wire.base import Arrival, Comm, Move, Posted, Tag
from thinwire.wire.packet import Packet

__all__ = ["SUMS", "all_reduce_together"]


class _Meeting:
    """One call of the collective, by all workers."""

    def __init__(self, size: int):
        self.brought: list[Vector] = [Ghost(0, 1)] * size
        self.total: Vector | None = None
        self.what: tuple[str, int, torch.dtype] | None = None
        self.first = 0
        self.left = 0

    def bring(self, rank: int, mine: torch.Tensor, algorithm: str, tag: Tag) -> Vector:
        """Nothing is copied: whoever calls a collective does nothing else until its end."""
        what = algorithm, mine.numel(), mine.dtype
        if self.what is None:
            self.what, self.first = what, rank
        elif self.what != what:
            ours, theirs = ("{} of {} x {}".format(*w) for w in (what, self.what))
            raise InputError(
                f"rank {rank} called the {ours} where rank {self.first} called the {theirs} "
                f"(tag {tag!r}); all ranks must call the collective with equal tensors"
            )
        found = self.brought[rank] = vector(mine)
        return found

    def sum(self, algorithm: str) -> Vector:
        """For the first that asks, all must have brought theirs; an all-reduce ensures it."""
        if self.total is None:
            self.total = SUMS[algorithm](self.brought)
            self.brought = []
        return self.total


def all_reduce_together(
    comm: Comm, flat: torch.Tensor, algorithm: str, tag: Tag, meetings: dict[Any, Any]
) -> None:
    """Sum over the workers, in place.

    Args:
        comm: a virtual endpoint.
        flat: 1-D, not empty.
        algorithm: a key of `ALL_REDUCES`.
        tag: of the packets.
        meetings: shared by all workers of the world.
    """
    calls = (comm.rank, tag)
    number = meetings[calls] = meetings.get(calls, 0) + 1
    name = (tag, "call", number)
    meeting = meetings.get(name)
    if meeting is None:
        meeting = meetings[name] = _Meeting(comm.size)
    mine = meeting.bring(comm.rank, flat, algorithm, tag)
    if comm.size <= _RECORDED and comm.losses == "strict":
        moves = _moves(algorithm, comm.rank, comm.size, flat.numel(), flat.itemsize)
        comm.play(moves, tag)
    else:
        ALL_REDUCES[algorithm](comm, Ghost(flat.numel(), flat.itemsize), tag)
    fill(mine, meeting.sum(algorithm))
    meeting.left += 1
    if meeting.left == comm.size:
        del meetings[name]


# What an algorithm posts and waits for: it is run once, on nothing, by somebody who takes notes.

_RECORDED = 64
"""Workers up to which notes are taken: a ring's are as long as there are workers, for each."""


@lru_cache(maxsize=1024)
def _moves(algorithm: str, rank: int, size: int, numel: int, itemsize: int) -> tuple[Move, ...]:
    notes = _Notes(rank, size, packet(Ghost(numel, itemsize)))
    ALL_REDUCES[algorithm](cast(Comm, notes), Ghost(numel, itemsize), "")
    return tuple(notes.moves)


class _Note(Posted):
    def __init__(self, number: int):
        self.number = number


class _Notes:
    """As much of a `Comm` as the algorithms use. What is passed on as it came is a whole vector."""

    def __init__(self, rank: int, size: int, whole: Packet):
        self.rank = rank
        self.size = size
        self.moves: list[Move] = []
        self._whole = whole

    def post(self, dst: int, packet: Packet, tag: Tag, *, after: _Note | None = None) -> _Note:
        self.moves.append(Move(dst, packet, -1 if after is None else after.number))
        return _Note(len(self.moves) - 1)

    def wait(self, src: int, tag: Tag) -> Arrival:
        self.moves.append(Move(src, None))
        return Arrival(src, tag, self._whole, 0.0)


# The order in which each algorithm adds. Addition commutes, to the bit, but is not associative.


def _halving_doubling(parts: Sequence[Vector]) -> Vector:
    core = power_below(len(parts))
    extra = len(parts) - core
    folded = [add(parts[2 * i], parts[2 * i + 1]) for i in range(extra)]
    leaves = [*folded, *parts[2 * extra :]]

    def sum_at(width: int, place: int) -> Vector:
        # Depth first, or as many sums as workers would push each other out of the cache.
        if width == core:
            return leaves[place]
        a, b = sum_at(2 * width, place), sum_at(2 * width, place + width)
        return add(a, b) if 2 * width == core else add_to(a, b)

    return sum_at(1, 0)


def _ring(parts: Sequence[Vector]) -> Vector:
    size = len(parts)
    chunks = [split(part, size) for part in parts]
    total = copy(parts[0])
    for c, into in enumerate(split(total, size)):
        run = chunks[(c + 1) % size][c]
        for i in range(2, size + 1):
            run = add(run, chunks[(c + i) % size][c])
        fill(into, run)
    return total


def _tree(parts: Sequence[Vector], position: int = 0) -> Vector:
    total = parts[position]
    for child in tree_children(position, len(parts)):
        total = add(total, _tree(parts, child))
    return total


SUMS: dict[str, Callable[[Sequence[Vector]], Vector]] = {
    "halving_doubling": _halving_doubling,
    "ring": _ring,
    "segmented_ring": _ring,
    "tree": _tree,
}
