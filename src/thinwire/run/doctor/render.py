"""The doctor's report: tables on a terminal, lines on a pipe, JSON in a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from thinwire.errors import InputError
from thinwire.run.doctor.report import SCHEMA, Examination, Facts, Pair
from thinwire.units import format_rate, format_size, format_time

__all__ = ["check_json", "lines", "show", "table", "write_json"]

_STYLES = {"fix": "bold red", "look": "yellow", "note": "dim"}
_MOST_PAIRS = 28


def show(examination: Examination, console: Console | None = None) -> None:
    """Print it."""
    console = console or Console()
    if not console.is_terminal:
        for line in lines(examination):
            print(line, file=console.file)
        return
    console.print(Text(_versions(examination), style="dim"))
    console.print(table("rank", "machine", "interface", "cores", "memory", "step",
                         rows=map(_rank_row, *_ranks(examination))))  # fmt: skip
    if examination.pairs:
        console.print()
        console.print(table("ranks", "round trip", "up", "down", "clock",
                             rows=map(_pair_row, _shown(examination))))  # fmt: skip
        console.print(Text("\n".join(_about_pairs(examination)), style="dim"))
    console.print()
    for finding in examination.findings:
        style = _STYLES[finding.level]
        console.print(Text.assemble((finding.level, style), "  ", finding.text))
        for name, text in (("why", finding.why), ("do", finding.todo)):
            if text:
                console.print(Text(f"      {name}: {text}", style="dim" if name == "why" else ""))
    console.print()
    console.print(Text(_verdict(examination), style="bold"))


def table(*titles: str, rows: Iterator[tuple[str, ...]]) -> Table:
    """A plain table whose cells break where the terminal is narrow."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        made.add_column(title, overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def lines(examination: Examination) -> Iterator[str]:
    """The report in plain lines, each complete in itself."""
    yield _versions(examination)
    for rank, machine, interface, cores, memory, step in map(_rank_row, *_ranks(examination)):
        yield f"rank {rank}: {machine}, {interface}, {cores}, {memory} free, step {step}"
    for facts in examination.ranks:
        for meter in facts.meters:
            if meter.readable:
                yield f"rank {facts.rank}: {meter.name} readable: {meter.detail}"
    for ranks, trip, up, down, clock in map(_pair_row, _shown(examination)):
        yield f"link {ranks}: round trip {trip}, up {up}, down {down}, clock {clock}"
    yield from _about_pairs(examination)
    for finding in examination.findings:
        yield f"{finding.level}: {finding.text}"
        if finding.why:
            yield f"  why: {finding.why}"
        if finding.todo:
            yield f"  do: {finding.todo}"
    yield _verdict(examination)


def _versions(examination: Examination) -> str:
    first = examination.ranks[0]
    return "versions: " + ", ".join(f"{k} {v}" for k, v in first.versions.items())


def _verdict(examination: Examination) -> str:
    counts = {level: 0 for level in _STYLES}
    for finding in examination.findings:
        counts[finding.level] += 1
    if counts["fix"]:
        return f"{counts['fix']} to fix before a run, {counts['look']} to look at"
    if counts["look"]:
        return f"nothing to fix, {counts['look']} to look at"
    return "nothing to fix"


def _ranks(examination: Examination) -> tuple[list[Facts], list[str]]:
    steps = [examination.steps.get(facts.rank) for facts in examination.ranks]
    return examination.ranks, [format_time(s.median) if s and s.median else "none" for s in steps]


def _rank_row(facts: Facts, step: str) -> tuple[str, ...]:
    interface = facts.interface
    speed = f", {format_rate(interface.speed)}" if interface.speed else ""
    return (
        str(facts.rank),
        facts.hostname,
        f"{interface.address} ({interface.name or '?'}{speed})" if interface.address else "none",
        f"{facts.cores} cores, {facts.threads} thread{'s' if facts.threads > 1 else ''}",
        format_size(facts.memory_available),
        step,
    )


def _pair_row(pair: Pair) -> tuple[str, ...]:
    margin = format_time(pair.round_trip / 2)
    offset = f"{-pair.clock_offset * 1e3:+.3g} ms ±{margin}"
    return (
        f"{pair.low}-{pair.high}",
        format_time(pair.round_trip) if pair.round_trip else "none",
        format_rate(pair.up) if pair.up else "none",
        format_rate(pair.down) if pair.down else "none",
        offset if pair.round_trip else "none",
    )


def _shown(examination: Examination) -> list[Pair]:
    """All pairs, or of many the broken and the slowest."""
    if len(examination.pairs) <= _MOST_PAIRS:
        return examination.pairs
    return sorted(examination.pairs, key=lambda p: min(p.up, p.down))[:_MOST_PAIRS]


def _about_pairs(examination: Examination) -> Iterator[str]:
    hidden = len(examination.pairs) - len(_shown(examination))
    if hidden:
        yield f"{hidden} faster pairs are not shown; --json has them"
    if examination.at_once:
        yield "pairs of different ranks were measured at once, and may have shared links"
    if examination.pairs:
        yield "up: from the higher to the lower rank; clock: the higher rank's against the lower's"


def check_json(path: Path) -> None:
    """Reject a file that could not be written.

    Raises:
        InputError: its folder is missing, or it is a folder.
    """
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"--json {path}: must be a file in a folder that exists")


def write_json(examination: Examination, path: Path) -> None:
    """Write everything, whole or not at all."""
    values = {
        **msgspec.to_builtins(examination, str_keys=True),
        "schema": SCHEMA,
        "exit_code": examination.exit_code,
    }
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_bytes(msgspec.json.format(msgspec.json.encode(values), indent=2) + b"\n")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(f"--json {path}: {error}") from error
