"""A probe on the screen: a bar while it goes on, tables at its end; plain lines on a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from thinwire.run.doctor.render import table
from thinwire.run.probe.fit import Fitted, busy_remarks
from thinwire.run.probe.report import Survey, Wire
from thinwire.units import format_compute, format_rate, format_time

__all__ = ["Gauge", "lines", "show"]

_MOST_PAIRS = 28


class Gauge:
    """How far a probe is, on stderr.

    Args:
        console: by default that of stderr.
    """

    def __init__(self, console: Console | None = None):
        self._console = console or Console(stderr=True)
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def say(self, text: str, done: int, total: int) -> None:
        """What is measured now, and how many parts of all are done."""
        if not self._console.is_terminal:
            print(f"probe: {done + 1} of {total}: {text}", file=sys.stderr, flush=True)
            return
        if self._progress is None:
            columns = (BarColumn(20), TextColumn("{task.completed:.0f}/{task.total:.0f}"))
            self._progress = Progress(
                *columns, TimeElapsedColumn(), TextColumn("{task.description}"),
                console=self._console, transient=True,
            )  # fmt: skip
            self._progress.start()
            self._task = self._progress.add_task("", total=total)
        assert self._task is not None
        self._progress.update(self._task, description=text, completed=done, total=total)

    def stop(self) -> None:
        """Take it off the screen."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def show(survey: Survey, fitted: Fitted, console: Console | None = None) -> None:
    """Print what came out."""
    console = console or Console()
    if not console.is_terminal:
        for line in lines(survey, fitted):
            print(line, file=console.file)
        return
    console.print(table("machine", "computes", "step", "spread", "memory", "sends", "receives",
                        rows=_machines(survey, fitted)))  # fmt: skip
    if survey.wires:
        console.print()
        console.print(table("ranks", "round trip", "packet", "up", "down",
                            rows=map(_pair, _shown(survey))))  # fmt: skip
    console.print()
    for text in _remarks(survey, fitted):
        style = (
            "yellow" if text.startswith(("problem", "left out", "not complete", "busy")) else "dim"
        )
        console.print(Text(text, style=style))


def lines(survey: Survey, fitted: Fitted) -> Iterator[str]:
    """What came out in plain lines, each complete in itself."""
    for name, flops, step, spread, memory, egress, ingress in _machines(survey, fitted):
        yield (
            f"{name}: {flops}, step {step} (spread {spread}), memory {memory}, sends {egress}, "
            f"receives {ingress}"
        )
    for ranks, trip, packet, up, down in map(_pair, _shown(survey)):
        yield f"wire {ranks}: round trip {trip}, packet {packet}, up {up}, down {down}"
    yield from _remarks(survey, fitted)


def _machines(survey: Survey, fitted: Fitted) -> Iterator[tuple[str, ...]]:
    for rank, node in zip(fitted.ranks, fitted.cluster.nodes, strict=True):
        computing = survey.computing[rank]
        wired = fitted.lines is not None and rank in fitted.lines.egress
        rates = [format_rate(rate) if wired else "?" for rate in (node.egress, node.ingress)]
        yield (
            node.name,
            format_compute(node.flops),
            format_time(computing.total.median + computing.update.median),
            f"{computing.total.relative:.0%}",
            f"{node.memory_rate / 1e9:.3g} GB/s",
            *rates,
        )


def _pair(wire: Wire) -> tuple[str, ...]:
    def time(value: float) -> str:
        return format_time(value) if value else "none"

    def rate(value: float) -> str:
        return format_rate(value) if value else "none"

    return (
        f"{wire.low}-{wire.high}",
        time(wire.trip.median),
        time(wire.packets.median),
        rate(wire.up.rate.median),
        rate(wire.down.rate.median),
    )


def _shown(survey: Survey) -> list[Wire]:
    """All pairs, or of many the slowest."""
    if len(survey.wires) <= _MOST_PAIRS:
        return survey.wires
    slowest = sorted(survey.wires, key=lambda w: min(w.up.rate.median, w.down.rate.median))
    return slowest[:_MOST_PAIRS]


def _remarks(survey: Survey, fitted: Fitted) -> Iterator[str]:
    if survey.wires:
        yield "up: from the higher to the lower rank; packet: a round trip through thinwire's wire"
    if len(survey.wires) > _MOST_PAIRS:
        yield f"{len(survey.wires) - _MOST_PAIRS} faster pairs are not shown; --json has them"
    found = fitted.lines
    if found is not None and found.passed:
        yield f"with all talking to all, {found.passed:.0%} of what the lines alone allow passed"
        if found.under_load:
            yield "so node rates are those under load: something is shared"
    for g, rate in (found.uplink if found else {}).items():
        members = ", ".join(map(str, found.groups[g] if found else []))
        yield f"ranks {members} share a line of {format_rate(rate)} to the others"
    yield from (text.replace("BUSY:", "busy:") for text in busy_remarks(survey))
    if not survey.finished:
        yield "not complete: what was not measured is assumed, and marked so"
    for rank, why in sorted(fitted.left_out.items()):
        yield f"left out: rank {rank}: {why}"
    for text in survey.problems:
        if not any(text == f"rank {rank}: {why}" for rank, why in fitted.left_out.items()):
            yield f"problem: {text}"
