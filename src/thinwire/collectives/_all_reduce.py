"""The algorithms of the all-reduce, on vectors; `dense` has the rules that they keep."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from thinwire.collectives._moves import broadcast_packet
from thinwire.collectives._schedule import (
    SEGMENTS,
    core_rank,
    halves,
    power_below,
    tree_children,
)
from thinwire.collectives._vector import (
    Vector,
    add,
    copy,
    fill,
    packet,
    receive,
    split,
    unpacked,
)
from thinwire.wire.base import Comm, Tag

__all__ = ["ALL_REDUCES", "broadcast_down", "reduce_up", "ring_reduce"]

# The ring. Its chunks are `tensor_split`'s: the first `numel % P` have one element more.


def ring_reduce(comm: Comm, chunks: Sequence[Vector], tag: Tag) -> Vector:
    """This rank's chunk of the sum, fresh: chunk c is added up from rank c+1 round to rank c."""
    rank, size = comm.rank, comm.size
    part = copy(chunks[rank - 1])
    for i in range(2, size + 1):
        if len(part):
            comm.post((rank + 1) % size, packet(part), tag)
        part = mine = chunks[rank - i]
        if len(mine):
            part = add(receive(comm, (rank - 1) % size, tag, mine, len(mine)), mine)
    return part


def _ring(comm: Comm, flat: Vector, tag: Tag) -> None:
    rank, size = comm.rank, comm.size
    chunks = split(flat, size)
    part = ring_reduce(comm, chunks, tag)
    fill(chunks[rank], part)
    for i in range(1, size):
        if len(part):
            # Without a copy: `part` is a fresh sum or came off the wire, and is only read here.
            comm.post((rank + 1) % size, packet(part), tag)
        part = mine = chunks[rank - i]
        if len(mine):
            part = receive(comm, (rank - 1) % size, tag, mine, len(mine))
            fill(mine, part)


def _segmented_ring(comm: Comm, flat: Vector, tag: Tag) -> None:
    """The ring, with each chunk in segments: one is added up and passed on while the next is still
    coming, so that the line to the next rank never waits for that."""
    rank, size = comm.rank, comm.size
    chunks = [split(chunk, SEGMENTS) for chunk in split(flat, size)]
    following, before = (rank + 1) % size, (rank - 1) % size
    for own in chunks[before]:
        if len(own):
            comm.post(following, packet(copy(own)), tag)
    for hop in range(2, 2 * size):
        for own in chunks[(rank - hop) % size]:
            if not len(own):
                continue
            part = receive(comm, before, tag, own, len(own))
            if hop <= size:
                part = add(part, own)
            if hop >= size:
                fill(own, part)
            if hop < 2 * size - 1:
                # Without a copy: `part` is a fresh sum or came off the wire, and is only read here.
                comm.post(following, packet(part), tag)


# Halving-doubling.


def _halving_doubling(comm: Comm, flat: Vector, tag: Tag) -> None:
    """Rabenseifner's; of the ranks beyond a power of two, each first gives its tensor to the next
    rank and gets the sum back at the end."""
    core = power_below(comm.size)
    extra = comm.size - core
    rank, numel = comm.rank, len(flat)
    if rank < 2 * extra and rank % 2 == 0:
        comm.post(rank + 1, packet(copy(flat)), tag)
        fill(flat, receive(comm, rank + 1, tag, flat, numel))
        return
    folded = rank < 2 * extra
    whole = add(receive(comm, rank - 1, tag, flat, numel), flat) if folded else flat
    _halve_and_double(comm, flat, whole, rank // 2 if folded else rank - extra, core, tag)
    if folded:
        comm.post(rank - 1, packet(copy(flat)), tag)


def _halve_and_double(
    comm: Comm, flat: Vector, part: Vector, place: int, core: int, tag: Tag
) -> None:
    """Add up `part` over the core, halving it each round; double the pieces back into `flat`."""
    extra = comm.size - core
    low, high = 0, len(flat)
    levels: list[tuple[int, int, int, int, int]] = []
    distance = core // 2
    while distance:
        peer, middle = core_rank(place ^ distance, extra), halves(low, high)
        kept, given = (low, middle), (middle, high)
        if place & distance:
            kept, given = given, kept
        _post_part(comm, peer, part[given[0] - low : given[1] - low], tag, fresh=part is not flat)
        part = part[kept[0] - low : kept[1] - low]
        if len(part):
            part = add(part, receive(comm, peer, tag, flat, len(part)))
        levels.append((peer, *kept, *given))
        low, high = kept
        distance //= 2
    fill(flat[low:high], part)
    for peer, low, high, lacking_low, lacking_high in reversed(levels):
        _post_part(comm, peer, flat[low:high], tag, fresh=False)
        lacking = flat[lacking_low:lacking_high]
        if len(lacking):
            fill(lacking, receive(comm, peer, tag, flat, len(lacking)))


def _post_part(comm: Comm, peer: int, part: Vector, tag: Tag, fresh: bool) -> None:
    if len(part):
        # Without a copy when it is a fresh sum, which is only read from then on.
        comm.post(peer, packet(part if fresh else copy(part)), tag)


# The tree.


def reduce_up(comm: Comm, flat: Vector, root: int, tag: Tag) -> Vector | None:
    """Add up children, the nearest first, then pass on to the parent; the sum at the root."""
    size = comm.size
    position = (comm.rank - root) % size
    total = None
    for child in tree_children(position, size):
        received = receive(comm, (child + root) % size, tag, flat, len(flat))
        total = add(flat if total is None else total, received)
    if not position:
        return total
    # A sum is fresh and only read from here on; a leaf's tensor is the caller's own.
    mine = packet(copy(flat) if total is None else total)
    comm.post(((position & (position - 1)) + root) % size, mine, tag)
    return None


def broadcast_down(comm: Comm, flat: Vector, value: Vector | None, root: int, tag: Tag) -> None:
    """The root's value, into everybody's `flat`."""
    if comm.rank == root:
        assert value is not None
        broadcast_packet(comm, packet(value), root, tag)
        return
    came = broadcast_packet(comm, None, root, tag)
    fill(flat, unpacked(comm, root, tag, came, flat, len(flat)))


def _tree(comm: Comm, flat: Vector, tag: Tag) -> None:
    total = reduce_up(comm, flat, 0, tag)
    if total is not None:
        fill(flat, total)
    broadcast_down(comm, flat, total, 0, tag)


ALL_REDUCES: dict[str, Callable[[Comm, Vector, Tag], None]] = {
    "halving_doubling": _halving_doubling,
    "ring": _ring,
    "segmented_ring": _segmented_ring,
    "tree": _tree,
}
