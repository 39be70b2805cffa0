"""Loss per second: how methods learn by steps, laid on the time that a plan says a step takes.

A plan ranks methods by samples per second, and a lossy method's sample may be worth less. A pilot
trains the best few for a short while. Their curves (loss after so many steps) times the plan's
seconds per step are loss over time. Compared is the time to a loss that all which learn have
reached, and the loss at the time when the first has done all its samples.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thinwire.errors import InputError
from thinwire.planner.pilot_words import pilot_notes, pilot_verdict
from thinwire.planner.refine import Refined, Row

__all__ = [
    "BASELINE",
    "BEST",
    "Curve",
    "Learned",
    "Pilot",
    "curve_of_points",
    "judge",
    "pilot_rows",
    "pilot_steps",
    "trained_as",
]

SCHEMA = 1

BEST = 4
"""Lossy methods that are trained, beside one machine and the dense baseline."""

BASELINE = "ssgd"
"""The curve of all methods whose updates are those of plain S-SGD."""

_MOST = 0.9
"""Part of the best one's way down that a method must have gone for its loss to be compared at."""

_SECONDS = 30.0
_CORES = 2
_GRADIENT = 6e-3
_RATE = 5e9
"""What the default number of steps is for: so many seconds on so many cores, where a gradient takes
so long beside its operations, which go at this rate. Round figures of a small server. Not asked of
the machine, so that a pilot is the same one everywhere."""

_FEWEST, _MANY = 20, 300


@dataclass(frozen=True, kw_only=True)
class Curve:
    """How a method learned. The three tuples are equally long, `steps` rises.

    Args:
        label: of `trained_as`.
        steps: of one batch per worker, from 0 on.
        losses: mean over the test data, finite.
        accuracies: on the test data, 0..1.
        diverged: whether later losses were infinite or no number.
        whole: whether it has all the steps that were asked for.
    """

    label: str
    steps: tuple[float, ...]
    losses: tuple[float, ...]
    accuracies: tuple[float, ...]
    diverged: bool = False
    whole: bool = True


@dataclass(frozen=True, kw_only=True)
class Learned:
    """A row of the plan with its curve in virtual time.

    Args:
        row: of the plan.
        curve: of its updates.
        times: virtual seconds of the curve's points.
        loss: at the pilot's common time; None where its curve ends before.
        accuracy: then, likewise.
        reached: virtual seconds until the common loss; None: not reached.
    """

    row: Row
    curve: Curve
    times: tuple[float, ...]
    loss: float | None = None
    accuracy: float | None = None
    reached: float | None = None

    @property
    def label(self) -> str:
        """What tables call it."""
        return self.row.label


@dataclass(frozen=True, kw_only=True)
class Pilot:
    """What a pilot found.

    Args:
        task: that was trained.
        steps: of one batch per worker.
        batch: samples per worker and step of that training.
        seed: of it.
        rows: the soonest at the common loss first, then those that miss it.
        common_loss: that all rows that learn have reached; None where none learned.
        common_time: virtual seconds after which losses are compared.
        dense: label of the dense baseline.
        verdict: one or two sentences.
        notes: what a reader must not overlook.
        folder: where the record lies.
    """

    task: str
    steps: int
    batch: int
    seed: int
    rows: tuple[Learned, ...]
    common_loss: float | None
    common_time: float | None
    dense: str
    verdict: str
    notes: tuple[str, ...]
    folder: str = ""

    def __getitem__(self, label: str) -> Learned:
        """The row of that label."""
        for row in self.rows:
            if row.label == label:
                return row
        raise KeyError(label)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with a `schema` number; virtual seconds."""
        told = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        rows = [
            {
                "label": each.label,
                "trained_as": each.curve.label,
                "step_time": each.row.simulated.step_time,
                "loss": each.loss,
                "accuracy": each.accuracy,
                "time_to_common_loss": each.reached,
                "diverged": each.curve.diverged,
                "whole": each.curve.whole,
                "curve": {
                    "steps": list(each.curve.steps),
                    "times": list(each.times),
                    "losses": list(each.curve.losses),
                    "accuracies": list(each.curve.accuracies),
                },
            }
            for each in self.rows
        ]
        return {"schema": SCHEMA, **told, "rows": rows, "notes": list(self.notes)}


def pilot_rows(refined: Refined, best: int = BEST) -> tuple[Row, ...]:
    """The rows to train: the fastest dense one, the best lossy ones, one machine.

    Longer periods than asked for are among them: a pilot shows what they cost.

    Args:
        refined: the plan.
        best: lossy rows, 1 or more.

    Raises:
        InputError: `best` below 1, or a plan for one machine.
    """
    if best < 1:
        raise InputError(f"pilot best = {best}; allowed: a whole number, 1 or more")
    exact = [row for row in refined.rows if trained_as(row) == BASELINE]
    if not exact:
        raise InputError("a pilot compares methods, and one machine has nothing to exchange")
    dense = max(exact, key=lambda row: row.simulated.samples_per_second)
    lossy = [row for row in refined.rows if row.candidate.lossy]
    if refined.choice.candidate.lossy and refined.choice not in lossy[:best]:
        lossy = [*lossy[: best - 1], refined.choice]
    return (dense, *lossy[:best], refined["alone"])


def trained_as(row: Row) -> str:
    """The label of the training whose curve is this row's: rows with the same updates share one."""
    candidate = row.candidate
    return candidate.label if candidate.lossy or candidate.method == "alone" else BASELINE


def pilot_steps(flops: float, batch: int, workers: int, runs: int) -> int:
    """Steps of each run with which a pilot takes about half a minute on two cores, 20 to 300.

    Args:
        flops: of one sample, forward and backward.
        batch: samples per worker and step.
        workers: of the cluster.
        runs: methods that are trained.
    """
    each = _GRADIENT + flops * batch / _RATE
    steps = _SECONDS * _CORES / (each * workers * runs)
    return max(_FEWEST, min(_MANY, round(steps)))


def curve_of_points(
    label: str, points: Iterable[tuple[float, float, float]], *, whole: bool
) -> Curve:
    """A curve up to its first loss that is no finite number.

    Args:
        label: of `trained_as`.
        points: steps, loss, accuracy; steps rise.
        whole: whether the run came to its end.
    """
    kept: list[tuple[float, float, float]] = []
    diverged = False
    for point in points:
        diverged = not math.isfinite(point[1])
        if diverged:
            break
        kept.append(point)
    return Curve(
        label=label,
        steps=tuple(p[0] for p in kept),
        losses=tuple(p[1] for p in kept),
        accuracies=tuple(p[2] for p in kept),
        diverged=diverged,
        whole=whole,
    )


def judge(
    refined: Refined,
    rows: Sequence[Row],
    curves: Mapping[str, Curve],
    *,
    task: str,
    steps: int,
    batch: int,
    seed: int = 0,
    notes: Sequence[str] = (),
    folder: str = "",
) -> Pilot:
    """Lay the curves on the plan's times, rank them, and say what that comes to.

    Args:
        refined: the plan.
        rows: of `pilot_rows`.
        curves: by label of `trained_as`; what is missing was not trained.
        task: that was trained.
        steps: asked for, of each run with all workers.
        batch: samples per worker and step of the training.
        seed: of the training.
        notes: put before those that follow from the curves.
        folder: of the record.
    """
    found, untrained = [], []
    for row in rows:
        curve = curves.get(trained_as(row))
        if curve is None or len(curve.steps) < 2:
            untrained.append(_untrained(row, curve))
        else:
            times = tuple(row.simulated.step_time * step for step in curve.steps)
            found.append(Learned(row=row, curve=curve, times=times))
    loss, until = _common_loss(found), _common_time(found)
    measured = [_measured(each, loss, until) for each in found]
    ranked = tuple(sorted(measured, key=_place))
    dense = rows[0].label
    return Pilot(
        task=task,
        steps=steps,
        batch=batch,
        seed=seed,
        rows=ranked,
        common_loss=loss,
        common_time=until,
        dense=dense,
        verdict=pilot_verdict(refined, ranked, loss, dense, len(rows)),
        notes=(*notes, *untrained, *pilot_notes(ranked, loss)),
        folder=folder,
    )


def _untrained(row: Row, curve: Curve | None) -> str:
    if curve is not None and curve.diverged:
        return f"{row.label}: its loss was no finite number from the beginning."
    return f"{row.label}: not trained, or not to its first test."


def _common_loss(found: Sequence[Learned]) -> float | None:
    """The lowest loss that all of those have reached that came most of the way down."""
    if not found:
        return None
    start = max(each.curve.losses[0] for each in found)
    least = [min(each.curve.losses) for each in found]
    floor = min(least)
    if floor >= start:
        return None
    return max(loss for loss in least if loss <= start - _MOST * (start - floor))


def _common_time(found: Sequence[Learned]) -> float | None:
    """When the first has done all its samples; of a pilot stopped before, the first last test."""
    fine = [each for each in found if not each.curve.diverged]
    ended = [each for each in fine if each.curve.whole] or fine
    return min((each.times[-1] for each in ended), default=None)


def _measured(each: Learned, loss: float | None, until: float | None) -> Learned:
    curve = each.curve
    return dataclasses.replace(
        each,
        loss=None if until is None else _at(each.times, curve.losses, until),
        accuracy=None if until is None else _at(each.times, curve.accuracies, until),
        reached=None if loss is None else _first_below(each.times, curve.losses, loss),
    )


def _at(times: Sequence[float], values: Sequence[float], when: float) -> float | None:
    """The value at a time, between two points by a straight line; None after the last."""
    place = bisect_left(times, when)
    if place == len(times):
        return None
    if place == 0:
        return values[0]
    share = (when - times[place - 1]) / (times[place] - times[place - 1])
    return values[place - 1] + share * (values[place] - values[place - 1])


def _first_below(times: Sequence[float], losses: Sequence[float], loss: float) -> float | None:
    """When the curve first comes down to a loss."""
    for place, value in enumerate(losses):
        if value > loss:
            continue
        if place == 0:
            return times[0]
        share = (losses[place - 1] - loss) / (losses[place - 1] - value)
        return times[place - 1] + share * (times[place] - times[place - 1])
    return None


def _place(each: Learned) -> tuple[bool, float, float]:
    reached = math.inf if each.reached is None else each.reached
    return each.curve.diverged, reached, min(each.curve.losses)
