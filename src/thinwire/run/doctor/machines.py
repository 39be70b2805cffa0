"""What is found about each machine by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from thinwire.run.doctor.report import Examination, Facts, Finding, StepTime
from thinwire.units import format_size, format_time

__all__ = ["Host", "hosts_of", "machine_findings"]

_COPIES = 6
"""Parameters, gradient, flat copies, momentum and a codec's memory, with some room."""
_FLOAT = 4
_SMALL_SHARED = 64 << 20


@dataclass(frozen=True)
class Host:
    """A machine and the ranks on it."""

    ranks: Sequence[Facts]
    alone: bool

    @property
    def facts(self) -> Facts:
        """Those of its first rank."""
        return self.ranks[0]

    @property
    def label(self) -> str:
        """For messages: its name and ranks."""
        if self.alone:
            return "this machine"
        listed = ", ".join(str(facts.rank) for facts in self.ranks)
        return f"{self.facts.hostname} (rank{'s' if len(self.ranks) > 1 else ''} {listed})"


def hosts_of(examination: Examination) -> list[Host]:
    """The machines, in order of their first ranks."""
    groups: dict[str, list[Facts]] = {}
    for facts in examination.ranks:
        groups.setdefault(facts.host, []).append(facts)
    return [Host(ranks, alone=examination.size == 1) for ranks in groups.values()]


def machine_findings(examination: Examination) -> Iterator[Finding]:
    """Findings that need no other machine."""
    steps = examination.steps
    for host in hosts_of(examination):
        yield from _interface(host)
        yield from _names(host)
        yield from _threads(host)
        yield from _memory(host, steps)
        yield from _meters(host)
        yield from _models(host, steps)
        if host.alone and host.facts.port_problem:
            yield Finding(
                level="look",
                topic="ports",
                what=f"{host.facts.port_problem}: it is torchrun's default",
                why="torchrun cannot start its meeting point there",
                todo="give torchrun another: --master-port 29501, or --standalone on one machine",
            )
    if examination.size == 1:
        yield Finding(
            level="note",
            topic="pairs",
            what="links were not measured: this is one process",
            todo="thinwire doctor --processes 2 here; on several hosts start it by torchrun on "
            "each, or thinwire launch --ssh hosts.toml -m thinwire doctor",
        )


def _interface(host: Host) -> Iterator[Finding]:
    found = host.facts.interface
    others = f"; also here: {', '.join(found.others)}" if found.others else ""
    if not found.address:
        yield Finding(
            level="note" if host.alone and found.problem.startswith("no way") else "fix",
            topic="interface",
            where=(host.label,),
            what=f"{found.problem}{others}",
            why="a rank must listen at an address that the others can reach",
            todo="name one by --interface or THINWIRE_INTERFACE" if found.others else "",
        )
    elif found.kind in ("virtual", "radio"):
        yield Finding(
            level="look" if found.kind == "virtual" else "note",
            topic="interface",
            where=(host.label,),
            what=f"the traffic would go over {found.name} ({found.address}), "
            f"{'a virtual interface' if found.kind == 'virtual' else 'a radio link'}{others}",
            why="a tunnel or bridge may be slow, or lead nowhere"
            if found.kind == "virtual"
            else "its rate varies with place and time",
            todo="if a cable is meant, name it: --interface eth0 or THINWIRE_INTERFACE=eth0",
        )


def _names(host: Host) -> Iterator[Finding]:
    own = host.facts.own_name
    if own.problem:
        yield Finding(
            level="note" if host.alone else "look",
            topic="names",
            where=(host.label,),
            what=f"its own name {own.name!r} does not resolve ({own.problem})",
            why="thinwire's own wire does not need it, torch's gloo does (DDP, "
            "wire.collectives=native)",
            todo=f"add a line to its /etc/hosts: {host.facts.interface.address or 'ADDRESS'} "
            f"{own.name}",
        )


def _threads(host: Host) -> Iterator[Finding]:
    facts, count = host.facts, len(host.ranks)
    total = sum(rank.threads for rank in host.ranks)
    share = max(1, facts.cores // count)
    each = f"{count} process{'es' if count > 1 else ''}, {total} threads, {facts.cores} cores"
    if total > facts.cores:
        yield Finding(
            level="look",
            topic="threads",
            where=(host.label,),
            what=f"more threads than cores ({each})",
            why="threads that take turns wait for each other: a step can take several times as "
            "long",
            todo=f"OMP_NUM_THREADS={share} before the start"
            + (", or fewer processes" if count > facts.cores else ""),
        )
    elif 2 * total <= facts.cores and not facts.gpus:
        yield Finding(
            level="look",
            topic="threads",
            where=(host.label,),
            what=f"half of the cores or more stay idle ({each})",
            why="torchrun sets OMP_NUM_THREADS=1 where nothing is said; a script keeps that "
            "(thinwire run does not)",
            todo=f"OMP_NUM_THREADS={share} before the start",
        )
    if facts.load > facts.cores / 2 + 1:
        yield Finding(
            level="look",
            topic="load",
            where=(host.label,),
            what=f"busy already, {facts.load:.1f} processes ran on {facts.cores} "
            "cores over the last minute",
            why="the times below, and those of a run, suffer from it",
            todo="see with top what runs; measure again when it is idle",
        )


def _memory(host: Host, steps: dict[int, StepTime]) -> Iterator[Finding]:
    facts = host.facts
    found = [steps[r.rank].num_params for r in host.ranks if r.rank in steps]
    needed = sum(found) * _FLOAT * _COPIES
    if facts.memory_available and needed > facts.memory_available:
        yield Finding(
            level="fix",
            topic="memory",
            where=(host.label,),
            what=f"{format_size(facts.memory_available)} free of "
            f"{format_size(facts.memory_total)}, and {len(found)} replicas of "
            f"{max(found):,} parameters with gradients and memories want about "
            f"{format_size(needed)}",
            why="the system kills a process that runs out",
            todo="fewer processes on it, or a smaller model",
        )
    if 0 < facts.shared_memory <= _SMALL_SHARED:
        yield Finding(
            level="look",
            topic="memory",
            where=(host.label,),
            what=f"/dev/shm has {format_size(facts.shared_memory)}",
            why="a DataLoader with workers passes batches through it and dies with a bus error",
            todo="start the container with --shm-size 1g, or use num_workers=0",
        )


def _meters(host: Host) -> Iterator[Finding]:
    for meter in host.facts.meters:
        bytes_ = meter.name.startswith("bytes")
        if meter.readable:
            continue
        if bytes_ and host.facts.interface.kind == "loopback":
            continue
        yield Finding(
            level="look" if bytes_ else "note",
            topic="meters",
            where=(host.label,),
            what=f"{meter.name} cannot be read: {meter.detail}",
            why="the bytes counted cannot be held against the interface's own"
            if bytes_
            else "there is no energy from it in a report",
            todo=meter.todo,
        )


def _models(host: Host, steps: dict[int, StepTime]) -> Iterator[Finding]:
    for facts in host.ranks:
        step = steps.get(facts.rank)
        where = host.label if host.alone else f"rank {facts.rank} ({facts.hostname})"
        if step is None:
            yield Finding(
                level="fix",
                topic="step time",
                where=(where,),
                what="told no step time",
                why="it came, and then ended or hung",
                todo="see its own output",
            )
        elif step.problem:
            yield Finding(
                level="fix",
                topic="step time",
                where=(where,),
                what=f"no training step of {step.what}: {step.problem}",
                why="a run would fail there in the same way",
                todo="mend that, and run the doctor again",
            )
        elif step.slowest > 2 * step.median and step.count > 2:
            yield Finding(
                level="note",
                topic="step time",
                where=(where,),
                what=f"steps vary, {format_time(step.fastest)} to {format_time(step.slowest)}",
                why="where all wait for each other, the slowest step counts",
            )
