"""Who computes, sends and waits in a few steps of the best methods, as their programs did it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from thinwire.planner.refine import Refined, Row
from thinwire.planner.simulate import Scene, trace
from thinwire.planner.steps import BEST, Activity, StepTimeline

__all__ = ["traced_timelines"]

_Stretch: TypeAlias = tuple[float, float]

_COMPARABLE = 4.0
"""Methods whose periods differ by no more than this are shown for the same time."""


def traced_timelines(
    refined: Refined, scene: Scene, tell: Callable[[str, int, int], None] | None = None
) -> tuple[StepTimeline, ...]:
    """The advice and the best of the others, `BEST` in all, simulated once more with all they do.

    Two steps are shown, of a method that exchanges every few steps a whole period; all for the
    same time, unless their periods are too unlike.

    Args:
        refined: whose best.
        scene: that it is of.
        tell: called with a label, how many are done, and of how many.
    """
    others = [row for row in refined.rows if row is not refined.choice and not row.candidate.longer]
    rows = [refined.choice, *others][:BEST]
    wanted = [_period(row) * row.simulated.step_time for row in rows]
    longest = max(wanted)
    if longest <= _COMPARABLE * min(wanted):
        wanted = [longest] * len(rows)
    found = []
    for done, (row, seconds) in enumerate(zip(rows, wanted, strict=True)):
        if tell is not None:
            tell(row.label, done, len(rows))
        found.append(_traced(row, scene, seconds))
    return tuple(found)


def _period(row: Row) -> int:
    """Steps to be shown: two, or one period."""
    settings = row.candidate.settings
    return max(2, settings.get("every", 1), settings.get("accumulate", 1))


def _traced(row: Row, scene: Scene, seconds: float) -> StepTimeline:
    method = row.simulated
    steps = math.ceil(seconds / method.step_time - 1e-6)
    placement, spans = trace(scene, method.method, method.settings, steps)
    times = scene.seconds
    shown: dict[tuple[int, str], list[_Stretch]] = {}
    for rank, what, start, end in spans:
        if end > 0.0 and start < seconds:
            shown.setdefault((rank, what), []).append((max(0.0, start), min(end, seconds)))
    # A task beside the program may wait while the program computes: that is no waiting.
    for rank in range(len(placement)):
        waits, busy = shown.get((rank, "wait"), []), shown.get((rank, "compute"), [])
        shown[rank, "wait"] = _without(_joined(waits), _joined(busy))
    activities = [
        Activity(rank=rank, what=what, start=start, end=end)
        for (rank, what), stretches in shown.items()
        for start, end in (stretches if what == "send" else _joined(stretches))
    ]
    return StepTimeline(
        label=row.label,
        step_time=method.step_time,
        nodes=tuple(scene.cluster.nodes[i].name for i in placement),
        slower=tuple(times[i] / min(times) for i in placement),
        activities=tuple(activities),
        shown=seconds,
        simulated=True,
    )


def _joined(stretches: Sequence[_Stretch]) -> list[_Stretch]:
    """The same times, in order, no two of them touching."""
    joined: list[_Stretch] = []
    for start, end in sorted(stretches):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def _without(stretches: Sequence[_Stretch], others: Sequence[_Stretch]) -> list[_Stretch]:
    """What of the first is in none of the others; both joined."""
    left: list[_Stretch] = []
    for start, end in stretches:
        for a, b in others:
            if a < end and b > start:
                if a > start:
                    left.append((start, a))
                start = b
        if start < end:
            left.append((start, end))
    return left
