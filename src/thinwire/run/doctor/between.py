"""What is found by comparing ranks, and about the links between them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from thinwire.run.doctor.machines import Host, hosts_of
from thinwire.run.doctor.report import Examination, Facts, Finding, Pair
from thinwire.units import format_rate, format_size, format_time
from thinwire.wire._address import HOW_TO_CHOOSE, is_loopback

__all__ = ["group_findings"]

CLOCK_LIMIT = 0.1
_FLOAT = 4
_LISTED = 8


def group_findings(examination: Examination) -> Iterator[Finding]:
    """Findings about several ranks together; none for a single one."""
    if examination.size == 1:
        return
    hosts = hosts_of(examination)
    yield from _absent(examination)
    yield from _versions(examination)
    yield from _loopback(hosts)
    yield from _masters(examination, hosts)
    yield from _own_names(hosts)
    yield from _pairs(examination)
    yield from _slow_links(examination)
    yield from _clocks(examination, hosts)
    yield from _paces(examination)
    yield from _thread_counts(hosts)
    yield from _ports(hosts)


def _where(facts: Facts) -> str:
    return f"rank {facts.rank} ({facts.hostname})"


def _absent(examination: Examination) -> Iterator[Finding]:
    if not examination.absent:
        return
    listed = ", ".join(map(str, examination.absent))
    yield Finding(
        level="fix",
        topic="absent",
        what=f"of {examination.size} ranks these never came: {listed}",
        why="a run waits for all of them, and fails",
        todo="look at the output of those processes: are they started, with this MASTER_ADDR, "
        "MASTER_PORT and world size, and is that port open?",
    )


def _versions(examination: Examination) -> Iterator[Finding]:
    first, *rest = examination.ranks
    for facts in rest:
        if facts.size != first.size:
            yield Finding(
                level="fix",
                topic="world size",
                what=f"{_where(first)} was told {first.size} ranks, {_where(facts)} {facts.size}",
                why="they wait for different groups",
                todo="the same --nnodes and --nproc-per-node on every host",
            )
    for key in (*first.versions, "byte order"):
        found: dict[str, list[Facts]] = {}
        for facts in examination.ranks:
            value = facts.byte_order if key == "byte order" else facts.versions.get(key, "none")
            found.setdefault(value, []).append(facts)
        if len(found) > 1:
            yield _differing(key, found)


def _differing(key: str, found: dict[str, list[Facts]]) -> Finding:
    listed = "; ".join(f"{value} on {_some(ranks)}" for value, ranks in found.items())
    usual = max(found, key=lambda value: len(found[value]))
    packages = {"thinwire": "thinwire", "torch": "torch", "numpy": "numpy"}
    why = {
        "thinwire": "a run refuses to start",
        "torch": "arithmetic differs, and with it the replicas",
        "byte order": "a run refuses to start",
    }
    if len(dict.fromkeys(value.partition("+")[0] for value in found)) == 1:
        why = {}  # builds of one version, for CPU and for GPU
    return Finding(
        level="fix" if key in why else "look",
        topic="versions",
        what=f"{key} differs: {listed}",
        why=why.get(key, "what works on one may fail on another"),
        todo=f"pip install {packages[key]}=={usual} there" if key in packages else "",
    )


def _some(ranks: list[Facts]) -> str:
    names = ", ".join(_where(facts) for facts in ranks[:_LISTED])
    more = len(ranks) - _LISTED
    return f"{names} and {more} more" if more > 0 else names


def _loopback(hosts: list[Host]) -> Iterator[Finding]:
    if len(hosts) < 2:
        return
    for host in hosts:
        address = host.facts.interface.address
        if address and is_loopback(address):
            yield Finding(
                level="fix",
                topic="interface",
                what=f"{host.label} would listen on the loopback address {address}, but the run "
                f"spans {len(hosts)} hosts",
                why="other hosts cannot reach it",
                todo=f"{HOW_TO_CHOOSE}; it has {', '.join(host.facts.interface.others) or 'none'}",
            )


def _masters(examination: Examination, hosts: list[Host]) -> Iterator[Finding]:
    if len(hosts) < 2:
        return
    known = [f for f in examination.ranks if f.master_name and f.master_name.addresses]
    for facts in known:
        assert facts.master_name is not None
        addresses = facts.master_name.addresses
        if is_loopback(addresses[0]):
            yield Finding(
                level="fix",
                topic="names",
                where=(_where(facts),),
                what=f"MASTER_ADDR {facts.master_name.name!r} is "
                f"{addresses[0]} there, its own loopback",
                why="each host would look for the meeting point in itself",
                todo="give --master-addr the address of the first host's network interface",
            )


def _own_names(hosts: list[Host]) -> Iterator[Finding]:
    """Debian writes 127.0.1.1 beside a host's own name: gloo then listens there."""
    if len(hosts) < 2:
        return
    for host in hosts:
        own, interface = host.facts.own_name, host.facts.interface
        if own.addresses and all(map(is_loopback, own.addresses)) and interface.name:
            yield Finding(
                level="look",
                topic="names",
                where=(host.label,),
                what=f"its own name {own.name!r} is {own.addresses[0]}",
                why="thinwire's own wire does not mind; torch's gloo would listen there (DDP, "
                "wire.collectives=native)",
                todo=f"GLOO_SOCKET_IFNAME={interface.name} there, or mend /etc/hosts",
            )


def _pairs(examination: Examination) -> Iterator[Finding]:
    for pair in examination.pairs:
        if pair.problem:
            yield Finding(
                level="fix",
                topic="pairs",
                what=pair.problem,
                why="every rank of a run connects to every other, and gradients pass between them",
                todo="open the ports that the system gives (see ports below) between these hosts",
            )


def _slow_links(examination: Examination) -> Iterator[Finding]:
    facts = {f.rank: f for f in examination.ranks}
    good = [p for p in examination.pairs if not p.problem and _apart(facts, p)]
    typical = statistics.median(min(p.up, p.down) for p in good) if good else 0.0
    for pair in good:
        slow, ends = min(pair.up, pair.down), [facts[pair.low], facts[pair.high]]
        name = " and ".join(_where(end) for end in ends)
        stated = min((e.interface.speed for e in ends), default=0.0)
        if max(pair.up, pair.down) > 2 * slow:
            yield Finding(
                level="look",
                topic="links",
                what=f"{name}: {format_rate(pair.up)} up to the lower rank, "
                f"{format_rate(pair.down)} down from it",
                why="the slower direction sets the pace of most methods",
                todo="an asymmetric line, a duplex mismatch, or somebody else's traffic",
            )
        if slow < typical / 2:
            yield Finding(
                level="look",
                topic="links",
                what=f"{name}: {format_rate(slow)}, where the median pair has "
                f"{format_rate(typical)}",
                why="a ring is as fast as its slowest link",
                todo="check cable and port, or describe the link in the cluster file: "
                "thinwire compare then says which method suits",
            )
        elif 0 < slow < stated / 2 and not examination.at_once:
            yield Finding(
                level="look",
                topic="links",
                what=f"{name}: {format_rate(slow)}, though both interfaces state "
                f"{format_rate(stated)} or more",
                why="something between them is slower, or busy",
                todo="check cables, the switch, and what else uses it",
            )


def _apart(facts: dict[int, Facts], pair: Pair) -> bool:
    return facts[pair.low].host != facts[pair.high].host


def _clocks(examination: Examination, hosts: list[Host]) -> Iterator[Finding]:
    firsts = {host.facts.rank: host for host in hosts}
    for pair in examination.pairs:
        host = firsts.get(pair.high)
        if pair.low or host is None or not pair.round_trip:
            continue
        offset, margin = -pair.clock_offset, pair.round_trip / 2
        if abs(offset) - margin > CLOCK_LIMIT:
            yield Finding(
                level="look",
                topic="clocks",
                where=(host.label,),
                what=f"its clock is {format_time(abs(offset))} "
                f"{'ahead of' if offset > 0 else 'behind'} that of rank 0",
                why="training does not look at it, but lines of logs do not match",
                todo="let the system keep time: timedatectl set-ntp true, or chrony",
            )


def _paces(examination: Examination) -> Iterator[Finding]:
    timed = {r: s for r, s in examination.steps.items() if s.median}
    if len(timed) < 2:
        return
    names = {f.rank: _where(f) for f in examination.ranks}
    typical = statistics.median(s.median for s in timed.values())
    for rank, step in timed.items():
        if step.median > 1.5 * typical:
            yield Finding(
                level="look",
                topic="step time",
                where=(names[rank],),
                what=f"a step takes {format_time(step.median)}, "
                f"{step.median / typical:.1f} times the median rank's",
                why="synchronous methods wait for it at every step",
                todo=f"describe it with slowdown = {step.median / typical:.1f} and ask thinwire "
                "compare; or free it of other work, or leave it out",
            )
    yield from _share_of_wire(examination, typical)


def _share_of_wire(examination: Examination, compute: float) -> Iterator[Finding]:
    """What a plain average of gradients would cost: the reason to be here at all."""
    facts = {f.rank: f for f in examination.ranks}
    pairs = [p for p in examination.pairs if p.up and p.down and _apart(facts, p)]
    rates = [min(p.up, p.down) for p in pairs]
    num_params = max(step.num_params for step in examination.steps.values())
    if not (rates and num_params):
        return
    count = len(examination.ranks)
    sent = 2 * (count - 1) / count * num_params * _FLOAT
    wire = sent / min(rates)
    yield Finding(
        level="note",
        topic="wire",
        what=f"a ring average of {num_params:,} parameters sends {format_size(sent)} a step and "
        f"rank: {format_time(wire)} on the slowest link, beside {format_time(compute)} of "
        "computing",
        why="the wire is the bottleneck: a method that sends less may pay"
        if wire > compute
        else "the wire is not the bottleneck",
        todo="thinwire plan or thinwire compare says which" if wire > compute else "",
    )


def _thread_counts(hosts: list[Host]) -> Iterator[Finding]:
    shares = {host.label: max(1, host.facts.cores // len(host.ranks)) for host in hosts}
    if len(dict.fromkeys(shares.values())) > 1:
        listed = ", ".join(f"{count} on {name}" for name, count in shares.items())
        yield Finding(
            level="look",
            topic="threads",
            what=f"thinwire run would use different numbers of threads: {listed}",
            why="it refuses to: sums in another order have other bits, and replicas drift apart",
            todo=f"--set train.threads={min(shares.values())}, the same on all",
        )


def _ports(hosts: list[Host]) -> Iterator[Finding]:
    ranges = list(dict.fromkeys(host.facts.ports for host in hosts if host.facts.ports))
    if len(hosts) > 1 and ranges:
        yield Finding(
            level="note",
            topic="ports",
            what=f"each rank listens at a TCP port of the system's choice, {' or '.join(ranges)}",
            why="a firewall between the hosts must let these and MASTER_PORT pass",
        )
