"""The table and the pictures of `benchmarks/cifar_script.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _picture import standalone
from thinwire.report.charts import Axis, line_chart
from thinwire.report.curves import Curve

__all__ = ["draw", "table"]

_HEADS = ("method", "rate", "batches", "test accuracy", "time to it", "per batch",
          "against one machine", "against DDP", "sent by a host")  # fmt: skip


def table(rows: Sequence[dict[str, Any]]) -> str:
    """One in Markdown for each link."""
    parts = []
    for link in dict.fromkeys(row["link"] for row in rows):
        some = [row for row in rows if row["link"] == link]
        lines = ["| " + " | ".join(_HEADS) + " |", "|---" * len(_HEADS) + "|"]
        lines += ["| " + " | ".join(_cells(row, some)) + " |" for row in some]
        parts.append(f"## {link}, {some[0]['model']}\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def _cells(row: dict[str, Any], all_rows: Sequence[dict[str, Any]]) -> list[str]:
    rate = f"{row['lr']:g}" if row["lr"] else "–"
    if "failed" in row:
        seconds = f" in {row['seconds']:.0f} s" if "seconds" in row else ""
        reached = f"**not reached**: {100 * row['accuracy']:.1f} %{seconds}"
        return [row["label"], rate, str(row.get("batches", "–")), reached, *["–"] * 5]
    against = [_times(row, all_rows, label) for label in ("one machine", "DDP (gloo)")]
    return [row["label"], rate, str(row["batches"]), f"{100 * row['accuracy']:.1f} %",
            f"{row['seconds']:.1f} s", f"{1e3 * row['seconds'] / row['batches']:.0f} ms",
            *against, f"{row['sent'] / 1e6:.2f} MB"]  # fmt: skip


def _times(row: dict[str, Any], all_rows: Sequence[dict[str, Any]], label: str) -> str:
    """How many times as fast as the first row of that label."""
    for other in all_rows:
        if other["label"] == label and "failed" not in other:
            return f"{other['seconds'] / row['seconds']:.2f}×"
    return "–"


def draw(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Test accuracy against seconds of training, an SVG picture for each link."""
    for link in dict.fromkeys(row["link"] for row in rows):
        some = [row for row in rows if row["link"] == link and row.get("history")]
        if not some:
            continue
        curves = [_curve(row) for row in {row["label"]: row for row in some}.values()]
        styles = {curve.label: i for i, curve in enumerate(curves)}
        last = max(curve.x[-1] for curve in curves)
        least = min(min(curve.mean) for curve in curves)
        most = max(max(curve.mean) for curve in curves)
        chart = line_chart(
            curves,
            styles,
            Axis(title="seconds of training", low=0.0, high=last),
            Axis(title="test accuracy", low=least, high=most + 0.01, words=_percent),
            width=720,
            height=400,
            name=f"CIFAR-10, {some[0]['model']}, {link}",
            target=some[0]["target"],
        )
        file.with_stem(f"{file.stem}-{link}").write_text(standalone(chart))


def _curve(row: dict[str, Any]) -> Curve:
    _, seconds, accuracy = zip(*row["history"], strict=True)
    label = row["label"].split(" (density")[0]
    return Curve(label=label, x=seconds, mean=accuracy, low=accuracy, high=accuracy, num_seeds=1)


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"
