"""Where a step's time goes, by phase: a table for the terminal, stacked bars for the page."""

from __future__ import annotations

from html import escape

from rich.console import Console
from rich.table import Table

from thinwire.phases import PHASES
from thinwire.report.compare import Comparison, MethodSummary
from thinwire.report.table import plain
from thinwire.report.words import percent_words, time_words

__all__ = ["phases_section", "phases_table"]

_SEEN = 0.005
"""A smaller share of a step isn't put into words."""


def _recorded(comparison: Comparison) -> tuple[list[MethodSummary], list[str]]:
    """The methods whose phases are known, and the phases that occur."""
    rows = [row for row in comparison.rows if sum(row.phases.values()) > 0]
    return rows, [name for name in PHASES if any(row.phases.get(name) for row in rows)]


def phases_table(comparison: Comparison, console: Console) -> Table | None:
    """The time of a step and each phase's share of it, a row per method.

    Args:
        comparison: whose methods.
        console: on which it is to be shown.

    Returns:
        None if nothing of it was recorded.
    """
    rows, names = _recorded(comparison)
    if not rows:
        return None
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold")
    for index, title in enumerate(["method", "a step", *names]):
        table.add_column(title, justify="right" if index else "left")
    for row in rows:
        step = sum(row.phases.values())
        shares = [percent_words(row.phases.get(name, 0.0) / step) for name in names]
        cells = [row.label, time_words(step), *shares]
        table.add_row(*(plain(cell, console) for cell in cells))
    return table


def phases_section(comparison: Comparison) -> str:
    """A stacked bar per method, all to one scale; empty if nothing was recorded."""
    rows, names = _recorded(comparison)
    if not rows:
        return ""
    longest = max(sum(row.phases.values()) for row in rows)
    keys = "".join(
        f'<li title="{escape(PHASES[name])}"><span class="key p-{name}"></span>{name}</li>'
        for name in names
    )
    entries = "".join(_entry(row, names, longest) for row in rows)
    return (
        "<section><h2>Where a step’s time goes</h2>"
        '<p class="soft">Mean over workers and seeds, all to one scale: what a worker’s program is '
        "busy with. Packets leave beside it.</p>"
        f'<ul class="legend">{keys}</ul><div class="stacks">{entries}</div></section>'
    )


def _entry(row: MethodSummary, names: list[str], longest: float) -> str:
    step = sum(row.phases.values())
    parts, told = [], []
    for name in names:
        took = row.phases.get(name, 0.0)
        if not took:
            continue
        words = f"{name} {time_words(took)}"
        parts.append(
            f'<i class="p-{name}" style="width:{100 * took / longest:.2f}%" '
            f'title="{escape(words)}, {percent_words(took / step)}"></i>'
        )
        if took >= _SEEN * step:
            told.append(words)
    return (
        f'<div class="entry"><div class="label">{escape(row.label)} <b>{time_words(step)}</b></div>'
        f'<div class="stack" role="img" aria-label="{escape(", ".join(told))}">{"".join(parts)}'
        f'</div><div class="soft">{escape(" · ".join(told))}</div></div>'
    )
