"""Dense collectives, written once on post and wait, for any number of workers.

Rules that hold for all of them:

* Every rank calls with tensors of one shape and dtype. Nothing is upcast: sums are formed in the
  tensor's own dtype and rounded to it after each addition (torch adds two bfloat16 or float16
  numbers in float32 and rounds once). A caller who wants float32 sums casts first and pays for
  twice the bytes.
* Each element's sum is formed once, in a fixed order, and then passed on, so all ranks end with the
  same bits, on the virtual and on the real wire.
* No packet shares memory with a tensor of the caller, nor with anything written later: a packet in
  flight belongs to the wire, and on the virtual cluster the receiver holds the very same tensor.
  What a rank has only received, it may post again as it is.
* Meta tensors go the same way without arithmetic. Empty tensors send nothing.
* After an error (a deadline, a peer that died) the contents of tensors written in place are
  undefined.

Waits last as long as the communicator's own limit. Costs: `costs`; bytes: `traffic`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from thinwire.collectives._moves import broadcast_packet, check_root, opened, take, take_tensor
from thinwire.collectives._schedule import (
    blocks_by_round,
    core_rank,
    halves,
    power_below,
    rounds,
    tree_children,
)
from thinwire.errors import InputError, nearest
from thinwire.wire.base import Comm, Tag
from thinwire.wire.packet import DTYPES, Packet

__all__ = [
    "ALL_GATHERS",
    "ALL_REDUCES",
    "RING_FROM",
    "all_gather",
    "all_reduce",
    "barrier",
    "broadcast",
    "choose_all_reduce",
    "gather",
    "reduce",
    "reduce_scatter",
]

RING_FROM = 64 * 1024
"""`auto` takes the ring from this many bytes per worker on."""


def choose_all_reduce(num_workers: int, nbytes: int) -> str:
    """The named rule behind `algorithm="auto"`.

    From 64 KiB per worker on the ring: bytes decide there, it sends as few as any, at any number of
    workers, and only between neighbours. Below, start-ups decide: halving-doubling at powers of
    two, the tree at other numbers. The rule knows no latency or rate, so that all ranks choose
    alike; a caller who knows them names the algorithm.

    >>> choose_all_reduce(8, 1_000_000), choose_all_reduce(8, 1000), choose_all_reduce(5, 1000)
    ('ring', 'halving_doubling', 'tree')
    """
    if nbytes >= RING_FROM * num_workers:
        return "ring"
    return "halving_doubling" if power_below(num_workers) == num_workers else "tree"


def all_reduce(
    comm: Comm, x: torch.Tensor, algorithm: str = "auto", tag: Tag = "all_reduce"
) -> torch.Tensor:
    """Sum over the workers.

    Args:
        comm: this worker's endpoint.
        x: any shape, equal on all ranks; overwritten with the sum.
        algorithm: `ring`, `halving_doubling`, `tree`, or `auto` (see `choose_all_reduce`).
        tag: of the packets, equal on all ranks.

    Returns:
        `x`.
    """
    if algorithm == "auto":
        algorithm = choose_all_reduce(comm.size, x.numel() * x.itemsize)
    if algorithm not in ALL_REDUCES:
        raise InputError(f"algorithm = {algorithm!r}; {nearest(algorithm, [*ALL_REDUCES, 'auto'])}")
    flat = _summable(x)
    if comm.size > 1 and x.numel():
        ALL_REDUCES[algorithm](comm, flat, tag)
        _store(x, flat)
    return x


def reduce(comm: Comm, x: torch.Tensor, root: int = 0, tag: Tag = "reduce") -> torch.Tensor:
    """Sum over the workers, at one of them, by a binomial tree.

    Args:
        comm: this worker's endpoint.
        x: overwritten with the sum at the root, left alone elsewhere.
        root: 0..size-1.
        tag: of the packets, equal on all ranks.

    Returns:
        `x`.
    """
    check_root(comm, root)
    flat = _summable(x)
    if comm.size > 1 and x.numel():
        total = _reduce(comm, flat, root, tag)
        if total is not None:
            _fill(flat, total)
            _store(x, flat)
    return x


def broadcast(comm: Comm, x: torch.Tensor, root: int = 0, tag: Tag = "broadcast") -> torch.Tensor:
    """Copy the root's tensor to all workers, by a binomial tree.

    Args:
        comm: this worker's endpoint.
        x: overwritten except at the root.
        root: 0..size-1.
        tag: of the packets, equal on all ranks.

    Returns:
        `x`.
    """
    check_root(comm, root)
    flat = _flat(x)
    if comm.size > 1 and x.numel():
        _broadcast(comm, flat, _copy(flat) if comm.rank == root else None, root, tag)
        _store(x, flat)
    return x


def gather(
    comm: Comm, x: torch.Tensor, root: int = 0, tag: Tag = "gather"
) -> list[torch.Tensor] | None:
    """Collect every worker's tensor at one of them.

    Each sends straight to the root: its ingress is the limit, and relays would only add to it.

    Returns:
        At the root, private copies by rank, shaped like `x`; None elsewhere.
    """
    check_root(comm, root)
    flat = _flat(x)
    if comm.rank != root:
        if x.numel():
            comm.post(root, _packet(_copy(flat)), tag)
        return None
    gathered = []
    for rank in range(comm.size):
        if rank == root or not x.numel():
            gathered.append(_copy(flat).view(x.shape))
        else:
            gathered.append(_copy(take_tensor(comm, rank, tag, flat, x.numel())).view(x.shape))
    return gathered


def all_gather(
    comm: Comm, x: torch.Tensor, algorithm: str = "doubling", tag: Tag = "all_gather"
) -> list[torch.Tensor]:
    """Collect every worker's tensor at all of them.

    Args:
        comm: this worker's endpoint.
        x: left alone.
        algorithm: `doubling` (Bruck's form of recursive doubling, ceil(log2 P) packets) or `ring`
            (P-1 packets between neighbours; as many bytes).
        tag: of the packets, equal on all ranks.

    Returns:
        Tensors by rank, shaped like `x`; they share one private block of memory.
    """
    if algorithm not in ALL_GATHERS:
        raise InputError(f"algorithm = {algorithm!r}; {nearest(algorithm, ALL_GATHERS)}")
    flat = _flat(x)
    gathered = torch.empty((comm.size, x.numel()), dtype=x.dtype, device=x.device)
    _fill(gathered[comm.rank], flat)
    if comm.size > 1 and x.numel():
        ALL_GATHERS[algorithm](comm, gathered, flat, tag)
    return [row.view(x.shape) for row in gathered]


def reduce_scatter(comm: Comm, x: torch.Tensor, tag: Tag = "reduce_scatter") -> torch.Tensor:
    """Sum over the workers, each keeping one chunk, by a ring.

    Args:
        comm: this worker's endpoint.
        x: left alone. Its flattened elements are dealt out in P runs; the first `numel % P` runs
            have one element more.
        tag: of the packets, equal on all ranks.

    Returns:
        This rank's run of the sum, 1-D, private.
    """
    flat = _summable(x)
    if comm.size == 1 or not x.numel():
        return _copy(flat)
    return _ring_reduce(comm, flat.tensor_split(comm.size), tag)


def barrier(comm: Comm, tag: Tag = "barrier") -> None:
    """Return only when every worker has called: ceil(log2 P) rounds of empty packets."""
    empty = Packet((), kind="control")
    for i in range(rounds(comm.size)):
        comm.post((comm.rank + (1 << i)) % comm.size, empty, tag)
        take(comm, (comm.rank - (1 << i)) % comm.size, tag)


# Tensors and packets.


def _flat(x: torch.Tensor) -> torch.Tensor:
    if x.dtype not in DTYPES:
        valid = ", ".join(map(str, DTYPES))
        raise InputError(f"a tensor of {x.dtype} cannot travel; valid: {valid}")
    return x.detach().reshape(-1)


def _summable(x: torch.Tensor) -> torch.Tensor:
    if x.dtype == torch.bool:
        raise InputError("a tensor of torch.bool cannot be summed; convert it to torch.uint8 first")
    return _flat(x)


def _store(x: torch.Tensor, flat: torch.Tensor) -> None:
    """`reshape` gave a copy where `x` is not contiguous: bring the result home."""
    if not x.is_contiguous() and not x.is_meta:
        x.detach().copy_(flat.reshape(x.shape))


def _copy(flat: torch.Tensor) -> torch.Tensor:
    return flat if flat.is_meta else flat.clone()


def _add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    # Out of place on purpose: `a` may be in flight, and `b` belongs to the wire.
    return a if a.is_meta else torch.add(a, b)


def _fill(into: torch.Tensor, value: torch.Tensor) -> None:
    if not into.is_meta:
        into.copy_(value)


def _packet(flat: torch.Tensor) -> Packet:
    return Packet((flat,), kind="dense")


# The ring. Its chunks are `tensor_split`'s: the first `numel % P` have one element more.


def _ring_reduce(comm: Comm, chunks: Sequence[torch.Tensor], tag: Tag) -> torch.Tensor:
    """This rank's chunk of the sum, fresh: chunk c is added up from rank c+1 round to rank c."""
    rank, size = comm.rank, comm.size
    part = _copy(chunks[rank - 1])
    for i in range(2, size + 1):
        if part.numel():
            comm.post((rank + 1) % size, _packet(part), tag)
        part = mine = chunks[rank - i]
        if mine.numel():
            part = _add(take_tensor(comm, (rank - 1) % size, tag, mine, mine.numel()), mine)
    return part


def _ring(comm: Comm, flat: torch.Tensor, tag: Tag) -> None:
    rank, size = comm.rank, comm.size
    chunks = flat.tensor_split(size)
    part = _ring_reduce(comm, chunks, tag)
    _fill(chunks[rank], part)
    for i in range(1, size):
        if part.numel():
            # Without a copy: `part` is a fresh sum or came off the wire, and is only read here.
            comm.post((rank + 1) % size, _packet(part), tag)
        part = mine = chunks[rank - i]
        if mine.numel():
            part = take_tensor(comm, (rank - 1) % size, tag, mine, mine.numel())
            _fill(mine, part)


# Halving-doubling.


def _halving_doubling(comm: Comm, flat: torch.Tensor, tag: Tag) -> None:
    """Rabenseifner's; of the ranks beyond a power of two, each first gives its tensor to the next
    rank and gets the sum back at the end."""
    core = power_below(comm.size)
    extra = comm.size - core
    rank, numel = comm.rank, flat.numel()
    if rank < 2 * extra and rank % 2 == 0:
        comm.post(rank + 1, _packet(_copy(flat)), tag)
        _fill(flat, take_tensor(comm, rank + 1, tag, flat, numel))
        return
    folded = rank < 2 * extra
    whole = _add(take_tensor(comm, rank - 1, tag, flat, numel), flat) if folded else flat
    _halve_and_double(comm, flat, whole, rank // 2 if folded else rank - extra, core, tag)
    if folded:
        comm.post(rank - 1, _packet(_copy(flat)), tag)


def _halve_and_double(
    comm: Comm, flat: torch.Tensor, part: torch.Tensor, place: int, core: int, tag: Tag
) -> None:
    """Add up `part` over the core, halving it each round; double the pieces back into `flat`."""
    extra = comm.size - core
    low, high = 0, flat.numel()
    levels: list[tuple[int, int, int, int, int]] = []
    distance = core // 2
    while distance:
        peer, middle = core_rank(place ^ distance, extra), halves(low, high)
        kept, given = (low, middle), (middle, high)
        if place & distance:
            kept, given = given, kept
        _post_part(comm, peer, part[given[0] - low : given[1] - low], tag, fresh=part is not flat)
        part = part[kept[0] - low : kept[1] - low]
        if part.numel():
            part = _add(part, take_tensor(comm, peer, tag, flat, part.numel()))
        levels.append((peer, *kept, *given))
        low, high = kept
        distance //= 2
    _fill(flat[low:high], part)
    for peer, low, high, lacking_low, lacking_high in reversed(levels):
        _post_part(comm, peer, flat[low:high], tag, fresh=False)
        lacking = flat[lacking_low:lacking_high]
        if lacking.numel():
            _fill(lacking, take_tensor(comm, peer, tag, flat, lacking.numel()))


def _post_part(comm: Comm, peer: int, part: torch.Tensor, tag: Tag, fresh: bool) -> None:
    if part.numel():
        # Without a copy when it is a fresh sum, which is only read from then on.
        comm.post(peer, _packet(part if fresh else _copy(part)), tag)


# The tree.


def _reduce(comm: Comm, flat: torch.Tensor, root: int, tag: Tag) -> torch.Tensor | None:
    """Add up children, the nearest first, then pass on to the parent; the sum at the root."""
    size = comm.size
    position = (comm.rank - root) % size
    total = None
    for child in tree_children(position, size):
        received = take_tensor(comm, (child + root) % size, tag, flat, flat.numel())
        total = _add(flat if total is None else total, received)
    if not position:
        return total
    # A sum is fresh and only read from here on; a leaf's tensor is the caller's own.
    packet = _packet(_copy(flat) if total is None else total)
    comm.post(((position & (position - 1)) + root) % size, packet, tag)
    return None


def _broadcast(
    comm: Comm, flat: torch.Tensor, value: torch.Tensor | None, root: int, tag: Tag
) -> None:
    if comm.rank == root:
        assert value is not None
        broadcast_packet(comm, _packet(value), root, tag)
        return
    packet = broadcast_packet(comm, None, root, tag)
    _fill(flat, opened(comm, root, tag, packet, flat, flat.numel()))


def _tree(comm: Comm, flat: torch.Tensor, tag: Tag) -> None:
    total = _reduce(comm, flat, 0, tag)
    if total is not None:
        _fill(flat, total)
    _broadcast(comm, flat, total, 0, tag)


# Gathers.


def _gather_ring(comm: Comm, gathered: torch.Tensor, flat: torch.Tensor, tag: Tag) -> None:
    rank, size = comm.rank, comm.size
    row = _copy(flat)
    for i in range(1, size):
        comm.post((rank + 1) % size, _packet(row), tag)
        row = take_tensor(comm, (rank - 1) % size, tag, flat, flat.numel())
        _fill(gathered[(rank - i) % size], row)


def _gather_doubling(comm: Comm, gathered: torch.Tensor, flat: torch.Tensor, tag: Tag) -> None:
    """Round i: the first blocks of those held go 2^i ranks back; held are rank, rank+1, …"""
    rank, size, numel = comm.rank, comm.size, flat.numel()
    held = torch.empty_like(gathered)
    _fill(held[0], flat)
    have = 1
    for blocks in blocks_by_round(size):
        # `held` fills up from the front and no row of it is written twice, so its filled rows may
        # be in flight while others are filled.
        comm.post((rank - have) % size, _packet(held[:blocks].view(-1)), tag)
        came = take_tensor(comm, (rank + have) % size, tag, flat, blocks * numel)
        _fill(held[have : have + blocks], came.view(blocks, numel))
        have += blocks
    _fill(gathered, torch.roll(held, rank, 0) if not held.is_meta else held)


ALL_REDUCES: dict[str, Callable[[Comm, torch.Tensor, Tag], None]] = {
    "halving_doubling": _halving_doubling,
    "ring": _ring,
    "tree": _tree,
}

ALL_GATHERS: dict[str, Callable[[Comm, torch.Tensor, torch.Tensor, Tag], None]] = {
    "doubling": _gather_doubling,
    "ring": _gather_ring,
}
