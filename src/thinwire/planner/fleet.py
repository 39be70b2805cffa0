"""Steps of up to tens of thousands of workers, all at once: when each worker is ready.

The virtual cluster runs a program per worker, which is exact and takes a fraction of a millisecond
per worker and step. Here a synchronous method is a list of rounds (`planner.rounds`), and each
round one operation on vectors over all workers, so that 10,000 workers cost about as much as ten.
Workers drift: nobody starts a step together unless they have waited for each other, and a node's
jitter is drawn anew for each step. On a uniform network the times are, to the nanosecond, those of
the virtual cluster's `queue` network, unless messages from several workers meet at one whose start
was another's: then the order in which they are let in is that of the rounds, which makes an
all-gather between machines of very unlike speed up to some percent too short. On other networks a
message has its share of every line on its path, as in a plan.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from thinwire.errors import InputError
from thinwire.planner.rounds import Round, Wire
from thinwire.planner.workload import mean_of

if TYPE_CHECKING:
    from thinwire.cluster import Cluster

__all__ = ["Fleet", "grow"]

NS = 1_000_000_000


def grow(cluster: Cluster, size: int) -> Cluster:
    """A cluster of `size` nodes: the given one's, again and again.

    Sites are repeated with their nodes, so a cluster that describes one rack with its uplink grows
    into a hall of racks. Links of single pairs are repeated within each copy.

    Args:
        cluster: what is repeated; cut off where its size does not divide `size`.
        size: 1 or more.

    Raises:
        InputError: a size below 1.
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InputError(f"nodes = {size!r}; allowed: a whole number, 1 or more")
    if size <= cluster.size:
        return cluster.select(range(size))
    nodes, sites, links = [], [], {}
    for copy in range(-(-size // cluster.size)):
        first = copy * cluster.size
        kept = cluster.nodes[: size - first]
        used = {node.site for node in kept}
        end = f"-{copy}" if copy else ""
        sites += [replace(s, name=s.name + end) for s in cluster.sites if s.name in used]
        for node in kept:
            site = node.site + end if node.site else ""
            nodes.append(replace(node, name=node.name + end, site=site))
        for (src, dst), link in cluster.links.items():
            if max(src, dst) < len(kept):
                links[first + src, first + dst] = link
    return replace(cluster, nodes=tuple(nodes), sites=tuple(sites), links=links)


@dataclass(frozen=True)
class _Leg:
    """A round as vectors over its messages; times in ns."""

    src: np.ndarray
    dst: np.ndarray
    latency: np.ndarray
    transfer: np.ndarray
    repeat: int
    segments: int

    @functools.cached_property
    def segment(self) -> np.ndarray:
        """Of each message, the ns for which one of its segments is on the line."""
        return _whole_ns(self.transfer / self.segments / NS)

    @functools.cached_property
    def is_steady_ring(self) -> bool:
        """Everybody sends to the next, and all messages take equally long."""
        return (
            self.repeat > 1
            and len(np.unique(self.latency)) == 1
            and len(np.unique(self.transfer)) == 1
        )


class Fleet:
    """When each worker of a cluster is ready for what comes next.

    Args:
        cluster: one worker per node; changing speeds and rates count by their average.
        seed: of the jitter.

    Attributes:
        ready: nanoseconds by worker, int64.
        waited: nanoseconds that each has waited for messages so far.
    """

    def __init__(self, cluster: Cluster, seed: int = 0):
        self.size = cluster.size
        self.ready = np.zeros(self.size, np.int64)
        self.waited = np.zeros(self.size, np.int64)
        self._cluster = cluster
        self._wire = Wire(cluster)
        self._egress = np.zeros(self.size, np.int64)
        self._ingress = np.zeros(self.size, np.int64)  # when the last message has come in
        self._came = np.zeros(self.size, np.int64)  # when it began to
        self._rng = np.random.default_rng(seed)
        self._sigma = np.array([math.sqrt(math.log1p(n.jitter**2)) for n in cluster.nodes])
        self._per_byte: dict[str, np.ndarray] = {}

    def seconds(self, moved: Mapping[str, float]) -> np.ndarray:
        """Seconds that each worker takes for so many bytes of each kind of memory-bound work."""
        total = np.zeros(self.size)
        for kind, nbytes in moved.items():
            if kind not in self._per_byte:
                self._per_byte[kind] = np.array([
                    n.passes(kind) * n.slowdown / (n.memory_rate * mean_of(n.speed))
                    for n in self._cluster.nodes
                ])  # fmt: skip
            total += nbytes * self._per_byte[kind]
        return total

    def spend(self, seconds: np.ndarray) -> None:
        """Every worker computes for so long, (P,), at its jitter."""
        if self._sigma.any():
            drawn = self._rng.standard_normal(self.size)
            seconds = seconds * np.exp(self._sigma * drawn - self._sigma**2 / 2)
        self.ready += _whole_ns(seconds)

    def legs(self, rounds: Sequence[Round]) -> list[_Leg]:
        """Rounds made ready for `exchange`; worth keeping."""
        return [self._leg(each) for each in rounds]

    def _leg(self, each: Round) -> _Leg:
        messages = list(self._wire.messages(each))
        columns = list(zip(*messages, strict=True)) if messages else [(), (), (), ()]
        return _Leg(
            np.array(columns[0], np.int64),
            np.array(columns[1], np.int64),
            np.round(np.array(columns[2]) * NS).astype(np.int64),
            _whole_ns(np.array(columns[3])),
            each.repeat,
            each.segments,
        )

    def exchange(
        self,
        legs: Iterable[_Leg],
        work: np.ndarray | None = None,
        prepare: np.ndarray | None = None,
        ahead: np.ndarray | None = None,
    ) -> None:
        """Everybody posts, waits and goes on, round by round.

        Args:
            legs: of `legs`.
            work: seconds, (P,), that who has received computes before the next round.
            prepare: seconds, (P,), that who sends computes first.
            ahead: seconds, (P,), by which the exchange may begin before the worker is ready, beside
                what it still computes.
        """
        free = self.ready.copy()
        if ahead is not None:
            self.ready = self.ready - np.floor(ahead * NS).astype(np.int64)
        begun = self.ready.copy()
        busy = np.zeros(self.size, np.int64)
        for leg in legs:
            if leg.is_steady_ring:
                self._ring(leg)
                continue
            if leg.segments > 1:
                self._segmented(leg)
                continue
            for _ in range(leg.repeat):
                if prepare is not None:
                    self._compute(leg.src, prepare, busy)
                self._round(leg)
                if work is not None:
                    self._compute(leg.dst, work, busy)
        self.waited += np.maximum(self.ready - np.maximum(free, begun) - busy, 0)
        if ahead is not None:
            self.ready = np.maximum(self.ready, free)

    def _compute(self, who: np.ndarray, seconds: np.ndarray, busy: np.ndarray) -> None:
        extra = _whole_ns(seconds[who])
        self.ready[who] += extra
        busy[who] += extra

    def _round(self, leg: _Leg) -> None:
        src, dst = leg.src, leg.dst
        start = np.maximum(self.ready[src], self._egress[src])
        self._egress[src] = start + leg.transfer
        first = start + leg.latency
        # One that has gone in before the last round's came at all doesn't wait for that.
        busy = first + leg.transfer > self._came[dst]
        begin = np.where(busy, np.maximum(first, self._ingress[dst]), first)
        arrived = begin + leg.transfer
        self._came[dst] = np.where(busy, begin, self._came[dst])
        self._ingress[dst] = np.maximum(self._ingress[dst], arrived)
        self.ready[dst] = np.maximum(self.ready[dst], arrived)

    def _segmented(self, leg: _Leg) -> None:
        """All rounds of messages in segments, each of which goes on when it has come."""
        src, dst, transfer = leg.src, leg.dst, leg.segment
        here = [self.ready.copy() for _ in range(leg.segments)]
        for _ in range(leg.repeat):
            for came in here:
                start = np.maximum(came[src], self._egress[src])
                self._egress[src] = start + transfer
                begin = np.maximum(start + leg.latency, self._ingress[dst])
                self._came[dst], self._ingress[dst] = begin, begin + transfer
                came[dst] = np.maximum(came[dst], begin + transfer)
        self.ready = np.maximum(self.ready, here[-1])

    def _ring(self, leg: _Leg) -> None:
        """All rounds of a ring at once. With S segments, T the time of one on the line and L the
        latency, segment s of round r of worker i begins at
        max over j <= r of begin(i-j) + (r·S + s)·T + j·(L - (S - 1)·T): a packet waits for the one
        before it or, j times, has come from the worker before."""
        latency, transfer = int(leg.latency[0]), int(leg.segment[0])
        others = (leg.segments - 1) * transfer
        step = int(leg.dst[0] - leg.src[0])  # to whom worker 0 sends
        begin = np.empty(self.size, np.int64)
        begin[leg.src] = np.maximum(self.ready[leg.src], self._egress[leg.src])
        last = _window_max(begin, leg.repeat, latency - others, step)
        last += (leg.repeat * leg.segments - 1) * transfer
        self._egress = last + transfer
        arrived = np.roll(last, step) + latency + transfer
        self._ingress, self._came = arrived, arrived - transfer
        self.ready = np.maximum(self.ready, arrived)


def _whole_ns(seconds: np.ndarray) -> np.ndarray:
    """Rounded up, but not for what is only the last bit of a division."""
    return np.ceil(seconds * NS - 1e-4).astype(np.int64)


def _window_max(values: np.ndarray, width: int, slope: int, step: int) -> np.ndarray:
    """max over 0 <= j < width of values[i - j·step] + j·slope, the indices going round."""
    found, have = values.copy(), 1
    while have < width:
        more = min(have, width - have)
        found = np.maximum(found, np.roll(found, more * step) + more * slope)
        have += more
    return found
