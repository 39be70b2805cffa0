"""A simulated plan on the terminal, within 80 columns."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from thinwire.planner._words import money, percent, ratio_text, whole_time
from thinwire.planner.refine import Refined, Row
from thinwire.planner.render import brief, three
from thinwire.units import format_count, format_energy, format_size

__all__ = ["refined_report", "refined_table", "short_label"]

PRICED = 1_000_000
"""Samples whose price is shown where nobody said how many there are."""

_LIMITS = {
    "selection and merging": "selecting",
    "the slowest node": "slowest",
    "updating parameters": "updating",
}


def refined_table(refined: Refined) -> Table:
    """The rows, the best first, the chosen one and those that miss the deadline marked.

    What a training takes stands in place of samples per second, and a price or energy in place of
    the closed form: all of them together would be wider than a terminal.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("simulated", no_wrap=True)
    columns = _columns(refined)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("limit", no_wrap=True)
    for row in refined.rows:
        chosen, found = row is refined.choice, row.simulated
        mark = "›" if chosen else "✗" if row.late else " "
        table.add_row(
            Text(
                f"{mark} {short_label(row)}", style="bold" if chosen else "dim" if row.late else ""
            ),
            *(cell(row) for cell in columns.values()),
            _LIMITS.get(found.limit, found.limit),
        )
    return table


def _columns(refined: Refined) -> dict[str, Callable[[Row], str]]:
    """What stands in each column between the name and the limit."""
    samples, cost = refined.aim.samples, _cost_column(refined)
    columns: dict[str, Callable[[Row], str]] = {"step": lambda row: brief(row.simulated.step_time)}
    if not cost:
        columns["closed"] = _closed
    if samples is None:
        columns["samples/s"] = lambda row: three(row.simulated.samples_per_second)
    else:
        columns["takes"] = lambda row: brief(row.duration or 0.0)
    columns["sent"] = lambda row: format_size(row.simulated.bytes_per_step)
    columns["waits"] = lambda row: percent(row.simulated.waiting)
    if cost == "J/sample":
        columns[cost] = lambda row: format_energy(row.simulated.joules_per_sample or 0.0)
    elif cost:
        columns[cost] = lambda row: money(row.simulated.price_of(samples or PRICED) or 0.0)
    return columns


def _cost_column(refined: Refined) -> str:
    """The header of what a row costs; empty: nothing but time and bytes is asked for."""
    if refined.target == "energy":
        return "J/sample"
    if refined.choice.simulated.price_per_sample is None:
        return ""
    if refined.aim.samples is not None:
        return "price"
    return "price/M" if refined.target == "price" else ""


def _closed(row: Row) -> str:
    closed = row.candidate.closed_time
    return "–" if closed is None else ratio_text(closed / row.simulated.step_time)


def refined_report(refined: Refined, error: str) -> RenderableType:
    """Everything that the simulation adds to a plan.

    Args:
        refined: what came of it.
        error: how far predictions have been from measured runs, a sentence.
    """
    parts: list[RenderableType] = [Text(refined.verdict, style="bold"), Text()]
    parts += [refined_table(refined), Text(_legend(refined), style="dim")]
    skipped = [f"{each.label}: {each.reason}" for each in refined.skipped]
    for heading, lines in (
        ("Why", refined.why),
        ("Beware", refined.caveats),
        ("Not simulated", skipped),
        ("How exact", [error]),
    ):
        if lines:
            parts += [Text(), Text(heading, style="bold"), *(Text(f"- {x}") for x in lines)]
    return Group(*parts)


_LEAST = {
    "time": "most samples per second",
    "energy": "least energy per sample",
    "bytes": "least bytes per sample",
    "price": "least money per sample",
}


def _legend(refined: Refined) -> str:
    cost = _cost_column(refined)
    parts = [f"› the advice; {_LEAST[refined.target]} first"]
    if refined.aim.deadline is not None:
        parts.append(f"; ✗ misses the deadline of {whole_time(refined.aim.deadline)}")
    parts.append(". Per batch, by the methods' own programs on the virtual cluster.")
    if not cost:
        parts.append(" Closed: the closed form's step over this one.")
    if refined.aim.samples is not None:
        parts.append(f" Takes: {format_count(refined.aim.samples)} samples, by every method alike.")
    if cost.startswith("price"):
        what = "of them" if refined.aim.samples is not None else "of a million samples"
        parts.append(f" Price: {what}, in the cluster file's currency.")
    parts.append(" Waits: of the workers' time.")
    return "".join(parts)


def short_label(row: Row) -> str:
    """A row's name with its settings, short enough for a column."""
    words = []
    for key, value in row.candidate.settings.items():
        if key == "pace":
            words.append("by speed")
        elif key in ("density", "groups"):
            words.append(f"{value:g}" if key == "density" else str(value))
        else:
            words.append(f"{key} {value}")
    return " ".join([row.candidate.method, *words])
