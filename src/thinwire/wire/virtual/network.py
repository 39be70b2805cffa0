"""What the virtual network does with a message: two link models over one cluster description.

`fair` (the default): every message is a stream; streams of different pairs share links max-min
fairly, those of one pair go one after the other. This is what TCP does on real shaped links.

`queue`: each egress and each ingress serves first come, first served, cut-through. Cheaper, and the
model in which the recurrences of `collectives.costs` are exact for any number of workers.

On an idle path both give the same time: latency + ceil(bytes / slowest rate) nanoseconds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from thinwire.cluster import Cluster, Trace
from thinwire.wire.base import Posted
from thinwire.wire.packet import Packet
from thinwire.wire.virtual.clock import NS, Clock, to_ns
from thinwire.wire.virtual.endpoint import Endpoint

__all__ = ["LOCAL_RATE", "Deliver", "FairNetwork", "Message", "Network", "QueueNetwork"]

LOCAL_RATE = 10e9
"""Bytes per second between two endpoints of one machine: a copy in memory."""


class Message(Posted):
    """A packet on its way, which is also what `post` returns.

    Attributes:
        began: when it was handed to the network, ns.
        left_at: set where the network knows beforehand when it will leave.
    """

    # One object a message, for there are millions; the fair network keeps its stream here, too.
    __slots__ = ("began", "dst", "left_at", "nbytes", "packet", "pair", "rate", "remaining",
                 "since", "src", "tag", "version")  # fmt: skip

    def __init__(self, src: Endpoint, dst: Endpoint, packet: Packet, nbytes: int, tag: Any):
        self.src = src
        self.dst = dst
        self.packet = packet
        self.nbytes = nbytes
        self.tag = tag
        self.began = 0
        self.left_at: int | None = None


Deliver = Callable[[Message], None]


class Network(Protocol):
    """Carries messages between nodes."""

    def send(self, message: Message) -> None:
        """Take a message: have it delivered when it has arrived, and when its last byte has left
        call its `mark_left()`, or tell the time now in `left_at`."""
        ...


class _Latencies:
    """One-way latencies in nanoseconds, with the cluster's jitter."""

    def __init__(self, cluster: Cluster, seed: int):
        self._cluster = cluster
        self._known: dict[tuple[int, int], int] = {}
        self._last: dict[tuple[int, int], int] = {}
        self._rng = np.random.default_rng(seed) if cluster.latency_jitter > 0 else None

    def arrival(self, src: int, dst: int, left: int) -> int:
        """When a message that left at `left` arrives; messages of a pair keep their order."""
        latency = self._known.get((src, dst))
        if latency is None:
            latency = self._known[src, dst] = to_ns(self._cluster.latency(src, dst))
        if self._rng is None:
            return left + latency
        factor = 1.0 + float(self._rng.normal(0.0, self._cluster.latency_jitter))
        time = max(left + round(latency * max(0.0, factor)), self._last.get((src, dst), 0))
        self._last[src, dst] = time
        return time


class _Server:
    """An egress, an ingress, a site's line or a pair's own path: one message after the other."""

    __slots__ = ("free", "rate", "scale")

    def __init__(self, rate: float, scale: Trace | None = None):
        self.rate = rate
        self.scale = scale
        self.free = 0

    def serve(self, start: int, nbytes: int) -> int:
        """When `nbytes` that come at `start` or later have passed, after all earlier messages."""
        if start < self.free:
            start = self.free
        if self.scale is None:
            end = start + math.ceil(nbytes * NS / self.rate)
        else:
            end = math.ceil(self.scale.finish(start / NS, nbytes / self.rate) * NS)
        self.free = end
        return end


class QueueNetwork:
    """First come, first served at each egress and ingress; see the module."""

    def __init__(self, clock: Clock, cluster: Cluster, deliver: Deliver, seed: int = 0):
        self._clock = clock
        self._deliver = deliver
        self._cluster = cluster
        self._latencies = _Latencies(cluster, seed)
        self._egress = [_Server(n.egress, n.egress_scale) for n in cluster.nodes]
        self._ingress = [_Server(n.ingress, n.ingress_scale) for n in cluster.nodes]
        self._sites: dict[tuple[str, str], _Server] = {}
        self._between: dict[tuple[int, int], tuple[_Server, ...]] = {}

    def send(self, message: Message) -> None:
        """See `Network`."""
        clock, nbytes = self._clock, message.nbytes
        src, dst = message.src.node, message.dst.node
        if src == dst:
            message.mark_left()
            clock.at(clock.now + math.ceil(nbytes * NS / LOCAL_RATE), self._deliver, message)
            return
        egress = self._egress[src]
        start = max(clock.now, egress.free)
        message.left_at = through = egress.serve(start, nbytes)
        if message.awaited:  # a packet was told to follow this one before it could go
            clock.at(through, message.mark_left)
        # A message can't get through faster than the slowest part of its path lets it.
        for server in self._middle(src, dst):
            through = max(through, server.serve(start, nbytes))
        first = self._latencies.arrival(src, dst, start)
        arrived = max(self._ingress[dst].serve(first, nbytes), through + first - start)
        self._ingress[dst].free = arrived
        clock.at(arrived, self._deliver, message)

    def _middle(self, src: int, dst: int) -> tuple[_Server, ...]:
        """What a message passes between egress and ingress."""
        found = self._between.get((src, dst))
        if found is None:
            pair = self._cluster.pair_rate(src, dst)
            parts = [] if pair is None else [_Server(pair)]
            for name, direction, rate in _site_limits(self._cluster, src, dst):
                parts.append(self._sites.setdefault((name, direction), _Server(rate)))
            found = self._between[src, dst] = tuple(parts)
        return found


def _site_limits(cluster: Cluster, src: int, dst: int) -> list[tuple[str, str, float]]:
    """The shared uplink and downlink that a message crosses: (site, direction, bytes/s)."""
    leaves, enters = cluster.path_sites(src, dst)
    limits = []
    if leaves is not None and leaves.uplink is not None:
        limits.append((leaves.name, "up", leaves.uplink))
    if enters is not None and enters.downlink is not None:
        limits.append((enters.name, "down", enters.downlink))
    return limits


class _Resource:
    """A link that streams share."""

    __slots__ = ("flows", "rate", "scale", "wakes_at")

    def __init__(self, rate: float, scale: Trace | None = None):
        self.rate = rate
        self.scale = scale
        self.flows: dict[Message, None] = {}
        self.wakes_at = -1

    def capacity(self, now: int) -> float:
        return self.rate if self.scale is None else self.rate * self.scale.at(now / NS)


class _Pair:
    """The path from one node to another, and the messages that wait for their turn on it."""

    __slots__ = ("busy", "queue", "rate", "resources", "steady")

    def __init__(self, resources: tuple[_Resource, ...]):
        self.resources = resources
        self.rate = min(r.rate for r in resources)
        self.steady = all(r.scale is None for r in resources)
        self.busy = False
        self.queue: deque[Message] = deque()


class FairNetwork:
    """Max-min fair sharing between the streams of different pairs; see the module."""

    def __init__(self, clock: Clock, cluster: Cluster, deliver: Deliver, seed: int = 0):
        self._clock = clock
        self._deliver = deliver
        self._cluster = cluster
        self._latencies = _Latencies(cluster, seed)
        self._egress = [_Resource(n.egress, n.egress_scale) for n in cluster.nodes]
        self._ingress = [_Resource(n.ingress, n.ingress_scale) for n in cluster.nodes]
        self._sites: dict[tuple[str, str], _Resource] = {}
        self._pairs: dict[tuple[int, int], _Pair] = {}
        self._dirty: dict[_Resource, None] = {}

    def send(self, message: Message) -> None:
        """See `Network`."""
        src, dst = message.src.node, message.dst.node
        if src == dst:
            message.mark_left()
            clock, delay = self._clock, math.ceil(message.nbytes * NS / LOCAL_RATE)
            clock.at(clock.now + delay, self._deliver, message)
            return
        pair = self._pairs.get((src, dst))
        if pair is None:
            pair = self._pairs[src, dst] = _Pair(self._route(src, dst))
        message.pair = pair
        if pair.busy:
            pair.queue.append(message)
        else:
            pair.busy = True
            self._begin(message)

    def _route(self, src: int, dst: int) -> tuple[_Resource, ...]:
        parts = [self._egress[src], self._ingress[dst]]
        pair = self._cluster.pair_rate(src, dst)
        if pair is not None:
            parts.append(_Resource(pair))
        for name, direction, rate in _site_limits(self._cluster, src, dst):
            parts.append(self._sites.setdefault((name, direction), _Resource(rate)))
        return tuple(parts)

    def _begin(self, flow: Message) -> None:
        flow.remaining, flow.rate, flow.version = float(flow.nbytes), 0.0, 0
        pair, now = flow.pair, self._clock.now
        flow.since = now
        alone = pair.steady
        for resource in pair.resources:
            if resource.flows:
                alone = False
            resource.flows[flow] = None
        if alone:
            flow.rate = pair.rate
            self._clock.at(now + math.ceil(flow.nbytes * NS / pair.rate), self._finish, flow, 0)
        else:
            self._mark(pair.resources)

    def _mark(self, resources: tuple[_Resource, ...]) -> None:
        """Share anew once everything that happens at this very time has happened."""
        if not self._dirty:
            self._clock.at(self._clock.now, self._share)
        for resource in resources:
            self._dirty[resource] = None

    def _set_rate(self, flow: Message, rate: float) -> None:
        now = self._clock.now
        if flow.rate:
            flow.remaining = max(0.0, flow.remaining - flow.rate * (now - flow.since) / NS)
        flow.since, flow.rate = now, rate
        flow.version += 1
        if rate > 0:
            end = now + math.ceil(flow.remaining * NS / rate)
            self._clock.at(end, self._finish, flow, flow.version)

    def _finish(self, flow: Message, version: int) -> None:
        if version != flow.version:
            return
        pair, shared = flow.pair, False
        for resource in pair.resources:
            del resource.flows[flow]
            if resource.flows:
                shared = True
        if shared:
            self._mark(tuple(r for r in pair.resources if r.flows))
        if pair.queue:
            self._begin(pair.queue.popleft())
        else:
            pair.busy = False
        clock = self._clock
        arrival = self._latencies.arrival(flow.src.node, flow.dst.node, clock.now)
        clock.at(arrival, self._deliver, flow)
        flow.mark_left()

    def _share(self) -> None:
        dirty, self._dirty = self._dirty, {}
        now = self._clock.now
        seen: dict[_Resource, None] = {}
        for resource in dirty:
            if resource not in seen and resource.flows:
                resources, flows = _component(resource)
                seen.update(resources)
                for flow, rate in _max_min(resources, flows, now).items():
                    if rate != flow.rate:
                        self._set_rate(flow, rate)
                for member in resources:
                    self._wake_at_change(member, now)

    def _wake_at_change(self, resource: _Resource, now: int) -> None:
        if resource.scale is None:
            return
        change = resource.scale.next_change(now / NS)
        if change is None:
            return
        time = max(now + 1, math.ceil(change * NS))
        if resource.wakes_at != time:
            resource.wakes_at = time
            self._clock.at(time, self._changed, resource)

    def _changed(self, resource: _Resource) -> None:
        if resource.flows:
            self._mark((resource,))


def _component(start: _Resource) -> tuple[dict[_Resource, None], dict[Message, None]]:
    """Every resource and stream that can influence `start`."""
    resources, flows, todo = {start: None}, {}, [start]
    while todo:
        for flow in todo.pop().flows:
            if flow in flows:
                continue
            flows[flow] = None
            for resource in flow.pair.resources:
                if resource not in resources:
                    resources[resource] = None
                    todo.append(resource)
    return resources, flows


def _max_min(
    resources: dict[_Resource, None], flows: dict[Message, None], now: int
) -> dict[Message, float]:
    """Progressive filling: the tightest link fixes the rate of its streams, and so on."""
    left = {r: r.capacity(now) for r in resources}
    count = {r: len(r.flows) for r in resources}
    rates: dict[Message, float] = {}
    while len(rates) < len(flows):
        tightest = min((r for r in resources if count[r]), key=lambda r: left[r] / count[r])
        rate = left[tightest] / count[tightest]
        for flow in tightest.flows:
            if flow in rates:
                continue
            rates[flow] = rate
            for resource in flow.pair.resources:
                left[resource] = max(0.0, left[resource] - rate)
                count[resource] -= 1
    return rates
