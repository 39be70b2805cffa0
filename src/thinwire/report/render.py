"""From a run folder to everything a reader gets: words on the terminal, page, trace, files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from thinwire.errors import InputError
from thinwire.report.compare import Comparison, compare
from thinwire.report.html import report_html
from thinwire.report.phases import phases_table
from thinwire.report.predicted import predicted_table
from thinwire.report.reader import Record, read_record
from thinwire.report.summary import curves_csv, summary_csv, summary_json
from thinwire.report.table import comparison_table, plain
from thinwire.report.timeline import write_trace
from thinwire.report.verdict import remarks, verdict
from thinwire.report.whole import write_whole

__all__ = ["Rendered", "render"]


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """What `render` read, found and wrote.

    Attributes:
        verdict: the sentence.
        files: every file written, the page first.
    """

    record: Record
    comparison: Comparison
    verdict: str
    files: tuple[Path, ...]


def render(
    folder: str | os.PathLike[str],
    *,
    target: str | float | None = None,
    phases: bool | None = None,
    console: Console | None = None,
) -> Rendered:
    """Read a run folder, print verdict and table, and write the report beside the record.

    Writes `report.html`, `summary.json`, `summary.csv`, `curves.csv` and, where spans were
    recorded, `trace.json.gz`. Each file is replaced as a whole or not at all.

    Args:
        folder: the run folder.
        target: as `compare` takes it.
        phases: whether to print where a step's time went, too; None: of real runs only.
        console: where to print; None is the standard output.

    Raises:
        InputError: a folder without a readable record or runs, a target that cannot be read, or a
            folder that cannot be written.
    """
    console = console if console is not None else Console()
    record = read_record(folder)
    if not record.runs:
        raise InputError(f"{record.folder} holds no run: it was stopped before the first began")
    comparison = compare(record, target)
    shown = comparison.mode == "real" if phases is None else phases
    _print(record, comparison, console, shown)
    files = _write_all(record, comparison)
    console.print(
        plain(f"Report: {files[0]}", console), highlight=False, markup=False, soft_wrap=True
    )
    return Rendered(
        record=record, comparison=comparison, verdict=verdict(comparison), files=tuple(files)
    )


def _print(record: Record, comparison: Comparison, console: Console, phases: bool) -> None:
    console.print()
    console.print(Text(plain(verdict(comparison), console), style="bold"))
    console.print()
    console.print(comparison_table(comparison, console))
    console.print()
    console.print(Text(plain(_caption(comparison), console), style="dim"))
    for remark in remarks(comparison, record):
        console.print(Text(plain(remark, console)))
    foreseen = predicted_table(record, console)
    if foreseen is not None:
        console.print()
        console.print(foreseen)
    if phases:
        _print_phases(comparison, console)
    console.print()


def _print_phases(comparison: Comparison, console: Console) -> None:
    console.print()
    table = phases_table(comparison, console)
    if table is None:
        console.print(Text("This record does not say where a step's time went.", style="dim"))
    else:
        console.print(table)


def _caption(comparison: Comparison) -> str:
    if comparison.target is None:
        return "* best of its column."
    clock = f"{comparison.mode} time" if comparison.mode else "time"
    return (
        "* best of its column, costs among those that reached the target. To target: "
        f"{clock} to {comparison.target} ({comparison.target.source}), median over the seeds; "
        "accuracies: mean ± standard deviation. vs: speed-up to the target."
    )


def _write_all(record: Record, comparison: Comparison) -> list[Path]:
    folder = record.folder
    texts = {
        "report.html": report_html(record, comparison),
        "summary.json": summary_json(record, comparison),
        "summary.csv": summary_csv(comparison),
        "curves.csv": curves_csv(record),
    }
    written = []
    try:
        for name, text in texts.items():
            write_whole(folder / name, text.encode())
            written.append(folder / name)
        trace = folder / "trace.json.gz"
        if write_trace(record, trace):
            written.append(trace)
    except OSError as error:
        raise InputError(
            f"{folder} cannot be written ({error.strerror}); the report needs a folder that you "
            "may write to: copy the record to one"
        ) from error
    return written
