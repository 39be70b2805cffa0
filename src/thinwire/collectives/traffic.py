"""How many bytes each rank sends in a collective: the other half of `costs`.

Every function has the name and the arguments of its companion in `costs`, without latency and rate,
and returns a tuple, by rank, of the bytes that `Meter.sent` counts. A plan may quote their maximum
or mean; a run quotes its meters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from thinwire.collectives import _schedule as schedule
from thinwire.collectives._schedule import blocks_by_round, check_size, packets_of, rounds
from thinwire.collectives.dense import choose_all_reduce
from thinwire.wire.packet import header_nbytes

__all__ = [
    "added",
    "all_gather_buffers",
    "all_gather_doubling",
    "all_gather_ring",
    "all_gather_sparse",
    "all_reduce",
    "all_reduce_halving_doubling",
    "all_reduce_ring",
    "all_reduce_segmented_ring",
    "all_reduce_tree",
    "barrier",
    "broadcast",
    "gather",
    "gtopk_tree",
    "oktopk",
    "parameter_server",
    "reduce",
    "reduce_scatter_ring",
]


def _size(payload: int, num_buffers: int, header: bool) -> int:
    return payload + (header_nbytes(num_buffers) if header else 0)


def _dense(numel: int, itemsize: int, header: bool) -> int:
    """Bytes of a packet with a dense tensor; an empty one is not sent."""
    return _size(numel * itemsize, 1, header) if numel else 0


def _chunks(num_workers: int, numel: int, itemsize: int, header: bool) -> list[int]:
    """Bytes of the ring's chunks as packets."""
    return [_dense(n, itemsize, header) for n in schedule.dealt(numel, num_workers)]


def added(each: Iterable[Sequence[int]]) -> list[int]:
    """Bytes by rank of several exchanges together, at least one."""
    return [sum(of_rank) for of_rank in zip(*each, strict=True)]


def all_reduce(num_workers: int, numel: int, *, itemsize: int = 4) -> tuple[int, ...]:
    """Of the algorithm that `auto` chooses."""
    named = {
        "halving_doubling": all_reduce_halving_doubling,
        "ring": all_reduce_ring,
        "segmented_ring": all_reduce_segmented_ring,
        "tree": all_reduce_tree,
    }
    chosen = named[choose_all_reduce(num_workers, numel * itemsize)]
    return chosen(num_workers, numel, itemsize=itemsize)


def all_reduce_ring(
    num_workers: int, numel: int, *, itemsize: int = 4, header: bool = True
) -> tuple[int, ...]:
    """2((P-1)/P)·n each, to within a chunk."""
    check_size(num_workers, numel)
    return _twice_round(_chunks(num_workers, numel, itemsize, header))


def all_reduce_segmented_ring(
    num_workers: int, numel: int, *, itemsize: int = 4, header: bool = True
) -> tuple[int, ...]:
    """As of the ring, with a header for each segment."""
    check_size(num_workers, numel)
    chunks = schedule.segmented_chunks(num_workers, numel)
    return _twice_round([sum(_dense(n, itemsize, header) for n in each) for each in chunks])


def _twice_round(chunks: Sequence[int]) -> tuple[int, ...]:
    """Each rank passes on all chunks twice, but never the one whose last stop it is."""
    size, whole = len(chunks), sum(chunks)
    return tuple(
        2 * whole - chunks[r] - chunks[(r + 1) % size] if size > 1 else 0 for r in range(size)
    )


def reduce_scatter_ring(
    num_workers: int, numel: int, *, itemsize: int = 4, header: bool = True
) -> tuple[int, ...]:
    """((P-1)/P)·n each, to within a chunk."""
    check_size(num_workers, numel)
    chunks = _chunks(num_workers, numel, itemsize, header)
    return tuple(sum(chunks) - chunk for chunk in chunks)


def all_reduce_halving_doubling(
    num_workers: int, numel: int, *, itemsize: int = 4, header: bool = True
) -> tuple[int, ...]:
    """2((P-1)/P)·n at powers of two; otherwise the folded ranks send n, their partners n more."""
    check_size(num_workers, numel)
    plan = schedule.halving_doubling(num_workers, numel, lambda n: _dense(n, itemsize, header))
    return schedule.sent_bytes(plan)


def _tree(num_workers: int, nbytes: int) -> tuple[int, ...]:
    up = schedule.sent_bytes(schedule.reduce(num_workers, nbytes))
    down = schedule.sent_bytes(schedule.broadcast(num_workers, nbytes))
    return tuple(a + b for a, b in zip(up, down, strict=True))


def all_reduce_tree(
    num_workers: int, numel: int, *, itemsize: int = 4, header: bool = True
) -> tuple[int, ...]:
    """n from a leaf, ceil(log2 P)·n from the root."""
    check_size(num_workers, numel)
    return _tree(num_workers, _dense(numel, itemsize, header))


def reduce(
    num_workers: int, numel: int, *, itemsize: int = 4, header: bool = True
) -> tuple[int, ...]:
    """n from every rank but the root, here rank 0."""
    check_size(num_workers, numel)
    nbytes = _dense(numel, itemsize, header)
    return schedule.sent_bytes(schedule.reduce(num_workers, nbytes))


def broadcast(
    num_workers: int, numel: int, *, itemsize: int = 4, header: bool = True
) -> tuple[int, ...]:
    """n per child in the tree, here with root 0."""
    check_size(num_workers, numel)
    nbytes = _dense(numel, itemsize, header)
    return schedule.sent_bytes(schedule.broadcast(num_workers, nbytes))


def gather(
    num_workers: int, numel: int, *, itemsize: int = 4, header: bool = True
) -> tuple[int, ...]:
    """n from every rank but the root, here rank 0."""
    check_size(num_workers, numel)
    nbytes = _dense(numel, itemsize, header)
    return (0, *[nbytes] * (num_workers - 1))


def parameter_server(
    num_remote: int, numel: int, *, itemsize: int = 4, header: bool = True
) -> tuple[int, ...]:
    """n from each remote worker; last, R·n from the server."""
    check_size(num_remote + 1, numel)
    nbytes = _dense(numel, itemsize, header)
    return (*[nbytes] * num_remote, num_remote * nbytes)


def all_gather_ring(
    num_workers: int, numel: int, *, itemsize: int = 4, header: bool = True
) -> tuple[int, ...]:
    """(P-1)·n each."""
    check_size(num_workers, numel)
    return ((num_workers - 1) * _dense(numel, itemsize, header),) * num_workers


def all_gather_doubling(
    num_workers: int, numel: int, *, itemsize: int = 4, header: bool = True
) -> tuple[int, ...]:
    """(P-1)·n each, in ceil(log2 P) packets."""
    check_size(num_workers, numel)
    sent = sum(_dense(numel * blocks, itemsize, header) for blocks in blocks_by_round(num_workers))
    return (sent,) * num_workers


def all_gather_buffers(
    num_workers: int, nbytes: int, *, num_buffers: int = 2, header: bool = True
) -> tuple[int, ...]:
    """(P-1)·n each."""
    check_size(num_workers, nbytes)
    sent = 0
    for blocks in blocks_by_round(num_workers):
        for n in packets_of(blocks, num_buffers):
            sent += _size(nbytes * n, num_buffers * n, header)
    return (sent,) * num_workers


def all_gather_sparse(
    num_workers: int, k: int, *, itemsize: int = 8, header: bool = True
) -> tuple[int, ...]:
    """(P-1)·8k each. Coded sets are `all_gather_buffers` of their bytes."""
    return all_gather_buffers(num_workers, k * itemsize, header=header)


def oktopk(
    num_workers: int,
    k: int,
    *,
    entries: Callable[[int], int] | None = None,
    header: bool = True,
) -> tuple[int, ...]:
    """2((P-1)/P)·8k each and P-1 numbers of 8 bytes, to within an entry. `entries` gives the bytes
    of so many entries where they are not 8 each, but coded within their region."""
    check_size(num_workers, k)
    plan = schedule.oktopk(num_workers, k, lambda n, buffers: _size(n, buffers, header), entries)
    return schedule.sent_bytes(plan)


def gtopk_tree(
    num_workers: int, k: int, *, itemsize: int = 8, header: bool = True
) -> tuple[int, ...]:
    """8k from a leaf, ceil(log2 P)·8k from rank 0."""
    check_size(num_workers, k)
    return _tree(num_workers, _size(k * itemsize, 2, header))


def barrier(num_workers: int, *, header: bool = True) -> tuple[int, ...]:
    """ceil(log2 P) empty packets each."""
    check_size(num_workers, 0)
    return (rounds(num_workers) * _size(0, 0, header),) * num_workers
