"""From a survey to a cluster: every value with how it was measured, and what could not be seen."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from thinwire.cluster import Cluster, Link, Node, Site
from thinwire.errors import ThinwireError
from thinwire.models import LayerTimes, NodeTimes, TimedTensor
from thinwire.planner.quick import ASSUMED_LATENCY
from thinwire.run.probe.report import Computing, Flow, Survey, Wire
from thinwire.run.probe.sharing import Lines, Pair, find_lines
from thinwire.run.probe.stats import Spread
from thinwire.units import format_rate, format_size, format_time

__all__ = ["Fitted", "Place", "busy_remarks", "fit"]

Place = tuple[str, str, str]
"""Where a note belongs: a kind of table ("" at the top), its name, and the key."""

ASSUMED_RATE = 125e6
_UNSEEN = (
    "traffic of others at another time: all is as it was during the probe (minutes)",
    "peaks and failures rarer than that",
    "how rates change with more streams than were open, and with other sizes of message",
    "how much more a line carries than any single peer, and all together, could fill",
    "whether two directions share one medium, unless all talking at once showed it",
    "a radio link's fading, roaming and power saving",
    "power: add power_idle, power_busy, power_network if you know them",
    "accelerators: steps were timed on the CPU",
)
_MIN_JITTER = 0.01
_MAX_JITTER = 0.9
_STEP_PASSES, _FLOAT = 5, 4
_LATENCY_OWN, _LATENCY_LEAST = 0.25, 50e-6
_BUCKET = 16 << 10


@dataclass
class Fitted:
    """A cluster and what is to be said of it.

    Attributes:
        cluster: of the ranks that were measured, in their order.
        ranks: of its nodes.
        notes: comments, by place.
        header: comments above everything.
        lines: what the machines' lines share; None where no wire was measured.
        layers: layer times; None where there are none.
        left_out: ranks that were not measured well enough, and why.
    """

    cluster: Cluster
    ranks: list[int]
    notes: dict[Place, list[str]] = field(default_factory=dict)
    header: list[str] = field(default_factory=list)
    lines: Lines | None = None
    layers: LayerTimes | None = None
    left_out: dict[int, str] = field(default_factory=dict)


def fit(survey: Survey, name: str = "measured") -> Fitted:
    """The cluster that explains the measurements.

    Args:
        survey: finished or not.
        name: of the cluster.

    Raises:
        ThinwireError: not a single machine has been measured.
    """
    left_out = _left_out(survey)
    ranks = [facts.rank for facts in survey.ranks if facts.rank not in left_out]
    if not ranks:
        why = "; ".join(f"rank {rank}: {text}" for rank, text in left_out.items())
        raise ThinwireError(f"nothing was measured that a cluster could be made of ({why})")
    names = _names(survey, ranks)
    wires = [w for w in survey.wires if w.low in ranks and w.high in ranks and w.trip.count]
    fitted = _Fit(survey, ranks, names, wires)
    cluster = fitted.cluster(name)
    return Fitted(
        cluster=cluster,
        ranks=ranks,
        notes=fitted.notes,
        header=_header(survey, left_out, fitted.lines),
        lines=fitted.lines,
        layers=_layers(survey, ranks, names),
        left_out=left_out,
    )


def _left_out(survey: Survey) -> dict[int, str]:
    found = dict(survey.lost)
    for facts in survey.ranks:
        computing = survey.computing.get(facts.rank)
        if facts.rank in found:
            continue
        if computing is None:
            found[facts.rank] = "its computing was not measured"
        elif not (computing.rate and computing.memory.rate):
            found[facts.rank] = computing.problem or "its computing was not measured"
    return found


def _names(survey: Survey, ranks: Sequence[int]) -> dict[int, str]:
    """Host names, with the rank where several have one."""
    hosts = {f.rank: re.sub(r"\W", "-", f.hostname) or "host" for f in survey.ranks}
    every = list(hosts.values())
    return {r: hosts[r] if every.count(hosts[r]) == 1 else f"{hosts[r]}.{r}" for r in ranks}


def _digits(value: float) -> float:
    """Four significant ones: more were not measured."""
    return float(f"{value:.4g}")


def _bits(rate: float) -> float:
    """The same of a rate, in bits per second."""
    return _digits(rate * 8) / 8


class _Fit:
    """Puts nodes, links and notes together."""

    def __init__(self, survey: Survey, ranks: list[int], names: dict[int, str], wires: list[Wire]):
        self._survey = survey
        self._ranks = ranks
        self._names = names
        self._wires = wires
        self.notes: dict[Place, list[str]] = {}
        self.lines = self._lines()

    def _lines(self) -> Lines | None:
        alone = {
            pair: flow.rate.median
            for w in self._wires
            for pair, flow in (((w.high, w.low), w.up), ((w.low, w.high), w.down))
            if flow.rate.median
        }
        ends = [{pair[end] for pair in alone} for end in (0, 1)]
        self._wired = [rank for rank in self._ranks if all(rank in end for end in ends)]
        alone = {p: rate for p, rate in alone.items() if all(r in self._wired for r in p)}
        if not alone:
            return None
        crowd = self._survey.crowd
        together = {
            (sender, receiver): rate
            for receiver, got in (crowd.received if crowd else {}).items()
            for sender, rate in got.items()
            if rate and (sender, receiver) in alone
        }
        hosts = {f.rank: f.host for f in self._survey.ranks if f.rank in self._wired}
        latencies = {(w.low, w.high): w.trip.median / 2 for w in self._wires}
        return find_lines(alone, together, latencies, hosts)

    def cluster(self, name: str) -> Cluster:
        sites, site_of = self._sites()
        nodes = tuple(self._node(rank, site_of.get(rank, "")) for rank in self._ranks)
        latency = self._latency()
        overhead = self._overhead()
        return Cluster(
            name=name,
            nodes=nodes,
            sites=sites,
            default_latency=latency,
            links=self._links(latency),
            message_overhead=overhead,
        )

    # The network.

    def _latency(self) -> float:
        trips = [w.trip for w in self._wires]
        key = ("", "", "latency")
        if not trips:
            self.notes[key] = ["not measured: assumed"]
            return ASSUMED_LATENCY
        median = statistics.median(trip.median for trip in trips)
        low, high = min(t.low for t in trips), max(t.high for t in trips)
        self.notes[key] = [
            f"half a round trip of 8 bytes over TCP, median of {len(trips)} pairs with "
            f"{sum(t.count for t in trips)} round trips;",
            f"quartiles from {format_time(low / 2)} to {format_time(high / 2)}",
        ]
        return _digits(median / 2)

    def _overhead(self) -> float:
        extra = [
            max(0.0, w.packets.median - w.trip.median) / 2 for w in self._wires if w.packets.count
        ]
        if not extra:
            return 0.0
        self.notes["", "", "message_overhead"] = [
            "what thinwire's own wire takes beyond that for a small packet, half a round trip, "
            "median of the pairs;",
            f"from {format_time(min(extra))} to {format_time(max(extra))}",
        ]
        return _digits(statistics.median(extra))

    def _sites(self) -> tuple[tuple[Site, ...], dict[int, str]]:
        lines = self.lines
        if lines is None or not (lines.uplink or lines.downlink):
            return (), {}
        sites, site_of = [], {}
        for g, group in enumerate(lines.groups):
            name = f"site {g}"
            found: dict[str, float] = {}
            for key, line in (("uplink", lines.uplink), ("downlink", lines.downlink)):
                if g in line:
                    found[key] = _bits(line[g])
                    self.notes["sites", name, key] = [
                        "all that passed together with all talking to all"
                    ]
            sites.append(Site(name=name, **found))
            self.notes["sites", name, "name"] = [f"a site because {lines.why_groups}"]
            site_of |= dict.fromkeys(group, name)
        return tuple(sites), site_of

    def _links(self, default: float) -> dict[Pair, Link]:
        place = {rank: i for i, rank in enumerate(self._ranks)}
        own = self.lines.own if self.lines else {}
        links: dict[Pair, Link] = {}
        for wire in self._wires:
            latency = wire.trip.median / 2
            other = abs(latency - default) > max(_LATENCY_OWN * default, _LATENCY_LEAST)
            latency = _digits(latency) if other else default
            for pair in ((wire.low, wire.high), (wire.high, wire.low)):
                rate = _bits(own[pair]) if pair in own else None
                if other or rate is not None:
                    links[place[pair[0]], place[pair[1]]] = Link(rate=rate, latency=latency)
        if links:
            self.notes["links", "", ""] = [
                "pairs whose latency is off the common one by more than a quarter and 50 us, or",
                "whose stream alone stayed below 90 % of what its two ends (and sites) allow",
            ]
        return links

    # A machine.

    def _node(self, rank: int, site: str) -> Node:
        computing = self._survey.computing[rank]
        egress, ingress = self._ends(rank)
        jitter = min(_MAX_JITTER, _digits(computing.total.relative))
        kernels = self._kernels(rank, computing)
        self._computing_notes(rank, computing)
        return Node(
            name=self._names[rank],
            flops=_digits(computing.rate),
            memory_rate=_digits(computing.memory.rate),
            kernel_rates=kernels,
            egress=egress,
            ingress=ingress,
            jitter=jitter if jitter >= _MIN_JITTER else 0.0,
            site=site,
        )

    def _note(self, rank: int, key: str, *text: str) -> None:
        self.notes["nodes", self._names[rank], key] = list(text)

    def _computing_notes(self, rank: int, computing: Computing) -> None:
        facts = next(f for f in self._survey.ranks if f.rank == rank)
        total = computing.total
        self._note(
            rank, "name",
            f"rank {rank}: {facts.hostname}, {facts.interface.address or 'no address'}, "
            f"{facts.cores} cores, load before {facts.load:.1f}",
        )  # fmt: skip
        self._note(
            rank, "flops",
            f"{computing.model}, batch {computing.batch}, {computing.threads} thread"
            f"{'s' if computing.threads != 1 else ''}: forward and backward "
            f"{format_time(total.median)} (quartiles {_range(total)}, {total.count} steps);",
            f"forward {format_time(computing.forward.median)}, backward "
            f"{format_time(computing.backward.median)}, optimizer "
            f"{format_time(computing.update.median)}; {_drift(computing)}; other models reach "
            "other rates",
        )  # fmt: skip
        self._note(
            rank, "memory_rate",
            f"adding vectors of 64 MB: spread {computing.memory.seconds.relative:.0%}, "
            f"{computing.memory.seconds.count} times",
        )  # fmt: skip
        self._note(rank, "jitter", "from the quartiles of the steps above, as if normal")

    def _kernels(self, rank: int, computing: Computing) -> dict[str, float]:
        rates = {kind: _digits(k.rate) for kind, k in computing.kernels.items() if k.rate}
        spreads = {kind: k.seconds.relative for kind, k in computing.kernels.items() if k.rate}
        if computing.update.median:
            nbytes = _STEP_PASSES * _FLOAT * computing.num_params
            rates["step"] = _digits(nbytes / computing.update.median)
            spreads["step"] = computing.update.relative
        listed = ", ".join(f"{kind} {spread:.0%}" for kind, spread in spreads.items())
        self._note(
            rank, "kernel_rates",
            f"thinwire's kernels on vectors of its size ({computing.num_params:,}), against "
            "the bytes that the cost model counts;",
            f"spread: {listed}",
        )  # fmt: skip
        return rates

    def _ends(self, rank: int) -> tuple[float, float]:
        """What the node sends and receives."""
        lines = self.lines
        if lines is None or rank not in lines.egress:
            return self._assumed_ends(rank)
        for key, rates, out in (("egress", lines.egress, True), ("ingress", lines.ingress, False)):
            flows = [self._flow(w, rank, out) for w in self._wires if rank in (w.low, w.high)]
            listed = [f.rate for f in flows if f.rate.count]
            low, high = min(s.low for s in listed), max(s.high for s in listed)
            together = self._together(rank, out)
            text = [
                f"TCP payload of streams alone: quartiles from {format_rate(low)} to "
                f"{format_rate(high)}, {len(listed)} peer{'s' if len(listed) > 1 else ''}"
                + (f"; with all talking {format_rate(together)}" if together else "")
            ]
            if lines.under_load and rates[rank] < 0.97 * max(s.median for s in listed):
                text.append(
                    "less passes with all talking, and that is what stands here: something is "
                    "shared (switch, processor, medium)"
                )
            if lines.in_use < 1:
                text.append(f"here: {lines.in_use:.1%} of that alone, as passed with all talking")
            heads = [f.head for f in flows if f.head > _BUCKET]
            if heads:
                text.append(
                    f"after a pause the first {format_size(statistics.median(heads))} go faster "
                    "(a bucket or buffer on the way): not in the model, short messages are quicker"
                )
            self._note(rank, key, *text)
        return _bits(lines.egress[rank]), _bits(lines.ingress[rank])

    def _assumed_ends(self, rank: int) -> tuple[float, float]:
        facts = next(f for f in self._survey.ranks if f.rank == rank)
        stated = facts.interface.speed
        what = f"{facts.interface.name}'s stated speed" if stated else "assumed"
        for key in ("egress", "ingress"):
            self._note(rank, key, f"not measured: {what}")
        rate = stated or ASSUMED_RATE
        return rate, rate

    @staticmethod
    def _flow(wire: Wire, rank: int, out: bool) -> Flow:
        return wire.up if (rank == wire.high) == out else wire.down

    def _together(self, rank: int, out: bool) -> float:
        crowd = self._survey.crowd
        if crowd is None:
            return 0.0
        if not out:
            return sum(crowd.received.get(rank, {}).values())
        return sum(got.get(rank, 0.0) for got in crowd.received.values())


def _drift(computing: Computing) -> str:
    if computing.drift is None:
        return "too few steps to see a drift"
    return f"drift over the measurement {computing.drift:+.0%}"


def _range(spread: Spread) -> str:
    return f"{format_time(spread.low)} to {format_time(spread.high)}"


def _header(survey: Survey, left_out: Mapping[int, str], lines: Lines | None) -> list[str]:
    facts = survey.ranks[0]
    versions = ", ".join(f"{name} {facts.versions[name]}" for name in ("thinwire", "torch"))
    found = [f"Measured by thinwire probe, {survey.began}, {versions}."]
    if not survey.finished:
        found.append("NOT COMPLETE: the probe was interrupted. What is assumed says so.")
    missing = [f"LEFT OUT: rank {rank}: {why}" for rank, why in sorted(left_out.items())]
    found += missing
    found += busy_remarks(survey)
    found += [f"PROBLEM: {text}" for text in survey.problems if not _told(text, left_out)]
    if any(wire.at_once for wire in survey.wires):
        found.append("Pairs were measured several at once, and may have shared lines.")
    if lines is not None and lines.passed:
        found.append(
            f"With all talking to all, {lines.passed:.0%} of what the lines alone allow passed."
        )
    return [*found, "What could not be seen:", *(f"- {text}" for text in _UNSEEN)]


def busy_remarks(survey: Survey) -> list[str]:
    """Machines that had other work: what was measured there is what is left."""
    busy = [f for f in survey.ranks if f.load > f.cores / 2 + 1]
    if not busy:
        return []
    listed = ", ".join(f"rank {f.rank} had {f.load:.1f} on {f.cores} cores" for f in busy)
    return [
        f"BUSY: runnable processes before the probe: {listed}. Times and wires suffered from it; "
        "measure again when they are idle."
    ]


def _told(problem: str, left_out: Mapping[int, str]) -> bool:
    return any(problem == f"rank {rank}: {why}" for rank, why in left_out.items())


def _layers(survey: Survey, ranks: Sequence[int], names: Mapping[int, str]) -> LayerTimes | None:
    measured = [(rank, survey.computing[rank]) for rank in ranks if survey.computing[rank].names]
    if not measured:
        return None
    first = measured[0][1]
    return LayerTimes(
        model=first.model,
        batch=first.batch,
        source=f"thinwire probe, {survey.began}: forward pre-hooks and gradient hooks, CPU",
        tensors=tuple(map(TimedTensor, first.names, first.sizes)),
        nodes=tuple(
            NodeTimes(
                name=names[rank],
                forward=c.forward.median,
                backward=c.backward.median,
                step=c.update.median,
                needed=tuple(c.needed),
                ready=tuple(c.ready),
                count=c.total.count,
                spread=c.total.relative,
            )
            for rank, c in measured
            if c.names == first.names
        ),
    )
