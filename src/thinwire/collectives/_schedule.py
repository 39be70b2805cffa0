"""Who sends what to whom, as data: what `costs` evaluates where no closed form exists.

A schedule lists each rank's operations in order. `elapsed_ns` runs one on an idle uniform network
in which each egress and each ingress serves first come, first served, cut-through: the recurrence
of the `queue` link model, without the virtual cluster. `sent_bytes` adds up what each rank sends.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TypeAlias

from thinwire.errors import InputError

__all__ = [
    "MAX_BUFFERS",
    "SEGMENTS",
    "Op",
    "Schedule",
    "blocks_by_round",
    "broadcast",
    "check_size",
    "core_rank",
    "dealt",
    "elapsed_ns",
    "halves",
    "halving_doubling",
    "oktopk",
    "packets_of",
    "power_below",
    "reduce",
    "rounds",
    "segmented_chunks",
    "segmented_ring",
    "sent_bytes",
    "tree_children",
]

Op: TypeAlias = tuple[str, int, int]
"""("send", destination, bytes), ("then", destination, bytes): the same, but to leave only when all
before it has left, or ("recv", source, 0)."""

Schedule: TypeAlias = list[list[Op]]

_ENTRY, _COUNT = 8, 8
"""Bytes of a kept entry, and of a number of entries."""

MAX_BUFFERS = 255
"""Buffers that fit into one packet."""


SEGMENTS = 4
"""Of a chunk, in the segmented ring."""


def check_size(num_workers: int, numel: int) -> None:
    """Reject numbers of workers and elements that cannot be."""
    if num_workers < 1:
        raise InputError(f"num_workers = {num_workers!r}; it must be >= 1")
    if numel < 0:
        raise InputError(f"numel = {numel!r}; it must be >= 0")


def rounds(num_workers: int) -> int:
    """ceil(log2 P)."""
    return (num_workers - 1).bit_length()


def blocks_by_round(num_workers: int) -> list[int]:
    """How many ranks' contributions travel in each round of the doubling all-gather.

    >>> blocks_by_round(6)
    [1, 2, 2]
    """
    return [min(1 << i, num_workers - (1 << i)) for i in range(rounds(num_workers))]


def packets_of(blocks: int, width: int = 2) -> list[int]:
    """How `blocks` blocks of `width` buffers are dealt out to packets; a sparse one has two.

    >>> packets_of(300)
    [127, 127, 46]
    """
    most = MAX_BUFFERS // width
    return [min(most, blocks - i) for i in range(0, blocks, most)]


def dealt(numel: int, parts: int) -> list[int]:
    """Elements of each part, as `tensor_split` deals them out: the first ones have one more where
    it doesn't divide.

    >>> dealt(11, 4)
    [3, 3, 3, 2]
    """
    least, more = divmod(numel, parts)
    return [least + (i < more) for i in range(parts)]


def power_below(num_workers: int) -> int:
    """The largest power of two that is not above `num_workers`."""
    return 1 << (num_workers.bit_length() - 1)


def halves(low: int, high: int) -> int:
    """Where halving-doubling splits the elements low..high-1; the lower part is never smaller."""
    return low + (high - low + 1) // 2


def tree_children(position: int, num_workers: int) -> list[int]:
    """Children of a position in the binomial tree rooted at 0, the nearest first.

    The parent of a position is the position without its lowest set bit.

    >>> tree_children(0, 6), tree_children(4, 6)
    ([1, 2, 4], [5])
    """
    children, step = [], 1
    while position + step < num_workers and not position & step:
        children.append(position + step)
        step *= 2
    return children


def reduce(num_workers: int, nbytes: int) -> Schedule:
    """Binomial reduction to rank 0: nearest children first, then on to the parent."""
    schedule: Schedule = []
    for rank in range(num_workers):
        ops: list[Op] = [("recv", child, 0) for child in tree_children(rank, num_workers)]
        if rank:
            ops.append(("send", rank & (rank - 1), nbytes))
        schedule.append(ops)
    return schedule


def broadcast(num_workers: int, nbytes: int) -> Schedule:
    """Binomial broadcast from rank 0: the farthest child first."""
    schedule: Schedule = []
    for rank in range(num_workers):
        ops: list[Op] = [("recv", rank & (rank - 1), 0)] if rank else []
        children = tree_children(rank, num_workers)
        ops += [("send", child, nbytes) for child in reversed(children)]
        schedule.append(ops)
    return schedule


def segmented_chunks(num_workers: int, numel: int) -> list[list[int]]:
    """Elements of each segment of each chunk of the segmented ring.

    >>> segmented_chunks(2, 11)
    [[2, 2, 1, 1], [2, 1, 1, 1]]
    """
    return [dealt(n, SEGMENTS) for n in dealt(numel, num_workers)]


def segmented_ring(num_workers: int, numel: int, message: Callable[[int], int]) -> Schedule:
    """The ring all-reduce with its chunks in segments, as `dense` runs it.

    Args:
        num_workers: P, >= 1.
        numel: elements of the tensor.
        message: bytes of a packet with that many elements; empty ones are not sent.
    """
    if num_workers == 1:
        return [[]]
    chunks = [[message(n) for n in each if n] for each in segmented_chunks(num_workers, numel)]
    schedule: Schedule = []
    for rank in range(num_workers):
        following, before = (rank + 1) % num_workers, (rank - 1) % num_workers
        ops: list[Op] = [("send", following, n) for n in chunks[before]]
        for hop in range(2, 2 * num_workers):
            for n in chunks[(rank - hop) % num_workers]:
                ops.append(("recv", before, 0))
                if hop < 2 * num_workers - 1:
                    ops.append(("send", following, n))
        schedule.append(ops)
    return schedule


def halving_doubling(num_workers: int, numel: int, message: Callable[[int], int]) -> Schedule:
    """Rabenseifner's all-reduce, as `dense` runs it.

    Args:
        num_workers: P, >= 1.
        numel: elements of the tensor.
        message: bytes of a packet with that many elements; empty ones are not sent.
    """
    core = power_below(num_workers)
    extra = num_workers - core
    schedule: Schedule = [[] for _ in range(num_workers)]
    if not numel:
        return schedule
    for rank in range(0, 2 * extra, 2):
        schedule[rank] = [("send", rank + 1, message(numel)), ("recv", rank + 1, 0)]
    for place in range(core):
        rank, ops = core_rank(place, extra), []
        if place < extra:
            ops.append(("recv", rank - 1, 0))
        ops += _core_ops(place, core, extra, numel, message)
        if place < extra:
            ops.append(("send", rank - 1, message(numel)))
        schedule[rank] = ops
    return schedule


def core_rank(place: int, extra: int) -> int:
    """The rank that holds a place among the power-of-two core when `extra` ranks were folded."""
    return 2 * place + 1 if place < extra else place + extra


def _core_ops(
    place: int, core: int, extra: int, numel: int, message: Callable[[int], int]
) -> list[Op]:
    ops: list[Op] = []
    low, high = 0, numel
    levels = []
    distance = core // 2
    while distance:
        peer, middle = core_rank(place ^ distance, extra), halves(low, high)
        mine, theirs = middle - low, high - middle
        low, high = (low, middle) if not place & distance else (middle, high)
        if place & distance:
            mine, theirs = theirs, mine
        ops += _pair(peer, message(theirs) if theirs else 0, bool(mine))
        levels.append((peer, mine, theirs))
        distance //= 2
    for peer, mine, theirs in reversed(levels):
        ops += _pair(peer, message(mine) if mine else 0, bool(theirs))
    return ops


def _pair(peer: int, nbytes: int, receives: bool) -> list[Op]:
    ops: list[Op] = [("send", peer, nbytes)] if nbytes else []
    return [*ops, ("recv", peer, 0)] if receives else ops


def oktopk(
    num_workers: int,
    k: int,
    message: Callable[[int, int], int],
    entries: Callable[[int], int] | None = None,
) -> Schedule:
    """Ok-Topk's sparse all-reduce with a known threshold, as `oktopk` runs it, when regions split
    k entries of each worker and of the sum evenly.

    Args:
        num_workers: P, >= 1.
        k: entries of each worker, and of the sum.
        message: bytes of a packet with that payload and number of buffers.
        entries: bytes of so many entries, where they are not 8 each.
    """
    share = [entries(n) if entries else _ENTRY * n for n in dealt(k, num_workers)]

    def survivors(first: int, blocks: int) -> list[int]:
        sizes = [share[(first + i) % num_workers] for i in range(blocks)]
        found, start = [], 0
        for count in packets_of(blocks):
            found.append(message(sum(sizes[start : start + count]), 2 * count))
            start += count
        return found

    schedule: Schedule = []
    for rank in range(num_workers):
        after = [(rank + i) % num_workers for i in range(1, num_workers)]
        ops: list[Op] = [("then", peer, message(share[peer], 2)) for peer in after]
        ops += [("recv", peer, 0) for peer in reversed(after)]
        ops += _doubling(rank, num_workers, lambda first, blocks: [message(_COUNT * blocks, 1)])
        ops += _doubling(rank, num_workers, survivors)
        schedule.append(ops)
    return schedule


def _doubling(rank: int, num_workers: int, sizes: Callable[[int, int], list[int]]) -> list[Op]:
    """Bruck's gather: packet sizes are those of so many blocks of ranks from the first on."""
    ops: list[Op] = []
    have = 1
    for blocks in blocks_by_round(num_workers):
        packets = sizes(rank, blocks)
        ops += [("send", (rank - have) % num_workers, n) for n in packets]
        ops += [("recv", (rank + have) % num_workers, 0)] * len(packets)
        have += blocks
    return ops


def sent_bytes(schedule: Schedule) -> tuple[int, ...]:
    """Bytes that each rank sends."""
    return tuple(sum(n for what, _, n in ops if what != "recv") for ops in schedule)


def elapsed_ns(schedule: Schedule, latency_ns: int, transfer_ns: Callable[[int], int]) -> int:
    """Nanoseconds until every rank has finished; all start at 0.

    Args:
        schedule: operations by rank.
        latency_ns: nanoseconds between any two ranks, the same both ways.
        transfer_ns: nanoseconds in which a link passes that many bytes.
    """
    num_workers = len(schedule)
    egress, ingress = [0] * num_workers, [0] * num_workers
    at = [0] * num_workers  # next operation of each rank
    boxes: list[dict[int, int]] = [{} for _ in range(num_workers)]  # messages come, by source
    alarmed = [False] * num_workers  # to go on when its egress is free
    events: list[tuple[int, int, int, int]] = []  # time, serial, source, destination
    serial = end = 0

    def run(rank: int, now: int) -> None:
        nonlocal serial
        ops, box = schedule[rank], boxes[rank]
        while at[rank] < len(ops):
            what, peer, nbytes = ops[at[rank]]
            if what == "recv":
                if not box.get(peer):
                    return
                box[peer] -= 1
            elif what == "then" and egress[rank] > now:
                if not alarmed[rank]:
                    serial += 1
                    heappush(events, (egress[rank], serial, rank, rank))
                alarmed[rank] = True
                return
            else:
                start, transfer = max(now, egress[rank]), transfer_ns(nbytes)
                egress[rank] = start + transfer
                ingress[peer] = max(start + latency_ns, ingress[peer]) + transfer
                serial += 1
                heappush(events, (ingress[peer], serial, rank, peer))
            at[rank] += 1

    for rank in range(num_workers):
        run(rank, 0)
    while events:
        end, _, src, dst = heappop(events)
        if src == dst:
            alarmed[dst] = False
        else:
            boxes[dst][src] = boxes[dst].get(src, 0) + 1
        run(dst, end)
    assert all(at[r] == len(schedule[r]) for r in range(num_workers)), "a schedule that waits"
    return end
