"""A simulated plan on the terminal, within 80 columns."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from thinwire.planner._words import percent, ratio_text
from thinwire.planner.refine import Refined, Row
from thinwire.planner.render import brief, three
from thinwire.units import format_energy, format_size

__all__ = ["refined_report", "refined_table"]

_LIMITS = {
    "selection and merging": "selecting",
    "the slowest node": "slowest",
    "updating parameters": "updating",
}


def refined_table(refined: Refined) -> Table:
    """The rows, the best first, the chosen one marked."""
    energy = refined.target == "energy"
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("simulated", no_wrap=True)
    names = ["step", "closed", "samples/s", "sent", "waits", *(["J/sample"] if energy else [])]
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("limit", no_wrap=True)
    for row in refined.rows:
        chosen = row is refined.choice
        table.add_row(
            Text(f"{'›' if chosen else ' '} {_short(row)}", style="bold" if chosen else ""),
            *_cells(row, energy),
        )
    return table


def _cells(row: Row, energy: bool) -> list[str]:
    found, closed = row.simulated, row.candidate.closed_time
    joules = found.joules_per_sample
    return [
        brief(found.step_time),
        "–" if closed is None else ratio_text(closed / found.step_time),
        three(found.samples_per_second),
        format_size(found.bytes_per_step),
        percent(found.waiting),
        *([] if not energy or joules is None else [format_energy(joules)]),
        _LIMITS.get(found.limit, found.limit),
    ]


def refined_report(refined: Refined, error: str) -> RenderableType:
    """Everything that the simulation adds to a plan.

    Args:
        refined: what came of it.
        error: how far predictions have been from measured runs, a sentence.
    """
    parts: list[RenderableType] = [Text(refined.verdict, style="bold"), Text()]
    parts += [refined_table(refined), Text(_LEGEND[refined.target], style="dim")]
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


_SAID = (
    " Per batch, by the methods' own programs on the virtual cluster. Closed: the closed form's "
    "step over this one. Waits: of the workers' time."
)
_LEGEND = {
    "time": "› the advice; most samples per second first." + _SAID,
    "energy": "› the advice; least energy per sample first." + _SAID,
    "bytes": "› the advice; least bytes per sample first." + _SAID,
}


def _short(row: Row) -> str:
    words = []
    for key, value in row.candidate.settings.items():
        if key == "pace":
            words.append("by speed")
        elif key in ("density", "groups"):
            words.append(f"{value:g}" if key == "density" else str(value))
        else:
            words.append(f"{key} {value}")
    return " ".join([row.candidate.method, *words])
