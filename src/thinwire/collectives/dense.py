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

from collections.abc import Callable

import torch

from thinwire.collectives._all_reduce import ALL_REDUCES, broadcast_down, reduce_up, ring_reduce
from thinwire.collectives._moves import check_root, take
from thinwire.collectives._schedule import blocks_by_round, power_below, rounds
from thinwire.collectives._together import all_reduce_together
from thinwire.collectives._vector import copy, fill, packet, receive, vector
from thinwire.errors import InputError, nearest
from thinwire.wire.base import Comm, Tag
from thinwire.wire.packet import DTYPES, Packet

__all__ = [
    "ALL_GATHERS",
    "ALL_REDUCES",
    "RING_FROM",
    "SEGMENTS_FROM",
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

SEGMENTS_FROM = 256 * 1024
"""`auto` passes them on in segments from this many bytes per worker on."""


def choose_all_reduce(num_workers: int, nbytes: int) -> str:
    """The named rule behind `algorithm="auto"`.

    From 64 KiB per worker on the ring: bytes decide there, it sends as few as any, at any number of
    workers, and only between neighbours; from 256 KiB on in segments, so that no rank holds up the
    next while it adds, or while a lost packet is sent again. Below, start-ups decide:
    halving-doubling at powers of two, the tree at other numbers. The rule knows no latency or rate,
    so that all ranks choose alike; a caller who knows them names the algorithm.

    >>> choose_all_reduce(8, 1_000_000), choose_all_reduce(8, 1000), choose_all_reduce(5, 1000)
    ('ring', 'halving_doubling', 'tree')
    >>> choose_all_reduce(8, 4_000_000)
    'segmented_ring'
    """
    if nbytes >= SEGMENTS_FROM * num_workers:
        return "segmented_ring"
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
        algorithm: `ring`, `segmented_ring`, `halving_doubling`, `tree`, or `auto` (see
            `choose_all_reduce`).
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
        meetings = comm.meetings
        if meetings is None or flat.is_meta:
            ALL_REDUCES[algorithm](comm, vector(flat), tag)
        else:
            all_reduce_together(comm, flat, algorithm, tag, meetings)
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
        total = reduce_up(comm, vector(flat), root, tag)
        if total is not None:
            fill(vector(flat), total)
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
        broadcast_down(comm, flat, copy(flat) if comm.rank == root else None, root, tag)
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
            comm.post(root, packet(copy(flat)), tag)
        return None
    gathered = []
    for rank in range(comm.size):
        if rank == root or not x.numel():
            gathered.append(copy(flat).view(x.shape))
        else:
            gathered.append(copy(receive(comm, rank, tag, flat, x.numel())).view(x.shape))
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
    fill(gathered[comm.rank], flat)
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
        return copy(flat)
    part = ring_reduce(comm, flat.tensor_split(comm.size), tag)
    assert isinstance(part, torch.Tensor)
    return part


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


# Gathers.


def _gather_ring(comm: Comm, gathered: torch.Tensor, flat: torch.Tensor, tag: Tag) -> None:
    rank, size = comm.rank, comm.size
    row = copy(flat)
    for i in range(1, size):
        comm.post((rank + 1) % size, packet(row), tag)
        row = receive(comm, (rank - 1) % size, tag, flat, flat.numel())
        fill(gathered[(rank - i) % size], row)


def _gather_doubling(comm: Comm, gathered: torch.Tensor, flat: torch.Tensor, tag: Tag) -> None:
    """Round i: the first blocks of those held go 2^i ranks back; held are rank, rank+1, …"""
    rank, size, numel = comm.rank, comm.size, flat.numel()
    held = torch.empty_like(gathered)
    fill(held[0], flat)
    have = 1
    for blocks in blocks_by_round(size):
        # `held` fills up from the front and no row of it is written twice, so its filled rows may
        # be in flight while others are filled.
        comm.post((rank - have) % size, packet(held[:blocks].view(-1)), tag)
        came = receive(comm, (rank + have) % size, tag, flat, blocks * numel)
        fill(held[have : have + blocks], came.view(blocks, numel))
        have += blocks
    fill(gathered, torch.roll(held, rank, 0) if not held.is_meta else held)


ALL_GATHERS: dict[str, Callable[[Comm, torch.Tensor, torch.Tensor, Tag], None]] = {
    "doubling": _gather_doubling,
    "ring": _gather_ring,
}
