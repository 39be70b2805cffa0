"""The comparison for other programs: `summary.json`, `summary.csv` (the table), `curves.csv`.

Numbers are SI and unrounded; what is missing is null or an empty cell, never zero.
"""

from __future__ import annotations

import csv
import io
from dataclasses import asdict
from typing import Any

import msgspec

from thinwire.report.compare import Comparison, MethodSummary, Spread
from thinwire.report.predicted import predicted_rows
from thinwire.report.reader import Record
from thinwire.report.table import COLUMNS
from thinwire.report.verdict import remarks, verdict

__all__ = ["curves_csv", "summary_csv", "summary_json"]

SCHEMA = 1


def summary_json(record: Record, comparison: Comparison) -> str:
    """Verdict, target, a row per method with its spreads, and what was said in words."""
    told: dict[str, Any] = {
        "schema": SCHEMA,
        "verdict": verdict(comparison),
        "target": asdict(comparison.target) if comparison.target else None,
        "mode": comparison.mode,
        "baselines": comparison.baselines,
        "methods": [_row(row) for row in comparison.rows],
        "remarks": remarks(comparison, record),
        "predicted": predicted_rows(record),
        "command": record.header.command,
        "versions": record.header.versions,
    }
    return msgspec.json.format(msgspec.json.encode(told), indent=2).decode() + "\n"


def _row(row: MethodSummary) -> dict[str, Any]:
    return {
        "label": row.label,
        "method": row.method,
        "workers": row.num_workers,
        "seeds": row.seeds,
        "failed_seeds": row.failed,
        "interrupted_seeds": row.interrupted,
        "reached": row.hits,
        "final_accuracy": _spread(row.final),
        "best_accuracy": _spread(row.best),
        "times_to_target": row.times,
        "time_to_target": _spread(row.time),
        "speedup": {base: _spread(spread) for base, spread in row.speedup.items()},
        "bytes_per_worker_and_step": _spread(row.step_bytes),
        "waiting_share": _spread(row.waiting),
        "energy": _spread(row.energy),
        "duration": _spread(row.duration),
        "wall": _spread(row.wall),
        "phases_per_step": row.phases,
    }


def _spread(spread: Spread | None) -> dict[str, Any] | None:
    return asdict(spread) if spread else None


def summary_csv(comparison: Comparison) -> str:
    """The table: a line per method, the columns of `table.COLUMNS` as plain numbers."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    keys = [column.key for column in COLUMNS]
    writer.writerow(
        ["label", "method", "workers", "seeds", "failed", "interrupted", "reached", *keys]
    )
    for row in comparison.rows:
        values = [column.value(row) for column in COLUMNS]
        counts = [len(row.seeds), len(row.failed), len(row.interrupted), row.hits]
        writer.writerow(
            [row.label, row.method, row.num_workers, *counts]
            + ["" if value is None else repr(value) for value in values]
        )
    return out.getvalue()


def curves_csv(record: Record) -> str:
    """Every evaluation of every run."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["label", "seed", "run", "status", "step", "time", "samples", "sent", "accuracy", "loss"]
    )
    for run in record.runs:
        start = run.start
        for line in run.evals:
            place = [start.label, start.seed, start.run, run.status, line.step, repr(line.time)]
            measured = [line.samples, line.sent, repr(line.accuracy), repr(line.loss)]
            writer.writerow([*place, *measured])
    return out.getvalue()
