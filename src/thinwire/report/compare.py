"""From a record to one row per method: what it reached, when, and at what cost.

The rules, the same on every surface:

* A run reaches the target at its first evaluation at or above it; nothing is interpolated.
* A method has a time to the target only if every finished seed reached it. One miss makes it a
  miss, shown with its count and never averaged away.
* A failed run is an outcome and counts as a miss. An interrupted run is none: it is left out of
  every number, and said so.
* A speed-up is the median time of the baseline over the median time of the method; its spread is
  that of the ratios seed by seed.
* A method whose final accuracy is more than a point below the target did not keep it: the table
  shows its time, the verdict passes it over.
* A tie: the seeds' ranges overlap, or the medians differ by at most 2 %.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from thinwire.errors import InputError, nearest
from thinwire.phases import PHASES
from thinwire.report.reader import Record, RunRecord
from thinwire.report.record import End
from thinwire.report.words import accuracy_words

__all__ = [
    "BASELINES",
    "Comparison",
    "MethodSummary",
    "Spread",
    "Target",
    "compare",
    "parse_target",
    "tied",
]

BASELINES = ("ssgd", "alone")
"""Plain DDP's method and the fastest machine by itself."""

_DEFAULT_TARGET = "97%"
_TIE = 0.02
_KEPT = 0.01


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A value over seeds: mean, sample standard deviation (0 for one seed), median and range."""

    mean: float
    deviation: float
    median: float
    low: float
    high: float
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Spread | None:
        """None for no values."""
        if not values:
            return None
        return Spread(
            mean=statistics.fmean(values),
            deviation=statistics.stdev(values) if len(values) > 1 else 0.0,
            median=statistics.median(values),
            low=min(values),
            high=max(values),
            count=len(values),
        )


@dataclass(frozen=True, kw_only=True)
class Target:
    """The test accuracy to reach, 0..1, and where it comes from in words."""

    accuracy: float
    source: str

    def __str__(self) -> str:
        return f"{accuracy_words(self.accuracy)} test accuracy"


@dataclass(frozen=True, kw_only=True)
class MethodSummary:
    """One row of the comparison.

    Attributes:
        seeds: the finished seeds, failed ones among them, in the order of `times`.
        goal: the target accuracy.
        final, best: test accuracy over the seeds that ended well.
        times: per finished seed seconds to the target, None for a miss.
        time: over seeds, only if none missed.
        speedup: over each baseline label, only if both have a time.
        step_bytes: bytes sent per worker and step; servers' bytes are shared out over the workers.
        waiting: share of the workers' time spent waiting, 0..1.
        energy: joules of the whole run, all nodes.
        duration: seconds of the whole run on its own clock; `wall`: of this machine's.
        phases: seconds of a step by phase, mean over workers and seeds; empty where not recorded.
    """

    label: str
    method: str
    num_workers: int
    seeds: tuple[int, ...]
    failed: tuple[int, ...]
    interrupted: tuple[int, ...]
    goal: float | None
    final: Spread | None
    best: Spread | None
    times: tuple[float | None, ...]
    time: Spread | None
    speedup: dict[str, Spread]
    step_bytes: Spread | None
    waiting: Spread | None
    energy: Spread | None
    duration: Spread | None
    wall: Spread | None
    phases: dict[str, float]

    @property
    def kept(self) -> bool:
        """Whether it ended near the accuracy that it had reached, or above."""
        return self.goal is None or self.final is None or self.final.mean >= self.goal - _KEPT

    @property
    def hits(self) -> int:
        """How many finished seeds reached the target."""
        return sum(time is not None for time in self.times)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Every row, the target, and the labels of the baselines that are in the record.

    `baselines` maps "ssgd" and "alone" to the label that stands for it. `asked` is the target as
    given, which is known also where what it is relative to is not.
    """

    target: Target | None
    asked: str
    rows: tuple[MethodSummary, ...]
    baselines: dict[str, str]
    mode: str

    def row(self, label: str) -> MethodSummary:
        """The row of a label that is in the record."""
        return next(row for row in self.rows if row.label == label)

    @property
    def ranked(self) -> list[MethodSummary]:
        """The rows that reached the target and kept it, soonest first."""
        rows = [row for row in self.rows if row.time is not None and row.kept]
        return sorted(rows, key=lambda row: row.time.median if row.time else math.inf)


def tied(first: Spread, second: Spread) -> bool:
    """Whether two values over seeds are too close to call: ranges overlap, or within 2 %."""
    if first.low <= second.high and second.low <= first.high:
        return True
    larger = max(abs(first.median), abs(second.median))
    return abs(first.median - second.median) <= _TIE * larger


def parse_target(
    text: str, best_final: dict[str, float], expected: Collection[str] = ()
) -> Target | None:
    """A target as given: "0.95" is an accuracy; "97%" or "97% of ssgd" is relative.

    Args:
        text: an accuracy in 0..1, or per cent of a method's best final test accuracy over its
            seeds (`alone` unless another is named; `ssgd`, then the best of all, where it is
            missing).
        best_final: label to best final accuracy, for the labels with a run that ended well.
        expected: labels that may be named although no run of theirs has ended well.

    Returns:
        None if what it is relative to is not known.

    Raises:
        InputError: not a number, out of range, or relative to a label that is not there.
    """
    number, percent, rest = text.strip().partition("%")
    rest = rest.strip()
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    label = rest.removeprefix("of ").strip() if rest.startswith("of ") else ""
    top = 100.0 if percent else 1.0
    if not 0 < value <= top or (rest and not label):
        raise InputError(
            f"target = {text!r}; give a test accuracy above 0 and up to 1, like 0.95, or one "
            'relative to a method, like "97%" (of alone\'s best) or "97% of ssgd"'
        )
    if not percent:
        return Target(accuracy=value, source="as given")
    known = [*best_final, *(each for each in expected if each not in best_final)]
    if label and known and label not in known:
        raise InputError(f"target = {text!r}: no run of {label!r}; {nearest(label, known)}")
    if not best_final or (label and label not in best_final):
        return None
    if not label:
        label = next(
            (base for base in ("alone", "ssgd") if base in best_final),
            max(best_final, key=lambda name: best_final[name]),
        )
    best = best_final[label]
    return Target(
        accuracy=value / 100 * best,
        source=f"{value:g} % of {label}'s best final accuracy, {accuracy_words(best)}",
    )


def compare(record: Record, target: str | float | None = None) -> Comparison:
    """One row per method.

    Args:
        record: as read.
        target: as `parse_target` takes it; None takes the record's `settings["target"]`, or 97%.

    Raises:
        InputError: a target that cannot be read.
    """
    groups = {label: record.of(label) for label in record.labels}
    best_final = {
        label: max(run.evals[-1].accuracy for run in runs if _counts(run))
        for label, runs in groups.items()
        if any(_counts(run) for run in runs)
    }
    asked = record.header.settings.get("target") if target is None else target
    text = _DEFAULT_TARGET if asked is None else str(asked)
    expected = [*groups, *record.header.settings.get("methods", [])]
    goal = parse_target(text, best_final, expected)
    rows = {label: _row(label, runs, goal) for label, runs in groups.items()}
    baselines = {
        base: found for base in BASELINES if (found := _baseline(base, groups)) is not None
    }
    for row in rows.values():
        for base, label in baselines.items():
            speedup = _speedup(rows[label], row)
            if speedup is not None:
                row.speedup[base] = speedup
    modes = dict.fromkeys(run.start.mode for run in record.runs)
    return Comparison(
        target=goal,
        asked=text,
        rows=tuple(rows.values()),
        baselines=baselines,
        mode=" and ".join(modes),
    )


def _counts(run: RunRecord) -> bool:
    return run.status == "ok" and bool(run.evals)


def _baseline(base: str, groups: dict[str, list[RunRecord]]) -> str | None:
    if base in groups:
        return base
    return next((label for label, runs in groups.items() if runs[0].start.method == base), None)


def _time_to(run: RunRecord, target: Target | None) -> float | None:
    if target is None or run.status != "ok":
        return None
    # Rounding in a relative target must not make the baseline miss its own accuracy.
    goal = target.accuracy - 1e-9
    return next((line.time for line in run.evals if line.accuracy >= goal), None)


def _row(label: str, runs: list[RunRecord], target: Target | None) -> MethodSummary:
    finished = [run for run in runs if run.status in ("ok", "failed")]
    good = [run for run in runs if _counts(run)]
    # A script's own run has costs, but no accuracy in its record.
    ended = [(run, run.end) for run in runs if run.status == "ok" and run.end is not None]
    times = tuple(_time_to(run, target) for run in finished)
    hits = [time for time in times if time is not None]
    return MethodSummary(
        label=label,
        method=runs[0].start.method,
        num_workers=len(runs[0].start.nodes),
        seeds=tuple(run.start.seed for run in finished),
        failed=tuple(run.start.seed for run in runs if run.status == "failed"),
        interrupted=tuple(run.start.seed for run in runs if run not in finished),
        goal=target.accuracy if target else None,
        final=Spread.of([run.evals[-1].accuracy for run in good]),
        best=Spread.of([max(line.accuracy for line in run.evals) for run in good]),
        times=times,
        time=Spread.of(hits) if hits and len(hits) == len(times) else None,
        speedup={},
        step_bytes=Spread.of(
            [
                (sum(end.sent) + end.server_sent) / (len(end.sent) * end.steps)
                for _, end in ended
                if end.sent and end.steps
            ]
        ),
        waiting=Spread.of(
            [
                sum(end.waited) / (len(end.waited) * end.time)
                for _, end in ended
                if end.waited and end.time > 0
            ]
        ),
        energy=Spread.of([sum(end.joules) for _, end in ended if end.joules]),
        duration=Spread.of([end.time for _, end in ended]),
        wall=Spread.of([end.wall for _, end in ended if end.wall > 0]),
        phases=_phases([end for _, end in ended if end.phases and end.steps]),
    )


def _phases(ends: Sequence[End]) -> dict[str, float]:
    """Seconds of a step by phase, in their order."""
    workers = [(worker, end.steps) for end in ends for worker in end.phases]
    return {
        name: statistics.fmean(each.get(name, 0.0) / steps for each, steps in workers)
        for name in PHASES
        if any(name in each for each, _ in workers)
    }


def _speedup(base: MethodSummary, row: MethodSummary) -> Spread | None:
    if base.time is None or row.time is None or row.time.median <= 0:
        return None
    of_base = dict(zip(base.seeds, base.times, strict=True))
    ratios = [
        reference / time
        for seed, time in zip(row.seeds, row.times, strict=True)
        if time and (reference := of_base.get(seed))
    ]
    seedwise = Spread.of(ratios)
    ratio = base.time.median / row.time.median
    return Spread(
        mean=seedwise.mean if seedwise else ratio,
        deviation=seedwise.deviation if seedwise else 0.0,
        median=ratio,
        low=min(seedwise.low, ratio) if seedwise else ratio,
        high=max(seedwise.high, ratio) if seedwise else ratio,
        count=len(ratios),
    )
