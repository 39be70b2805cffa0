"""The comparison as a table: columns once, for the terminal, the page and the CSV file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from thinwire.report.compare import Comparison, MethodSummary, Spread
from thinwire.report.words import (
    energy_words,
    percent_words,
    ratio_words,
    size_words,
    time_words,
)

__all__ = ["COLUMNS", "Cell", "Column", "best_rows", "columns_of", "comparison_table", "plain"]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What a table shows for one method and column: the value, and its spread if there is one."""

    text: str
    spread: str = ""
    missed: bool = False


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column.

    Args:
        key: its name in files.
        title: short, for the terminal.
        heading: in full, for the page.
        meaning: what explains it.
        value: a number to compare rows by, None where there is none.
        cell: what is shown.
        largest: whether the best is the largest.
        ranked: whether a best is marked at all.
    """

    key: str
    title: str
    heading: str
    meaning: str
    value: Callable[[MethodSummary], float | None]
    cell: Callable[[MethodSummary], Cell]
    largest: bool = False
    ranked: bool = True


def _accuracy_cell(spread: Spread | None) -> Cell:
    if spread is None:
        return Cell(text="–")
    text = f"{spread.mean * 100:.1f}"
    return Cell(text=text, spread=f"± {spread.deviation * 100:.1f}" if spread.count > 1 else "")


def _range(low: str, high: str) -> str:
    """Two texts as a range, the unit once where it is the same; empty where they are equal."""
    number, _, unit = low.partition(" ")
    if low == high:
        return ""
    return f"{number}–{high}" if unit == high.partition(" ")[2] and unit else f"{low}–{high}"


def _time_cell(row: MethodSummary) -> Cell:
    if row.time is not None:
        spread = _range(time_words(row.time.low), time_words(row.time.high))
        return Cell(text=time_words(row.time.median), spread=spread)
    if not row.times:
        return Cell(text="–")
    return Cell(text=f"miss {row.hits}/{len(row.times)}", missed=True)


def _speedup_cell(base: str) -> Callable[[MethodSummary], Cell]:
    def cell(row: MethodSummary) -> Cell:
        spread = row.speedup.get(base)
        if spread is None:
            return Cell(text="–", missed=row.time is None and bool(row.times))
        told = _range(ratio_words(spread.low), ratio_words(spread.high))
        return Cell(text=ratio_words(spread.median), spread=told)

    return cell


def _plain_cell(
    spread_of: Callable[[MethodSummary], Spread | None], words: Callable[[float | None], str]
) -> Callable[[MethodSummary], Cell]:
    def cell(row: MethodSummary) -> Cell:
        spread = spread_of(row)
        return Cell(text=words(spread.mean if spread else None))

    return cell


def _mean(spread: Spread | None) -> float | None:
    return spread.mean if spread else None


def _median(spread: Spread | None) -> float | None:
    return spread.median if spread else None


COLUMNS = (
    Column(
        key="final_accuracy",
        title="final %",
        heading="final accuracy %",
        meaning="test accuracy at the end of training, mean ± standard deviation over the seeds",
        value=lambda row: _mean(row.final),
        cell=lambda row: _accuracy_cell(row.final),
        largest=True,
    ),
    Column(
        key="best_accuracy",
        title="best %",
        heading="best accuracy %",
        meaning="the highest test accuracy at any evaluation, mean ± standard deviation",
        value=lambda row: _mean(row.best),
        cell=lambda row: _accuracy_cell(row.best),
        largest=True,
    ),
    Column(
        key="time_to_target",
        title="to target",
        heading="time to target",
        meaning="time of the first evaluation at or above the target, median over the seeds; "
        "a miss on any seed is a miss, with the number of seeds that reached it",
        value=lambda row: _median(row.time),
        cell=_time_cell,
    ),
    Column(
        key="speedup_ssgd",
        title="vs ssgd",
        heading="speed-up over ssgd",
        meaning="median time of ssgd (plain DDP) over the method's; range over the seeds",
        value=lambda row: _median(row.speedup.get("ssgd")),
        cell=_speedup_cell("ssgd"),
        largest=True,
    ),
    Column(
        key="speedup_alone",
        title="vs alone",
        heading="speed-up over alone",
        meaning="median time of alone (the fastest machine by itself) over the method's; "
        "range over the seeds",
        value=lambda row: _median(row.speedup.get("alone")),
        cell=_speedup_cell("alone"),
        largest=True,
    ),
    Column(
        key="bytes_per_step",
        title="sent/step",
        heading="sent per step",
        meaning="bytes sent per worker and step, as counted on the wire with headers; bytes sent "
        "by servers are shared out over the workers",
        value=lambda row: _mean(row.step_bytes) if row.num_workers > 1 else None,
        cell=_plain_cell(lambda row: row.step_bytes, size_words),
    ),
    Column(
        key="waiting",
        title="waiting",
        heading="time waiting",
        meaning="share of the workers' time spent waiting for messages",
        value=lambda row: _mean(row.waiting) if row.num_workers > 1 else None,
        cell=_plain_cell(lambda row: row.waiting, percent_words),
    ),
    Column(
        key="energy",
        title="energy",
        heading="energy",
        meaning="joules of all machines for the whole run, from the powers in the cluster "
        "description",
        value=lambda row: _mean(row.energy),
        cell=_plain_cell(lambda row: row.energy, energy_words),
    ),
    Column(
        key="duration",
        title="run",
        heading="run time",
        meaning="time of the whole run on its own clock",
        value=lambda row: _mean(row.duration),
        cell=_plain_cell(lambda row: row.duration, time_words),
    ),
    Column(
        key="wall",
        title="wall",
        heading="computed in",
        meaning="real time that this computer took for one run",
        value=lambda row: _mean(row.wall),
        cell=_plain_cell(lambda row: row.wall, time_words),
        ranked=False,
    ),
)


def columns_of(comparison: Comparison) -> list[Column]:
    """The columns that say something here: no energy without joules, no ratio without its base."""

    def shown(column: Column) -> bool:
        base = column.key.removeprefix("speedup_")
        if base != column.key:
            return base in comparison.baselines
        return any(column.value(row) is not None for row in comparison.rows)

    return [column for column in COLUMNS if shown(column)]


def best_rows(column: Column, comparison: Comparison) -> list[str]:
    """The labels with the best value of a column; equal ones as shown are all best.

    Being cheap is no merit of a method that did not do the work: but for accuracy, only those that
    reached the target and kept it are looked at, if there is one.
    """
    rows = [row for row in comparison.rows if not row.failed]
    if not column.key.endswith("accuracy"):
        rows = comparison.ranked or rows
    values = {row.label: value for row in rows if (value := column.value(row)) is not None}
    if not column.ranked or len(values) < 2:
        return []
    best = (max if column.largest else min)(values.values())
    texts = {label: column.cell(comparison.row(label)).text for label in values}
    shown = {texts[label] for label, value in values.items() if value == best}
    return [label for label in values if texts[label] in shown]


def comparison_table(comparison: Comparison, console: Console) -> Table:
    """The table for a terminal: as many columns as it has room for, dropped by importance.

    The best value of a column is bold green and marked "*", so that the mark survives a pipe.
    """
    columns = columns_of(comparison)
    grid = _grid(columns, comparison, ranges=True)
    if _width(grid) > console.width:
        grid = _grid(columns, comparison, ranges=False)
    for key in _DROP_FIRST:
        if _width(grid) <= console.width:
            break
        columns = [column for column in columns if column.key != key]
        grid = _grid(columns, comparison, ranges=False)
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold")
    for index, title in enumerate(grid[0]):
        table.add_column(plain(title.plain.rstrip(), console), justify="right" if index else "left")
    for cells in grid[1:]:
        table.add_row(*(Text(plain(cell.plain, console), style=cell.style) for cell in cells))
    return table


_DROP_FIRST = (
    "wall",
    "duration",
    "best_accuracy",
    "energy",
    "waiting",
    "speedup_ssgd",
    "bytes_per_step",
    "speedup_alone",
)


def _grid(columns: list[Column], comparison: Comparison, ranges: bool) -> list[list[Text]]:
    best = {column.key: best_rows(column, comparison) for column in columns}
    return [
        [Text("method"), *(Text(f"{column.title} ") for column in columns)],
        *(
            [
                Text(row.label),
                *(_text(column, row, row.label in best[column.key], ranges) for column in columns),
            ]
            for row in comparison.rows
        ),
    ]


def _width(grid: list[list[Text]]) -> int:
    widths = [max(cell.cell_len for cell in cells) for cells in zip(*grid, strict=True)]
    return sum(widths) + 2 * (len(widths) - 1)


def _text(column: Column, row: MethodSummary, best: bool, ranges: bool) -> Text:
    cell = column.cell(row)
    text = cell.text
    if cell.spread and column.key.endswith("accuracy"):
        text = f"{text} {cell.spread}"
    elif cell.spread and ranges:
        text = f"{text} ({cell.spread})"
    if best:
        return Text(f"{text}*", style="bold green")
    return Text(f"{text} ", style="yellow" if cell.missed and cell.text != "–" else "")


_ASCII = str.maketrans({"±": "+-", "×": "x", "–": "-", "µ": "u", "…": "...", "’": "'"})


def plain(text: str, console: Console) -> str:
    """The text as the console's encoding can show it."""
    try:
        text.encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        return text.translate(_ASCII).encode("ascii", "replace").decode()
    return text
