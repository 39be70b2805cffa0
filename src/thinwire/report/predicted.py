"""What was predicted before a run beside what was measured in it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from thinwire.report.reader import Record, RunRecord
from thinwire.report.table import plain
from thinwire.report.words import percent_words, time_words
from thinwire.units import format_size

__all__ = ["Held", "held", "predicted_rows", "predicted_table"]


@dataclass(frozen=True, kw_only=True)
class Held:
    """One figure of a run: seconds, bytes, or a share of 0..1."""

    run: str
    what: str
    predicted: float
    measured: float

    @property
    def error(self) -> float | None:
        """Of times and bytes relative to what was measured, positive where too much was predicted;
        of shares the difference. None where nothing was measured to compare with."""
        if self.what == "waiting":
            return self.predicted - self.measured
        return self.predicted / self.measured - 1 if self.measured else None


def held(record: Record) -> list[Held]:
    """Every predicted figure of the runs that ended well."""
    return [each for run in record.runs for each in _of(run)]


def _of(run: RunRecord) -> list[Held]:
    end, told = run.end, run.start.predicted
    if end is None or end.status != "ok" or not end.steps or not end.sent or not told:
        return []
    # Everybody waits while a model is tested, and a prediction knows of no test.
    testing = max((phases.get("evaluate", 0.0) for phases in end.phases), default=0.0)
    measured = {
        "step_time": (end.time - testing) / end.steps,
        "bytes_per_step": (sum(end.sent) + end.server_sent) / len(end.sent) / end.steps,
    }
    spent = [sum(phases.values()) - phases.get("evaluate", 0.0) for phases in end.phases]
    if spent and all(seconds > 0 for seconds in spent):
        # The others' waits for the one that tests are not the method's.
        own = [phases.get("evaluate", 0.0) for phases in end.phases]
        waits = [max(0.0, p.get("wait", 0.0) - (testing - t))
                 for p, t in zip(end.phases, own, strict=True)]  # fmt: skip
        length = end.time - testing
        measured["waiting"] = sum(waits) / len(waits) / length if length > 0 else 0.0
    return [
        Held(run=run.start.run, what=what, predicted=told[what], measured=value)
        for what, value in measured.items()
        if what in told
    ]


def predicted_rows(record: Record) -> list[dict[str, Any]]:
    """The same as plain data."""
    return [{**asdict(each), "error": each.error} for each in held(record)]


_NAMES = {"step_time": "a step", "bytes_per_step": "sent", "waiting": "waiting"}


def predicted_table(record: Record, console: Console) -> Table | None:
    """Predicted beside measured with the error, a line per figure.

    Args:
        record: with runs that were predicted.
        console: on which it is to be shown.

    Returns:
        None if no run that ended well was predicted.
    """
    found = held(record)
    if not found:
        return None
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold")
    for index, title in enumerate(["run", "", "predicted", "measured", "error"]):
        table.add_column(title, justify="right" if index > 1 else "left")
    for each in found:
        cells = [each.run, _NAMES[each.what], _words(each, each.predicted),
                 _words(each, each.measured), _error(each)]  # fmt: skip
        table.add_row(*(plain(cell, console) for cell in cells))
    return table


def _words(each: Held, value: float) -> str:
    if each.what == "step_time":
        return time_words(value)
    return format_size(value) if each.what == "bytes_per_step" else percent_words(value)


def _error(each: Held) -> str:
    if each.error is None:
        return "–"
    unit = " points" if each.what == "waiting" else " %"
    return f"{100 * each.error:+.1f}{unit}"
