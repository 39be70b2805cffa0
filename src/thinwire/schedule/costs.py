"""What a message costs on a channel: closed forms of all-reduce and of parameter servers.

They are for choosing groups and for `simulate`: continuous in the bytes, one straight line each,
which is what MG-WFBP and its kin are about. `thinwire.collectives.costs` has the exact times of
the collectives that thinwire runs, packet by packet.

Common arguments: `num_workers` >= 1; `latency`, seconds of one message between two neighbours, >= 0
(α); `rate`, bytes per second of each line and direction, > 0 (1/β). `InputError` outside of these.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from thinwire.errors import InputError

__all__ = [
    "Cost",
    "colocated_servers",
    "double_binary_tree",
    "fit_cost",
    "halving_doubling",
    "hierarchical",
    "pipelined_tree",
    "recursive_doubling",
    "ring",
    "separate_servers",
    "torus",
    "tree",
]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """A message of n bytes holds the channel for `startup + per_byte · n` seconds, one after the
    other, and is there `latency` seconds after it has left the channel.

    Args:
        startup: seconds, >= 0.
        per_byte: seconds, >= 0.
        latency: seconds that don't keep the next message waiting, >= 0.
        beside: speed of the channel while the device computes, over that while it doesn't; above 0,
            at most 1. Below 1 where both contend for the device or its bus.

    >>> Cost(startup=0.5, per_byte=0.1)(20)
    2.5
    """

    startup: float = 0.0
    per_byte: float = 0.0
    latency: float = 0.0
    beside: float = 1.0

    def __post_init__(self) -> None:
        for name in ("startup", "per_byte", "latency"):
            value = getattr(self, name)
            if not (value >= 0 and math.isfinite(value)):
                raise InputError(f"{name} = {value!r} seconds; it must be finite and >= 0")
        if not 0 < self.beside <= 1:
            raise InputError(f"beside = {self.beside!r}; above 0, at most 1")

    def __call__(self, nbytes: int) -> float:
        """Seconds that a message holds the channel while the device is idle."""
        return self.startup + self.per_byte * nbytes

    def slowed(self, beside: float) -> Cost:
        """The same at another speed beside computing."""
        return dataclasses.replace(self, beside=beside)


def fit_cost(nbytes: Sequence[int], seconds: Sequence[float]) -> Cost:
    """The straight line through measured messages, by least squares; a start-up that comes out
    below 0 is 0.

    Args:
        nbytes: of at least two messages of different size.
        seconds: what each took.

    >>> fit_cost([0, 100, 200], [1.0, 2.0, 3.0])
    Cost(startup=1.0, per_byte=0.01, latency=0.0, beside=1.0)
    """
    if len(nbytes) != len(seconds) or len(set(nbytes)) < 2:
        raise InputError(
            f"nbytes has {len(nbytes)} entries, seconds {len(seconds)}; as many of both, of at "
            "least two different sizes"
        )
    middle, height = sum(nbytes) / len(nbytes), sum(seconds) / len(seconds)
    spread = sum((x - middle) ** 2 for x in nbytes)
    rise = sum((x - middle) * (y - height) for x, y in zip(nbytes, seconds, strict=True))
    slope = max(0.0, rise / spread)
    return Cost(startup=max(0.0, height - slope * middle), per_byte=slope)


def ring(num_workers: int, latency: float, rate: float) -> Cost:
    """2(P-1)α + 2((P-1)/P)·n·β.

    >>> cost = ring(32, 0.436e-3, 1 / 9e-9)
    >>> round(1e3 * cost(4 * 25_557_032), 1)
    1809.6
    """
    _check(num_workers, latency, rate)
    steps = 2 * (num_workers - 1)
    return Cost(startup=steps * latency, per_byte=steps / num_workers / rate)


def recursive_doubling(num_workers: int, latency: float, rate: float) -> Cost:
    """log2 P·(α + n·β), rounded up to whole rounds: for small messages."""
    rounds = _rounds(num_workers, latency, rate)
    return Cost(startup=rounds * latency, per_byte=rounds / rate)


def halving_doubling(num_workers: int, latency: float, rate: float) -> Cost:
    """2·log2 P·α + 2((P-1)/P)·n·β at powers of two (Rabenseifner)."""
    rounds = _rounds(num_workers, latency, rate)
    share = 2 * (num_workers - 1) / num_workers
    return Cost(startup=2 * rounds * latency, per_byte=share / rate)


def tree(num_workers: int, latency: float, rate: float) -> Cost:
    """Binomial reduction, then broadcast: 2·log2 P·(α + n·β)."""
    rounds = _rounds(num_workers, latency, rate)
    return Cost(startup=2 * rounds * latency, per_byte=2 * rounds / rate)


def pipelined_tree(num_workers: int, latency: float, rate: float, chunk: int) -> Cost:
    """One tree in chunks of u bytes: 2(log2 P + n/u - 1)·(α + u·β).

    Args:
        num_workers: P.
        latency: α.
        rate: 1/β.
        chunk: u, bytes, >= 1.
    """
    rounds, step = _rounds(num_workers, latency, rate), _chunk(latency, rate, chunk)
    if rounds == 0:
        return Cost()
    return Cost(startup=2 * (rounds - 1) * step, per_byte=2 * step / chunk)


def double_binary_tree(num_workers: int, latency: float, rate: float, chunk: int) -> Cost:
    """Two trees with half of the data each, every worker an inner node of one of them at most:
    about 2·log2 P·(α + u·β) + 2·n·β, the latency of a tree at the rate of a ring.

    Args:
        num_workers: P.
        latency: α.
        rate: 1/β.
        chunk: u, bytes, >= 1.

    Reference: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast,
    reduction and scan", Parallel Computing 2009.
    """
    rounds, step = _rounds(num_workers, latency, rate), _chunk(latency, rate, chunk)
    return Cost(startup=2 * rounds * step, per_byte=2 / rate if rounds else 0.0)


def hierarchical(inside: Cost, across: Cost, per_node: int, sharing: int = 1) -> Cost:
    """Reduce-scatter in each node, all-reduce of the parts between nodes, all-gather in each node.

    Args:
        inside: all-reduce of a node's devices, its two halves together.
        across: all-reduce between one device of each node that has the line for itself.
        per_node: devices of a node, >= 1: each has a part of the bytes.
        sharing: devices that share a line, 1 to `per_node`.

    >>> inside, across = ring(4, 0.0, 10e9), ring(8, 0.0, 1e9)
    >>> [round(1e9 * hierarchical(inside, across, 4, sharing).per_byte, 3) for sharing in (1, 4)]
    [0.588, 1.9]
    """
    if per_node < 1:
        raise InputError(f"per_node = {per_node!r}; a node has 1 device or more")
    if not 1 <= sharing <= per_node:
        raise InputError(f"sharing = {sharing!r}; 1 to per_node = {per_node}")
    return Cost(
        startup=inside.startup + across.startup,
        per_byte=inside.per_byte + across.per_byte * sharing / per_node,
    )


def torus(rows: int, columns: int, latency: float, rate: float) -> Cost:
    """Reduce-scatter along the rows, all-reduce along the columns, all-gather along the rows:
    2(X-1)α + 2((X-1)/X)·n·β + 2(Y-1)α + 2((Y-1)/Y)·(n/X)·β, X the length of a row.

    Args:
        rows: Y, >= 1.
        columns: X, >= 1.
        latency: α.
        rate: 1/β.
    """
    along, down = ring(columns, latency, rate), ring(rows, latency, rate)
    return Cost(
        startup=along.startup + down.startup,
        per_byte=along.per_byte + down.per_byte / columns,
    )


def separate_servers(
    num_workers: int, num_servers: int, latency: float, rate: float
) -> tuple[Cost, Cost]:
    """Push and pull with servers on machines of their own, parameters spread evenly over them: the
    busier of a worker's line and a server's, P/S times the bytes, in each direction. Pull uses the
    other direction of both lines, so that the two pass beside each other.

    Args:
        num_workers: P.
        num_servers: S, >= 1.
        latency: of each direction.
        rate: of each line.

    >>> push, pull = separate_servers(8, 2, 1e-4, 1e9)
    >>> push == pull, push(10**9)
    (True, 4.0)
    """
    _check(num_workers, latency, rate)
    _check_servers(num_servers)
    one = Cost(per_byte=max(1.0, num_workers / num_servers) / rate, latency=latency)
    return one, one


def colocated_servers(
    num_workers: int, num_servers: int, latency: float, rate: float
) -> tuple[Cost]:
    """Push and pull with the servers on machines of workers: a line then carries what others push
    to its server, (P-1)/S of the bytes, and what its worker pulls from others, (S-1)/S.

    With as many servers as workers that is what a ring carries.

    >>> colocated_servers(8, 8, 0.0, 1e9)[0].per_byte == ring(8, 0.0, 1e9).per_byte
    True
    """
    _check(num_workers, latency, rate)
    _check_servers(num_servers)
    if num_servers > num_workers:
        raise InputError(f"num_servers = {num_servers!r}; at most num_workers = {num_workers}")
    if num_workers == 1:
        return (Cost(),)
    carried = (num_workers + num_servers - 2) / num_servers
    return (Cost(per_byte=max(1.0, carried) / rate, latency=2 * latency),)


def _check(num_workers: int, latency: float, rate: float) -> None:
    if num_workers < 1:
        raise InputError(f"num_workers = {num_workers!r}; it must be >= 1")
    if not (latency >= 0 and math.isfinite(latency)):
        raise InputError(f"latency = {latency!r} seconds; it must be finite and >= 0")
    if not rate > 0:
        raise InputError(f"rate = {rate!r} bytes per second; it must be > 0")


def _check_servers(num_servers: int) -> None:
    if num_servers < 1:
        raise InputError(f"num_servers = {num_servers!r}; it must be >= 1")


def _rounds(num_workers: int, latency: float, rate: float) -> int:
    _check(num_workers, latency, rate)
    return (num_workers - 1).bit_length()


def _chunk(latency: float, rate: float, chunk: int) -> float:
    if chunk < 1:
        raise InputError(f"chunk = {chunk!r} bytes; it must be >= 1")
    return latency + chunk / rate
