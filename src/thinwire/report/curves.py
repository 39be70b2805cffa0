"""Curves over seeds: test accuracy and training loss against time, steps and bytes.

Seeds are laid on one grid by linear interpolation, over the stretch that all of them cover; the
band is their minimum and maximum. Training loss is noisy, so each run's is first averaged over
workers and over up to 60 stretches holding the same number of steps.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from thinwire.report.reader import RunRecord

__all__ = ["AXES", "METRICS", "Curve", "curve_of", "run_points"]

METRICS = ("accuracy", "loss")
AXES = ("time", "steps", "bytes")

_STRETCHES = 60
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
    share = _server_share(run)
    ranks: dict[int, tuple[list[float], list[int]]] = {}
    for step in run.steps:
        times, sent = ranks.setdefault(step.rank, ([], []))
        times.append(step.time)
        sent.append(step.sent)
    if not any(sent[-1] for _, sent in ranks.values()):
        return [line.sent * share for line in run.evals]
    count = len(run.start.nodes) or len(ranks)
    found = []
    for line in run.evals:
        places = [(bisect_right(times, line.time), sent) for times, sent in ranks.values()]
        found.append(sum(sent[place - 1] for place, sent in places if place) / count * share)
    return found


def _server_share(run: RunRecord) -> float:
    """Servers send too: what they sent is spread over the run as the workers' bytes are."""
    if run.end is None or not sum(run.end.sent):
        return 1.0
    return 1.0 + run.end.server_sent / sum(run.end.sent)


def _loss_points(run: RunRecord, axis: str) -> tuple[np.ndarray, np.ndarray]:
    if not run.steps:
        return np.empty(0), np.empty(0)
    if axis == "time":
        x = np.array([line.time for line in run.steps])
    elif axis == "steps":
        x = np.array([float(line.step) for line in run.steps])
    else:
        x = np.array([float(line.sent) for line in run.steps]) * _server_share(run)
    y = np.array([line.loss for line in run.steps])
    order = np.argsort(x, kind="stable")
    # A method that sends nothing has one position only; its last losses stand for it.
    if x[order[0]] == x[order[-1]]:
        tail = y[-max(1, len(y) // _STRETCHES) :]
        return x[:1], np.array([float(np.nanmean(tail))])
    parts = np.array_split(order, min(_STRETCHES, len(order)))
    return (
        np.array([x[part].mean() for part in parts]),
        np.array([y[part].mean() for part in parts]),
    )
