"""A result on the terminal, within 80 columns."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from thinwire.reproduce.line import KINDS, Line, Result

__all__ = ["KIND_WORDS", "figure", "list_table", "ratio_text", "report", "verdict"]

KIND_WORDS = "; ".join(f"{kind}: {meaning}" for kind, meaning in KINDS.items())
"""What the kinds of lines mean, in one sentence."""


def report(result: Result) -> RenderableType:
    """Tables by section, what was assumed, and the verdict last."""
    parts: list[RenderableType] = [Text(result.title, style="bold"), Text(result.source)]
    for section, lines in result.sections().items():
        parts += [Text(), Text(section, style="bold"), _table(lines)]
        parts += [Text(f"- {line.name}: {line.note}") for line in lines if line.note]
    parts += [Text(), Text(f"{KIND_WORDS}.", style="dim")]
    parts += [Text(f"- {note}") for note in result.notes]
    parts += [Text(), Text(verdict(result), style="bold")]
    parts += [
        Text(f"- {line.section}: {line.name}: {figure(line.ours)}, wanted {line.wanted}")
        for line in result.failed
    ]
    return Group(*parts)


def list_table(rows: Iterable[tuple[str, str]]) -> Table:
    """Names of reproductions and their titles."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("name", no_wrap=True)
    table.add_column("what is reproduced")
    for name, title in rows:
        table.add_row(name, title)
    return table


def verdict(result: Result) -> str:
    """How many judged lines hold, in a sentence."""
    judged = [line for line in result.lines if line.judged]
    if not judged:
        return f"{result.name}: nothing was judged."
    if not result.failed:
        return f"{result.name}: every line that is judged holds ({len(judged)})."
    return f"{result.name}: {len(result.failed)} of {len(judged)} judged lines do not hold:"


def figure(value: float | None) -> str:
    """Four significant digits.

    >>> figure(1234.56), figure(0.012345), figure(None)
    ('1235', '0.01235', '–')
    """
    if value is None:
        return "–"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def ratio_text(line: Line) -> str:
    """Ours over the published one.

    >>> ratio_text(Line(section="s", name="n", ours=9.0, published=10.0))
    '0.900'
    """
    return "–" if line.ratio is None else f"{line.ratio:.3f}"


def _table(lines: list[Line]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    units = {line.unit: None for line in lines}
    unit = f", {next(iter(units))}" if len(units) == 1 and next(iter(units)) else ""
    table.add_column("line")
    table.add_column(f"published{unit}", justify="right", no_wrap=True)
    for name in ("ours", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("holds", no_wrap=True)
    for line in lines:
        table.add_row(
            line.name,
            figure(line.published),
            figure(line.ours),
            ratio_text(line),
            line.kind,
            _holds(line),
        )
    return table


def _holds(line: Line) -> Text:
    if line.holds is None:
        return Text("")
    return Text("yes", style="green") if line.holds else Text("NO", style="bold red")
