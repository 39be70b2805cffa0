"""What a collective costs on any cluster, from the rounds that it consists of.

`collectives.costs` has the closed forms for an idle uniform network. An uneven cluster has none, so
here a collective is a list of rounds, each a set of messages of one size that travel at once:
a round lasts as long as its slowest message, whose rate is its share of every link on its path
(both ends, the pair, the site's uplink and downlink). On a uniform cluster the sum of the rounds is
the closed form, and the tests hold the two together. Rounds are taken to start together, which is
slightly pessimistic where only some pairs are slow.

This file imports no torch, so that a plan is printed at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thinwire.planner.workload import mean_of

if TYPE_CHECKING:
    from thinwire.cluster import Cluster

__all__ = [
    "ALL_REDUCES",
    "Cost",
    "Round",
    "Wire",
    "all_gather",
    "gtopk_tree",
    "halving_doubling",
    "ring",
    "tree",
]

# Headers of packets with one and two buffers, as wire/packet.py lays them out.
DENSE_HEADER, SPARSE_HEADER = 24, 32

Pairs = Iterable[tuple[int, int]]


@dataclass(frozen=True)
class Round:
    """Messages that travel at once.

    Args:
        nbytes: size of the largest.
        total: bytes of all of them together.
        pairs: yields (source, destination).
        repeat: how many times the round happens.
    """

    nbytes: float
    total: float
    pairs: Callable[[], Pairs]
    repeat: int = 1


@dataclass(frozen=True)
class Cost:
    """Seconds of a collective, in its two parts, and bytes sent by all workers together."""

    latency: float = 0.0
    transfer: float = 0.0
    total_bytes: float = 0.0

    @property
    def seconds(self) -> float:
        """Start to end."""
        return self.latency + self.transfer


class Wire:
    """The network of a cluster, asked for the cost of rounds.

    Args:
        cluster: changing rates count by their average.
    """

    def __init__(self, cluster: Cluster):
        self._cluster = cluster
        self._uniform = cluster.uniform()
        self._egress = [n.egress * mean_of(n.egress_scale) for n in cluster.nodes]
        self._ingress = [n.ingress * mean_of(n.ingress_scale) for n in cluster.nodes]

    def cost(self, rounds: Iterable[Round]) -> Cost:
        """The rounds one after the other."""
        latency = transfer = total = 0.0
        for each in rounds:
            alpha, seconds = self._slowest(each)
            latency += alpha * each.repeat
            transfer += seconds * each.repeat
            total += each.total * each.repeat
        return Cost(latency, transfer, total)

    def _slowest(self, each: Round) -> tuple[float, float]:
        """Latency and transfer time of the message that ends the round."""
        if self._uniform is not None:
            latency, rate = self._uniform
            return latency, each.nbytes / rate
        pairs = list(each.pairs())
        users = Counter(link for pair in pairs for link, _ in self._links(*pair))
        latest = (0.0, 0.0)
        for src, dst in pairs:
            rate = min(limit / users[link] for link, limit in self._links(src, dst))
            found = (self._cluster.latency(src, dst), each.nbytes / rate)
            if sum(found) > sum(latest):
                latest = found
        return latest

    def _links(self, src: int, dst: int) -> list[tuple[tuple[str, object], float]]:
        """Every link on the path with its rate, bytes/s."""
        links: list[tuple[tuple[str, object], float]] = [
            (("egress", src), self._egress[src]),
            (("ingress", dst), self._ingress[dst]),
        ]
        pair = self._cluster.pair_rate(src, dst)
        if pair is not None:
            links.append((("pair", (src, dst)), pair))
        leaves, enters = self._cluster.path_sites(src, dst)
        if leaves is not None and leaves.uplink is not None:
            links.append((("up", leaves.name), leaves.uplink))
        if enters is not None and enters.downlink is not None:
            links.append((("down", enters.name), enters.downlink))
        return links


def ring(size: int, nbytes: float, header: int = DENSE_HEADER) -> list[Round]:
    """Ring all-reduce of `nbytes` per worker: 2(P-1)·α + 2(P-1)/P·n·β."""
    if size < 2:
        return []
    chunk = nbytes / size
    total = nbytes + size * header
    return [
        Round(chunk + header, total, lambda: ((i, (i + 1) % size) for i in range(size)),
              2 * (size - 1))
    ]  # fmt: skip


def halving_doubling(size: int, nbytes: float, header: int = DENSE_HEADER) -> list[Round]:
    """Rabenseifner's all-reduce: 2·log2 P·α + 2(P-1)/P·n·β at powers of two.

    Otherwise the surplus workers first give theirs to a partner and get the result at the end.
    """
    core = _power_below(size)
    rounds, part, distance = [], nbytes, core // 2
    while distance:
        part /= 2
        rounds.append(
            Round(part + header, core * (part + header), _partners(core, distance), repeat=2)
        )
        distance //= 2
    surplus = size - core
    if surplus:
        whole = nbytes + header
        rounds.append(
            Round(whole, surplus * whole, lambda: ((core + i, i) for i in range(surplus)))
        )
        rounds.append(
            Round(whole, surplus * whole, lambda: ((i, core + i) for i in range(surplus)))
        )
    return rounds


def tree(size: int, nbytes: float, header: int = DENSE_HEADER) -> list[Round]:
    """Binomial reduce and broadcast: 2·ceil(log2 P)·(α + n·β)."""
    whole = nbytes + header
    rounds = []
    for distance in _distances(size):
        count = len(range(distance, size, 2 * distance))
        rounds.append(Round(whole, count * whole, _up(size, distance)))
        rounds.append(Round(whole, count * whole, _down(size, distance)))
    return rounds


def all_gather(size: int, nbytes: float, header: int = SPARSE_HEADER) -> list[Round]:
    """Recursive doubling: ceil(log2 P)·α + (P-1)·n·β; Bruck's shifts where P is no power of two."""
    rounds = []
    for distance in _distances(size):
        blocks = min(distance, size - distance)
        part = blocks * nbytes + header
        exchange = _partners if _power_below(size) == size else _shift
        rounds.append(Round(part, size * part, exchange(size, distance)))
    return rounds


def gtopk_tree(size: int, nbytes: float, header: int = SPARSE_HEADER) -> list[Round]:
    """Tree of top-k merges and a broadcast: 2·ceil(log2 P)·(α + n·β) with n = 8k bytes."""
    return tree(size, nbytes, header)


ALL_REDUCES = {"ring": ring, "halving-doubling": halving_doubling, "tree": tree}


def _power_below(size: int) -> int:
    return 1 << (size.bit_length() - 1)


def _distances(size: int) -> list[int]:
    """1, 2, 4 … below `size`."""
    return [1 << r for r in range((size - 1).bit_length())]


def _partners(size: int, distance: int) -> Callable[[], Pairs]:
    return lambda: ((i, i ^ distance) for i in range(size))


def _shift(size: int, distance: int) -> Callable[[], Pairs]:
    return lambda: ((i, (i - distance) % size) for i in range(size))


def _up(size: int, distance: int) -> Callable[[], Pairs]:
    return lambda: ((i, i - distance) for i in range(distance, size, 2 * distance))


def _down(size: int, distance: int) -> Callable[[], Pairs]:
    return lambda: ((i - distance, i) for i in range(distance, size, 2 * distance))
