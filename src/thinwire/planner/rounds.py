"""What a collective costs on any cluster, from the rounds that it consists of.

`collectives.costs` has the closed forms for an idle uniform network. An uneven cluster has none, so
here a collective is a list of rounds, each a set of messages of one size that set out together
unless their sender still waits for something. A message's rate is its share of every link on its
path (both ends, the pair, the site's uplink and downlink) among the messages of its round. Each
node's egress and ingress pass one message after the other. On a uniform cluster the result is the
closed form, and the tests hold the two together.

This file imports no torch, so that a plan is printed at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thinwire.planner.workload import mean_of

if TYPE_CHECKING:
    from thinwire.cluster import Cluster

__all__ = [
    "Cost",
    "Round",
    "Wire",
    "all_gather",
    "all_reduces",
    "gtopk_tree",
    "halving_doubling",
    "ring",
    "segmented_ring",
    "tree",
]

# The segmented ring's segments of a chunk, and from which size of a chunk on all-reduces choose it,
# as in collectives/.
SEGMENTS, SEGMENTS_FROM = 4, 256 * 1024

# A packet's header and its part per buffer, as wire/packet.py lays them out: importing that would
# import torch.
_HEAD, _PER_BUFFER = 16, 8

Pairs = Iterable[tuple[int, int]]


@dataclass(frozen=True)
class Round:
    """Messages that travel at once.

    Args:
        nbytes: size of the largest.
        total: bytes of all of them together.
        pairs: yields (source, destination).
        repeat: how many times the round happens.
        segments: packets of which each message consists; in the next repetition each leaves as soon
            as it has come.
    """

    nbytes: float
    total: float
    pairs: Callable[[], Pairs]
    repeat: int = 1
    segments: int = 1


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

    def cost(self, rounds: Sequence[Round]) -> Cost:
        """The rounds one after the other."""
        total = sum(each.total * each.repeat for each in rounds)
        latency = self._elapsed(rounds, size_matters=False)
        seconds = self._elapsed(rounds, size_matters=True)
        return Cost(latency, max(0.0, seconds - latency), total)

    def _elapsed(self, rounds: Sequence[Round], size_matters: bool) -> float:
        """Seconds until the last node has what it needs."""
        size = self._cluster.size
        if self._uniform is not None and size & (size - 1) == 0:
            # All nodes are in step, so that only the sum over the rounds counts.
            latency, rate = self._uniform
            return sum(
                latency
                + (each.nbytes / rate if size_matters else 0.0)
                + (each.repeat - 1) * _pace(each, latency, each.nbytes / rate, size_matters)
                for each in rounds
            )
        ready, egress, ingress = [0.0] * size, [0.0] * size, [0.0] * size
        for each in rounds:
            before, pace = list(ready), 0.0
            for src, dst, latency, transfer in self.messages(each):
                seconds = transfer if size_matters else 0.0
                pace = max(pace, _pace(each, latency, transfer, size_matters))
                start = max(before[src], egress[src])
                egress[src] = start + seconds
                ingress[dst] = max(start + latency, ingress[dst]) + seconds
                ready[dst] = max(ready[dst], ingress[dst])
            if each.repeat > 1:
                # Every node waits for its neighbour, so the slowest pair sets the pace of all.
                took = max(ready) - max(before) if each.segments == 1 else pace
                ready = [max(ready) + (each.repeat - 1) * took] * size
        return max(ready)

    def messages(self, each: Round) -> Iterator[tuple[int, int, float, float]]:
        """Source, destination, latency and seconds on the way of each message."""
        if self._uniform is not None:
            latency, rate = self._uniform
            yield from ((src, dst, latency, each.nbytes / rate) for src, dst in each.pairs())
            return
        pairs = list(each.pairs())
        users = Counter(link for pair in pairs for link, _ in self.links(*pair))
        for src, dst in pairs:
            rate = min(limit / users[link] for link, limit in self.links(src, dst))
            yield src, dst, self._cluster.latency(src, dst), each.nbytes / rate

    def links(self, src: int, dst: int) -> list[tuple[tuple[str, object], float]]:
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


def _pace(each: Round, latency: float, transfer: float, size_matters: bool) -> float:
    """Seconds by which a repetition is later than the one before it: latency only counts where a
    message isn't on its way for longer than that."""
    hidden = transfer * (1 - 1 / each.segments)
    return (transfer if size_matters else 0.0) + max(0.0, latency - hidden)


def ring(size: int, nbytes: int, headers: bool = True) -> list[Round]:
    """Ring all-reduce of `nbytes` per worker: 2(P-1)·α + 2(P-1)/P·n·β."""
    if size < 2:
        return []
    header = _header(1, headers)
    pairs = _shift(size, 1)
    total = nbytes + size * header
    return [Round(_part(nbytes, size) + header, total, pairs, repeat=2 * (size - 1))]


def segmented_ring(size: int, nbytes: int, headers: bool = True) -> list[Round]:
    """The same with chunks in segments, which go on as they come: α + 2(P-1)/P·n·β where a chunk is
    on the line for longer than a segment and α."""
    if size < 2:
        return []
    header = _header(1, headers)
    chunk = SEGMENTS * (_part(nbytes, size * SEGMENTS) + header)
    total = nbytes + size * SEGMENTS * header
    return [Round(chunk, total, _shift(size, 1), repeat=2 * (size - 1), segments=SEGMENTS)]


def halving_doubling(size: int, nbytes: int, headers: bool = True) -> list[Round]:
    """Rabenseifner's all-reduce: 2·log2 P·α + 2(P-1)/P·n·β. `size` is a power of two."""
    header = _header(1, headers)
    halving = [
        Round(
            _part(nbytes, 1 << level) + header,
            size * (nbytes / (1 << level) + header),
            _partners(size, size >> level),
        )
        for level in range(1, size.bit_length())
    ]
    return [*halving, *reversed(halving)]


def tree(size: int, nbytes: int, headers: bool = True, buffers: int = 1) -> list[Round]:
    """Binomial reduce and broadcast: 2·log2 P·(α + n·β) at powers of two, never more elsewhere
    than with P rounded up to one."""
    whole = nbytes + _header(buffers, headers)
    up, down = [], []
    for distance in _distances(size):
        total = len(range(distance, size, 2 * distance)) * whole
        up.append(Round(whole, total, _branches(size, distance, up=True)))
        down.append(Round(whole, total, _branches(size, distance, up=False)))
    return [*up, *reversed(down)]


def all_gather(size: int, nbytes: int, headers: bool = True) -> list[Round]:
    """Sparse sets of `nbytes` by recursive doubling: ceil(log2 P)·α + (P-1)·n·β."""
    rounds = []
    for distance in _distances(size):
        blocks = min(distance, size - distance)
        part = blocks * nbytes + _header(2 * blocks, headers)
        rounds.append(Round(part, size * part, _shift(size, -distance)))
    return rounds


def gtopk_tree(size: int, nbytes: int, headers: bool = True) -> list[Round]:
    """Tree of top-k merges and a broadcast: 2·ceil(log2 P)·(α + n·β) with n = 8k bytes."""
    return tree(size, nbytes, headers, buffers=2)


def all_reduces(size: int, nbytes: int) -> dict[str, list[Round]]:
    """The algorithms that may be best: halving-doubling only pays at powers of two."""
    best_ring = segmented_ring if nbytes >= SEGMENTS_FROM * size else ring
    found = {"ring": best_ring(size, nbytes)}
    if size & (size - 1) == 0:
        found["halving-doubling"] = halving_doubling(size, nbytes)
    return {**found, "tree": tree(size, nbytes)}


def _header(buffers: int, headers: bool) -> int:
    return _HEAD + _PER_BUFFER * buffers if headers else 0


def _part(nbytes: int, parts: int) -> int:
    """The largest of so many runs of 4-byte elements."""
    return 4 * -(-nbytes // (4 * parts))


def _distances(size: int) -> list[int]:
    """1, 2, 4 … below `size`."""
    return [1 << i for i in range((size - 1).bit_length())]


def _shift(size: int, by: int) -> Callable[[], Pairs]:
    return lambda: ((i, (i + by) % size) for i in range(size))


def _partners(size: int, distance: int) -> Callable[[], Pairs]:
    return lambda: ((i, i ^ distance) for i in range(size))


def _branches(size: int, distance: int, up: bool) -> Callable[[], Pairs]:
    lower = range(distance, size, 2 * distance)
    return lambda: ((i, i - distance) if up else (i - distance, i) for i in lower)
