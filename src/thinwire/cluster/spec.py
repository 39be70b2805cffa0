"""What a cluster is: machines, what joins them, and what they share.

One description serves the simulator, the planner, the report and the real run. It holds SI numbers
only (seconds, bytes per second, FLOP/s, watts); `cluster/files.py` reads and writes it as TOML.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from thinwire.cluster._fields import FieldError, check_name, check_number, check_whole
from thinwire.cluster.trace import Trace
from thinwire.errors import InputError, nearest
from thinwire.passes import KERNELS

__all__ = ["Cluster", "Link", "Node", "Site"]


@dataclass(frozen=True, kw_only=True)
class Link:
    """A directed path between two nodes, or the wire between the devices of one.

    Args:
        rate: bytes per second of this path alone; None: only its two ends limit it.
        latency: seconds one way.
    """

    rate: float | None = None
    latency: float

    def __post_init__(self) -> None:
        if self.rate is not None:
            check_number("rate", self.rate, "bytes per second", above=0.0)
        check_number("latency", self.latency, "seconds")


@dataclass(frozen=True, kw_only=True)
class Site:
    """A place whose machines share one line to everywhere else.

    Args:
        name: unique among sites, groups and nodes.
        uplink: bytes per second of all traffic that leaves the site together; None: no limit.
        downlink: the same for traffic that enters it.
        traffic_price: what 10^9 bytes that leave the site cost, in any currency; None: nothing.
    """

    name: str
    uplink: float | None = None
    downlink: float | None = None
    traffic_price: float | None = None

    def __post_init__(self) -> None:
        check_name("name", self.name)
        for key in ("uplink", "downlink"):
            value = getattr(self, key)
            if value is not None:
                check_number(key, value, "bytes per second", above=0.0)
        if self.traffic_price is not None:
            check_number("traffic_price", self.traffic_price, "for each GB")


@dataclass(frozen=True, kw_only=True)
class Node:
    """A machine: one replica of the model runs on it.

    Args:
        name: unique in the cluster.
        flops: effective FLOP/s of one device on training kernels: what it reaches, not its peak.
        memory_rate: bytes per second that memory-bound kernels read and write together.
        kernel_rates: the same of single kinds of such work, by a key of `passes.KERNELS`, where it
            was measured and differs from `memory_rate`.
        egress: bytes per second that the machine can send.
        ingress: bytes per second that it can receive at the same time.
        devices: number of devices that share the replica's work.
        inner: the wire between those devices; only with more than one.
        slowdown: 1 or more; everything the node computes, by arithmetic or by memory, takes this
            many times longer: 2 is half as fast.
        speed: multiplies the node's speed over time.
        jitter: relative standard deviation of a step's compute time, 0 or more and below 1.
        egress_scale: multiplies `egress` over time.
        ingress_scale: multiplies `ingress` over time.
        site: the site it stands at; empty: none.
        power_idle: watts drawn while it neither computes nor transfers.
        power_busy: watts drawn, all together, while it computes; given with `power_idle` or not.
        power_network: watts drawn on top of either while it sends or receives; None: none.
        price: what an hour of it costs, in the currency of all others; None: unknown.
    """

    name: str
    flops: float
    memory_rate: float
    egress: float
    ingress: float
    kernel_rates: Mapping[str, float] = field(default_factory=dict)
    devices: int = 1
    inner: Link | None = None
    slowdown: float = 1.0
    speed: Trace | None = None
    jitter: float = 0.0
    egress_scale: Trace | None = None
    ingress_scale: Trace | None = None
    site: str = ""
    power_idle: float | None = None
    power_busy: float | None = None
    power_network: float | None = None
    price: float | None = None

    def __post_init__(self) -> None:
        check_name("name", self.name)
        check_number("flops", self.flops, "FLOP/s", above=0.0)
        for key in ("memory_rate", "egress", "ingress"):
            check_number(key, getattr(self, key), "bytes per second", above=0.0)
        self._check_kernels()
        check_whole("devices", self.devices, "devices of the node")
        check_number("slowdown", self.slowdown, "2 is half as fast", at_least=1.0)
        check_number("jitter", self.jitter, "relative standard deviation", below=1.0)
        if self.inner is not None and self.devices == 1:
            raise FieldError(
                ("inner",), f"node {self.name!r}: inner joins devices, and devices = 1 needs none"
            )
        self._check_traces()
        self._check_power()
        if self.price is not None:
            check_number("price", self.price, "for each hour")

    def _check_kernels(self) -> None:
        for kind, rate in self.kernel_rates.items():
            if kind not in KERNELS:
                raise FieldError(
                    ("kernel_rates",), f"kernel_rates: {kind!r}: {nearest(kind, KERNELS)}"
                )
            try:
                check_number(kind, rate, "bytes per second", above=0.0)
            except FieldError as error:
                raise FieldError(("kernel_rates",), f"kernel_rates: {error}") from None

    def _check_traces(self) -> None:
        for key in ("speed", "egress_scale", "ingress_scale"):
            trace = getattr(self, key)
            if trace is not None and not trace.always_finishes:
                raise FieldError(
                    (key,),
                    f"node {self.name!r}: {key} stays 0 for ever, so the node would never finish; "
                    "end it above 0 or give it a period",
                )

    def _check_power(self) -> None:
        for key in ("power_idle", "power_busy", "power_network"):
            value = getattr(self, key)
            if value is not None:
                check_number(key, value, "watts")
        idle, busy = self.power_idle, self.power_busy
        if (idle is None) != (busy is None) or (idle is None and self.power_network is not None):
            key = next(k for k in _POWER if getattr(self, k) is not None)
            raise FieldError(
                (key,),
                f"node {self.name!r}: {key} without the others: give power_idle and power_busy "
                "together (power_network is added to them), or no power at all",
            )
        if idle is not None and busy is not None and busy < idle:
            raise FieldError(
                ("power_busy",),
                f"power_busy = {busy!r}: must be power_idle or more, {idle!r} W: it is the whole "
                "draw while computing",
            )

    @property
    def rate(self) -> float:
        """FLOP/s of the whole node at its nominal speed: flops * devices / slowdown."""
        return self.flops * self.devices / self.slowdown

    def passes(self, kind: str) -> float:
        """By how much a byte of this kind of work counts for more than one at `memory_rate`."""
        return self.memory_rate / self.kernel_rates.get(kind, self.memory_rate)


_POWER = ("power_idle", "power_busy", "power_network")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Machines and the network between them.

    A message from `src` to `dst` passes src's egress, the uplink of its site and the downlink of
    dst's (where the sites differ), the pair's own link where it has a rate, and dst's ingress; it
    arrives `latency(src, dst)` after it has left.

    Args:
        name: for titles.
        description: one line or more.
        nodes: at least one; a worker's rank is an index into it.
        sites: each named by at least one node.
        default_latency: seconds one way between two nodes that no link describes.
        links: by (index of source, of destination): paths with a latency or rate of their own.
        message_overhead: seconds of software for each message, added to its latency.
        latency_jitter: relative standard deviation of a message's latency, 0 or more and below 1.

    >>> cluster = Cluster(
    ...     name="pair",
    ...     nodes=tuple(
    ...         Node(name=name, flops=1e10, memory_rate=8e9, egress=12.5e6, ingress=12.5e6)
    ...         for name in ("old", "new")
    ...     ),
    ...     default_latency=0.0003,
    ... )
    >>> cluster.uniform()
    (0.0003, 12500000.0)
    """

    name: str
    description: str = ""
    nodes: tuple[Node, ...]
    sites: tuple[Site, ...] = ()
    default_latency: float
    links: Mapping[tuple[int, int], Link] = field(default_factory=dict)
    message_overhead: float = 0.0
    latency_jitter: float = 0.0

    def __post_init__(self) -> None:
        check_name("name", self.name)
        check_number("default_latency", self.default_latency, "seconds")
        check_number("message_overhead", self.message_overhead, "seconds")
        check_number(
            "latency_jitter", self.latency_jitter, "relative standard deviation", below=1.0
        )
        if not self.nodes:
            raise FieldError(("nodes",), "a cluster needs at least one node")
        self._check_names()
        for src, dst in self.links:
            if src == dst or not (0 <= src < self.size and 0 <= dst < self.size):
                raise FieldError(
                    ("links",),
                    f"link ({src}, {dst}): must join two different nodes, 0 to {self.size - 1}",
                )

    def _check_names(self) -> None:
        sites = [site.name for site in self.sites]
        for i, name in enumerate(sites):
            if name in sites[:i]:
                raise FieldError(("sites", i, "name"), f"site {name!r} is there twice")
        known, used, seen = set(sites), set(), set()
        for i, node in enumerate(self.nodes):
            if node.name in seen or node.name in known:
                raise FieldError(
                    ("nodes", i, "name"),
                    f"the name {node.name!r} is used twice: nodes and sites need different names",
                )
            if node.site and node.site not in known:
                raise FieldError(
                    ("nodes", i, "site"),
                    f"node {node.name!r} stands at an unknown site, {node.site!r}: "
                    + (nearest(node.site, sites) if sites else "the cluster has no sites"),
                )
            seen.add(node.name)
            used.add(node.site)
        for i, name in enumerate(sites):
            if name not in used:
                raise FieldError(("sites", i, "name"), f"site {name!r} has no node")

    @property
    def size(self) -> int:
        """Number of nodes."""
        return len(self.nodes)

    @cached_property
    def _site_of(self) -> tuple[Site | None, ...]:
        sites = {site.name: site for site in self.sites}
        return tuple(sites.get(node.site) for node in self.nodes)

    def latency(self, src: int, dst: int) -> float:
        """Seconds one way from node to node, software overhead included; 0 within a node."""
        if src == dst:
            return 0.0
        link = self.links.get((src, dst))
        own = self.default_latency if link is None else link.latency
        return own + self.message_overhead

    def pair_rate(self, src: int, dst: int) -> float | None:
        """Bytes per second of the pair's own path; None: only what it shares limits it."""
        link = self.links.get((src, dst))
        return None if link is None else link.rate

    def path_sites(self, src: int, dst: int) -> tuple[Site | None, Site | None]:
        """The site whose uplink and the site whose downlink a message passes.

        Both are None within one site; one is None where that end stands at no site.
        """
        leaves, enters = self._site_of[src], self._site_of[dst]
        return (None, None) if leaves is enters else (leaves, enters)

    def fastest(self) -> int:
        """Index of the node with the highest nominal rate, the first of equals."""
        return max(range(self.size), key=lambda i: self.nodes[i].rate)

    def relative_speeds(self) -> tuple[float, ...]:
        """Every node's nominal rate over the fastest one's, above 0 and up to 1."""
        top = self.nodes[self.fastest()].rate
        return tuple(node.rate / top for node in self.nodes)

    def uniform(self) -> tuple[float, float] | None:
        """Latency (overhead included) and rate when every pair of nodes has just these.

        None when nodes differ in egress or ingress, a link's own rate or latency differs, a site's
        line is shared, or rate or latency vary with time: closed forms do not hold there. Compute
        speeds may differ.
        """
        first = self.nodes[0]
        rate = first.egress
        for node in self.nodes:
            if node.egress != rate or node.ingress != rate:
                return None
            if node.egress_scale is not None or node.ingress_scale is not None:
                return None
        shared = any(site.uplink is not None or site.downlink is not None for site in self.sites)
        if self.latency_jitter or (shared and any(n.site != first.site for n in self.nodes)):
            return None
        latencies = {link.latency for link in self.links.values()}
        if len(self.links) < self.size * (self.size - 1) or not self.links:
            latencies.add(self.default_latency)
        slower = any(link.rate is not None and link.rate < rate for link in self.links.values())
        if slower or len(latencies) > 1:
            return None
        return latencies.pop() + self.message_overhead, rate

    def select(self, indices: Iterable[int]) -> Cluster:
        """The cluster of some of the nodes, in the order given, with what joins them.

        Raises:
            InputError: an index that does not exist or comes twice, or none at all.
        """
        chosen = list(indices)
        place = {old: new for new, old in enumerate(chosen)}
        if not chosen or len(place) < len(chosen) or not all(0 <= i < self.size for i in chosen):
            raise InputError(
                f"nodes {chosen} cannot be selected: give at least one index, each 0 to "
                f"{self.size - 1} and once"
            )
        nodes = tuple(self.nodes[i] for i in chosen)
        used = [node.site for node in nodes]
        return replace(
            self,
            nodes=nodes,
            sites=tuple(site for site in self.sites if site.name in used),
            links={
                (place[src], place[dst]): link
                for (src, dst), link in self.links.items()
                if src in place and dst in place
            },
        )
