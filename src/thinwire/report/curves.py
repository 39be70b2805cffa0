"""Curves over seeds: test accuracy and training loss against time, steps and bytes.

Seeds are laid on one grid by linear interpolation, over the stretch that all of them cover; the
band is their minimum and maximum. Training loss is noisy, so each run's is first averaged over
workers and over up to 40 stretches holding the same number of steps.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from thinwire.report.reader import RunRecord

__all__ = ["AXES", "METRICS", "Curve", "curve_of", "run_points"]

METRICS = ("accuracy", "loss")
AXES = ("time", "steps", "bytes")

_STRETCHES = 40
_POINTS = 120


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One method's curve: mean, minimum and maximum over `num_seeds` seeds at each `x`.

    `x` is seconds, steps, or bytes sent per worker. `partial` says that no run of the method ended
    well, so that the curve shows runs that stopped early.
    """

    label: str
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    num_seeds: int
    partial: bool = False


def curve_of(label: str, runs: list[RunRecord], metric: str, axis: str) -> Curve | None:
    """The curve of one method's runs; None if they hold no point.

    Args:
        label: the method's.
        runs: its runs, any status.
        metric: one of `METRICS`.
        axis: one of `AXES`.
    """
    good = [run for run in runs if run.status == "ok"]
    pairs = [run_points(run, metric, axis) for run in good or runs]
    pairs = [(x, y) for x, y in pairs if len(x)]
    if not pairs:
        return None
    first = max(x[0] for x, _ in pairs)
    last = min(x[-1] for x, _ in pairs)
    if first > last:  # seeds without a common stretch: the longest alone
        pairs = [max(pairs, key=lambda pair: pair[0][-1])]
        first, last = pairs[0][0][0], pairs[0][0][-1]
    grid = np.unique(np.clip(np.concatenate([x for x, _ in pairs]), first, last))
    if len(grid) > _POINTS:
        grid = grid[np.unique(np.linspace(0, len(grid) - 1, _POINTS).astype(int))]
    laid = np.stack([np.interp(grid, x, y) for x, y in pairs])
    return Curve(
        label=label,
        x=tuple(grid.tolist()),
        mean=tuple(laid.mean(0).tolist()),
        low=tuple(laid.min(0).tolist()),
        high=tuple(laid.max(0).tolist()),
        num_seeds=len(pairs),
        partial=not good,
    )


def run_points(run: RunRecord, metric: str, axis: str) -> tuple[np.ndarray, np.ndarray]:
    """One run's points, finite ones only, x rising.

    Returns:
        x and y, float64, of equal length.
    """
    if metric == "accuracy":
        x = np.array(_eval_positions(run, axis))
        y = np.array([line.accuracy for line in run.evals])
    else:
        x, y = _loss_points(run, axis)
    keep = np.isfinite(x) & np.isfinite(y)
    x, y = x[keep], y[keep]
    order = np.argsort(x, kind="stable")
    return x[order], y[order]


def _eval_positions(run: RunRecord, axis: str) -> list[float]:
    if axis == "time":
        return [line.time for line in run.evals]
    if axis == "steps":
        return [float(line.step) for line in run.evals]
    traces = _sent_by_rank(run)
    if not traces:
        final = run.evals[-1].sent if run.evals else 0
        total = _sent_per_worker(run)
        scale = total / final if total is not None and final else 1.0
        return [line.sent * scale for line in run.evals]
    found = []
    for line in run.evals:
        places = [(bisect_right(times, line.time), sent) for times, sent in traces.values()]
        sent_so_far = [sent[place - 1] if place else 0.0 for place, sent in places]
        found.append(sum(sent_so_far) / len(sent_so_far))
    return found


def _sent_per_worker(run: RunRecord) -> float | None:
    """Bytes of the whole run over its workers, the servers' included; None without an end."""
    if run.end is None or not run.end.sent:
        return None
    return (sum(run.end.sent) + run.end.server_sent) / len(run.end.sent)


def _sent_by_rank(run: RunRecord) -> dict[int, tuple[list[float], list[float]]]:
    """Times and bytes of each worker that logged its steps, as if it were the average worker.

    Often only worker 0 logs, and workers need not send alike (a tree's root, a server's clients):
    so a worker's bytes are stretched to what an average worker sent in the whole run.
    """
    traces: dict[int, tuple[list[float], list[float]]] = {}
    for line in run.steps:
        times, sent = traces.setdefault(line.rank, ([], []))
        times.append(line.time)
        sent.append(float(line.sent))
    total = _sent_per_worker(run)
    if total is None or run.end is None:
        return traces
    for rank, (times, sent) in traces.items():
        own = run.end.sent[rank] if rank < len(run.end.sent) else 0
        if own:
            sent[:] = [value * total / own for value in sent]
        elif total and run.end.time > 0:  # it never sends, others do: their bytes, evenly in time
            sent[:] = [total * time / run.end.time for time in times]
    return traces


def _loss_points(run: RunRecord, axis: str) -> tuple[np.ndarray, np.ndarray]:
    if not run.steps:
        return np.empty(0), np.empty(0)
    y = np.array([line.loss for line in run.steps])
    if axis == "time":
        x = np.array([line.time for line in run.steps])
    elif axis == "steps":
        x = np.array([float(line.step) for line in run.steps])
    else:
        traces = {rank: iter(sent) for rank, (_, sent) in _sent_by_rank(run).items()}
        x = np.array([next(traces[line.rank]) for line in run.steps])
    known = np.isfinite(y)  # a script may log the time of a step without its loss
    if not known.any():
        return np.empty(0), np.empty(0)
    x, y = x[known], y[known]
    order = np.argsort(x, kind="stable")
    # A method that sends nothing has one position only; its last losses stand for it.
    if x[order[0]] == x[order[-1]]:
        tail = y[-max(1, len(y) // _STRETCHES) :]
        return x[:1], np.array([float(tail.mean())])
    parts = np.array_split(order, min(_STRETCHES, len(order)))
    return (
        np.array([x[part].mean() for part in parts]),
        np.array([y[part].mean() for part in parts]),
    )
