"""What each collective takes on an idle uniform network, in the virtual cluster's own arithmetic.

A message of n bytes takes round(latency·1e9) + ceil(n·1e9 / rate) nanoseconds, and a node's egress
and ingress pass one message after the other (link model `queue`; on an idle network `fair` agrees
wherever no two messages meet on a link). Each function gives the time from the common start to the
moment the last rank has finished, the waiting between equal ranks included. Where the ranks are a
power of two, and for rings, doubling gathers and the barrier at any number, these are the closed
forms of the literature, with α = latency and β = 1/rate; for other numbers of workers trees and
halving-doubling are recurrences over the schedule. `traffic` has the bytes of the same messages.

Common arguments: `num_workers` >= 1; `numel` elements per worker, >= 0; `latency` seconds, >= 0;
`rate` bytes per second, > 0; `itemsize` bytes per element; `header=False` leaves out the packet
headers, for comparison with published formulas. All raise `InputError` outside these ranges. Empty
dense tensors are not sent at all, by any collective.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from thinwire.collectives import _schedule as schedule
from thinwire.collectives._schedule import blocks_by_round, check_size, packets_of, rounds
from thinwire.errors import InputError
from thinwire.wire.packet import header_nbytes

__all__ = [
    "all_gather_buffers",
    "all_gather_doubling",
    "all_gather_ring",
    "all_gather_sparse",
    "all_reduce_halving_doubling",
    "all_reduce_ring",
    "all_reduce_segmented_ring",
    "all_reduce_tree",
    "barrier",
    "broadcast",
    "gather",
    "gtopk_tree",
    "message_ns",
    "oktopk",
    "parameter_server",
    "reduce",
    "reduce_scatter_ring",
    "transfer_ns",
]

NS = 1_000_000_000


def transfer_ns(nbytes: int, rate: float) -> int:
    """Nanoseconds in which a link of `rate` bytes/s passes `nbytes`.

    >>> transfer_ns(1000, 12.5e6)
    80000
    """
    return math.ceil(nbytes * NS / rate)


def message_ns(nbytes: int, latency: float, rate: float) -> int:
    """Nanoseconds from the post to the arrival of a lone message.

    >>> message_ns(1000, 0.001, 12.5e6)
    1080000
    """
    return round(latency * NS) + transfer_ns(nbytes, rate)


@dataclass(frozen=True)
class Network:
    """A uniform network, checked once per question."""

    latency: float
    rate: float
    header: bool

    def size(self, payload: int, num_buffers: int = 1) -> int:
        """Bytes of a packet."""
        return payload + (header_nbytes(num_buffers) if self.header else 0)

    def message(self, payload: int, num_buffers: int = 1) -> int:
        """Nanoseconds of a lone packet."""
        return message_ns(self.size(payload, num_buffers), self.latency, self.rate)

    def transfer(self, payload: int, num_buffers: int = 1) -> int:
        """Nanoseconds that a packet keeps a link busy."""
        return transfer_ns(self.size(payload, num_buffers), self.rate)

    def run(self, plan: schedule.Schedule) -> float:
        """Seconds of a schedule, whose sizes include headers."""
        ns = schedule.elapsed_ns(
            plan, round(self.latency * NS), lambda n: transfer_ns(n, self.rate)
        )
        return ns / NS


def _network(num_workers: int, numel: int, latency: float, rate: float, header: bool) -> Network:
    check_size(num_workers, numel)
    if not (latency >= 0 and math.isfinite(latency)):
        raise InputError(f"latency = {latency!r} seconds; it must be finite and >= 0")
    if not rate > 0:
        raise InputError(f"rate = {rate!r} bytes per second; it must be > 0")
    return Network(latency, rate, header)


def _is_power(num_workers: int) -> bool:
    return num_workers & (num_workers - 1) == 0


def all_reduce_ring(
    num_workers: int, numel: int, latency: float, rate: float, *, itemsize: int = 4,
    header: bool = True,
) -> float:  # fmt: skip
    """2(P-1) steps of the largest chunk: 2(P-1)α + 2((P-1)/P)·n·β.

    >>> round(1e3 * all_reduce_ring(32, 25_557_032, 0.436e-3, 1 / 9e-9, header=False), 1)
    1809.6
    """
    return 2 * reduce_scatter_ring(
        num_workers, numel, latency, rate, itemsize=itemsize, header=header
    )


def all_reduce_segmented_ring(
    num_workers: int, numel: int, latency: float, rate: float, *, itemsize: int = 4,
    header: bool = True,
) -> float:  # fmt: skip
    """2((P-1)/P)·n·β + α where a chunk takes longer than a segment and α, and P times the number of
    segments divides `numel`: latency then counts once only.

    Where it does not divide it, a recurrence: smaller segments run ahead.

    >>> round(1e3 * all_reduce_segmented_ring(32, 1 << 25, 0.4e-3, 1 / 9e-9, header=False), 1)
    2340.8
    """
    net = _network(num_workers, numel, latency, rate, header)
    if num_workers == 1 or not numel:
        return 0.0
    if numel % (num_workers * schedule.SEGMENTS):
        return net.run(
            schedule.segmented_ring(num_workers, numel, lambda n: net.size(n * itemsize))
        )
    payload = numel // (num_workers * schedule.SEGMENTS) * itemsize
    segment, chunk = net.message(payload), schedule.SEGMENTS * net.transfer(payload)
    hops = 2 * (num_workers - 1)
    return ((hops - 1) * max(chunk, segment) + chunk + round(latency * NS)) / NS


def reduce_scatter_ring(
    num_workers: int, numel: int, latency: float, rate: float, *, itemsize: int = 4,
    header: bool = True,
) -> float:  # fmt: skip
    """P-1 steps of the largest chunk: (P-1)α + ((P-1)/P)·n·β."""
    net = _network(num_workers, numel, latency, rate, header)
    if not numel:
        return 0.0
    return (num_workers - 1) * net.message(-(-numel // num_workers) * itemsize) / NS


def all_reduce_halving_doubling(
    num_workers: int, numel: int, latency: float, rate: float, *, itemsize: int = 4,
    header: bool = True,
) -> float:  # fmt: skip
    """2·log2 P·α + 2((P-1)/P)·n·β where P is a power of two that divides `numel`.

    Otherwise a recurrence: ranks with smaller parts run ahead, and their messages may meet others.
    """
    net = _network(num_workers, numel, latency, rate, header)
    if not numel:
        return 0.0
    if not _is_power(num_workers) or numel % num_workers:
        return net.run(
            schedule.halving_doubling(num_workers, numel, lambda n: net.size(n * itemsize))
        )
    levels = range(1, rounds(num_workers) + 1)
    return 2 * sum(net.message(numel // 2**i * itemsize) for i in levels) / NS


def _tree(net: Network, num_workers: int, payload: int, num_buffers: int) -> float:
    if _is_power(num_workers):
        return 2 * rounds(num_workers) * net.message(payload, num_buffers) / NS
    nbytes = net.size(payload, num_buffers)
    up, down = schedule.reduce(num_workers, nbytes), schedule.broadcast(num_workers, nbytes)
    return net.run([a + b for a, b in zip(up, down, strict=True)])


def all_reduce_tree(
    num_workers: int, numel: int, latency: float, rate: float, *, itemsize: int = 4,
    header: bool = True,
) -> float:  # fmt: skip
    """Binomial reduction, then broadcast: 2·log2 P·(α + n·β) at powers of two."""
    net = _network(num_workers, numel, latency, rate, header)
    return _tree(net, num_workers, numel * itemsize, 1) if numel else 0.0


def reduce(
    num_workers: int, numel: int, latency: float, rate: float, *, itemsize: int = 4,
    header: bool = True,
) -> float:  # fmt: skip
    """Binomial reduction to one rank: log2 P·(α + n·β) at powers of two."""
    net = _network(num_workers, numel, latency, rate, header)
    if not numel:
        return 0.0
    if _is_power(num_workers):
        return rounds(num_workers) * net.message(numel * itemsize) / NS
    return net.run(schedule.reduce(num_workers, net.size(numel * itemsize)))


def broadcast(
    num_workers: int, numel: int, latency: float, rate: float, *, itemsize: int = 4,
    header: bool = True,
) -> float:  # fmt: skip
    """Binomial broadcast: log2 P·(α + n·β) at powers of two, never more than ceil(log2 P) of them.

    With h the largest power of two below P, the root's first message starts a tree of P-h ranks
    while the root goes on with h: f(P) = max(α + n·β + f(P-h), n·β + f(h)).
    """
    net = _network(num_workers, numel, latency, rate, header)
    if not numel:
        return 0.0
    message, transfer = net.message(numel * itemsize), net.transfer(numel * itemsize)

    def finish(size: int) -> int:
        if _is_power(size):
            return rounds(size) * message
        half = schedule.power_below(size)
        return max(message + finish(size - half), transfer + finish(half))

    return finish(num_workers) / NS


def gather(
    num_workers: int, numel: int, latency: float, rate: float, *, itemsize: int = 4,
    header: bool = True,
) -> float:  # fmt: skip
    """Every rank straight to the root, whose ingress is the limit: α + (P-1)·n·β."""
    net = _network(num_workers, numel, latency, rate, header)
    if num_workers == 1 or not numel:
        return 0.0
    return (round(latency * NS) + (num_workers - 1) * net.transfer(numel * itemsize)) / NS


def parameter_server(
    num_remote: int, numel: int, latency: float, rate: float, *, itemsize: int = 4,
    header: bool = True,
) -> float:  # fmt: skip
    """All push to one server, which answers all: 2(α + R·n·β), R being the number of workers on
    other machines than the server, >= 0."""
    return 2 * gather(num_remote + 1, numel, latency, rate, itemsize=itemsize, header=header)


def all_gather_ring(
    num_workers: int, numel: int, latency: float, rate: float, *, itemsize: int = 4,
    header: bool = True,
) -> float:  # fmt: skip
    """P-1 steps: (P-1)(α + n·β)."""
    net = _network(num_workers, numel, latency, rate, header)
    return (num_workers - 1) * net.message(numel * itemsize) / NS if numel else 0.0


def all_gather_doubling(
    num_workers: int, numel: int, latency: float, rate: float, *, itemsize: int = 4,
    header: bool = True,
) -> float:  # fmt: skip
    """Recursive doubling in Bruck's form: ceil(log2 P)·α + (P-1)·n·β at any P."""
    net = _network(num_workers, numel, latency, rate, header)
    if not numel:
        return 0.0
    each = numel * itemsize
    return sum(net.message(each * blocks) for blocks in blocks_by_round(num_workers)) / NS


def all_gather_buffers(
    num_workers: int, nbytes: int, latency: float, rate: float, *, num_buffers: int = 2,
    header: bool = True,
) -> float:  # fmt: skip
    """The same with that many buffers of `nbytes` together from each rank: ceil(log2 P)·α +
    (P-1)·n·β."""
    net = _network(num_workers, nbytes, latency, rate, header)
    total = 0
    for blocks in blocks_by_round(num_workers):
        total += round(latency * NS)
        total += sum(
            net.transfer(nbytes * n, num_buffers * n) for n in packets_of(blocks, num_buffers)
        )
    return total / NS


def all_gather_sparse(
    num_workers: int, k: int, latency: float, rate: float, *, itemsize: int = 8,
    header: bool = True,
) -> float:  # fmt: skip
    """The same with k entries from each rank: ceil(log2 P)·α + (P-1)·8k·β. `itemsize` is that
    of an entry, index and value; coded sets are `all_gather_buffers` of their bytes.

    >>> round(1e3 * all_gather_sparse(32, 25_557, 0.436e-3, 1 / 9e-9, header=False), 2)
    59.22
    """
    return all_gather_buffers(num_workers, k * itemsize, latency, rate, header=header)


def oktopk(
    num_workers: int, k: int, latency: float, rate: float, *,
    entries: Callable[[int], int] | None = None, header: bool = True,
) -> float:  # fmt: skip
    """Entries to the owners of their regions, numbers of survivors, survivors to all; with a known
    threshold, and regions that split k entries of each worker and k of the sum evenly:
    (1 + 2·ceil(log2 P))·α + 2((P-1)/P)·8k·β + (P-1)·8β where P divides k, else a recurrence.
    `entries` gives the bytes of so many entries where they are not 8 each, but coded within their
    region; the work of coding is not in it.

    >>> round(1e3 * oktopk(32, 25_600, 0.436e-3, 1 / 9e-9, header=False), 2)
    8.37
    """
    net = _network(num_workers, k, latency, rate, header)
    if num_workers == 1:
        return 0.0
    if k % num_workers:
        return net.run(schedule.oktopk(num_workers, k, net.size, entries))
    share = entries(k // num_workers) if entries else k // num_workers * 8
    split = round(latency * NS) + (num_workers - 1) * net.transfer(share, 2)
    counts = all_gather_doubling(num_workers, 1, latency, rate, itemsize=8, header=header)
    gather = all_gather_buffers(num_workers, share, latency, rate, header=header)
    return split / NS + counts + gather


def gtopk_tree(
    num_workers: int, k: int, latency: float, rate: float, *, itemsize: int = 8,
    header: bool = True,
) -> float:  # fmt: skip
    """Top-k merges up the tree, then the result down: 2·log2 P·(α + 8k·β) at powers of two.
    `itemsize` is that of an entry, index and value.

    >>> round(1e3 * gtopk_tree(32, 25_557, 0.436e-3, 1 / 9e-9, header=False), 2)
    22.76
    """
    net = _network(num_workers, k, latency, rate, header)
    return _tree(net, num_workers, k * itemsize, 2)


def barrier(num_workers: int, latency: float, rate: float, *, header: bool = True) -> float:
    """ceil(log2 P) rounds of empty packets."""
    net = _network(num_workers, 0, latency, rate, header)
    return rounds(num_workers) * net.message(0, 0) / NS
