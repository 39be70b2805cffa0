"""Who computes, sends and waits in a few steps of a method, from its closed form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thinwire.planner.predict import Prediction, Settings, split
from thinwire.planner.workload import Workload, compute_times

if TYPE_CHECKING:
    from thinwire.cluster import Cluster
    from thinwire.planner.advise import Plan

__all__ = ["BEST", "Activity", "StepTimeline", "closed_timelines"]

BEST = 3
"""Methods that are drawn: the advice and the best of the others."""

_STEPS = 2
"""Steps that are drawn of a method that exchanges in each."""


@dataclass(frozen=True, kw_only=True)
class Activity:
    """What a worker does from `start` to `end` (seconds): "compute", "wait" or "send"."""

    rank: int
    what: str
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class StepTimeline:
    """Some steps of a method.

    Args:
        label: what tables call it.
        step_time: seconds of one batch.
        nodes: the node of each worker.
        slower: by worker, how many times longer it computes than the fastest node.
        activities: in any order, none after `shown`.
        shown: seconds.
        simulated: whether the method's own program did this, or a closed form's phases.
    """

    label: str
    step_time: float
    nodes: tuple[str, ...]
    slower: tuple[float, ...]
    activities: tuple[Activity, ...]
    shown: float
    simulated: bool

    def seconds(self, rank: int, what: str) -> float:
        """For which that worker does it, of those shown."""
        return sum(a.end - a.start for a in self.activities if (a.rank, a.what) == (rank, what))


def closed_timelines(plan: Plan, cluster: Cluster) -> tuple[StepTimeline, ...]:
    """The advice and the fastest others of a plan, `BEST` in all, phase by phase.

    Args:
        plan: by closed forms.
        cluster: that it is of.
    """
    ranked = sorted(plan.predictions, key=lambda p: -p.samples_per_second)
    ranked.sort(key=lambda p: p.method != plan.choice)
    chosen = ranked[: BEST if len(cluster.nodes) > 1 else 1]
    return tuple(_timeline(p, plan.workload, cluster, plan.settings) for p in chosen)


def _timeline(
    p: Prediction, workload: Workload, cluster: Cluster, settings: Settings
) -> StepTimeline:
    """Whole periods, one after the other, each begun by all workers together."""
    times = compute_times(workload, cluster)
    used = [times.index(min(times))] if p.method == "alone" else list(range(len(times)))
    lengths = _computing(p, [times[i] for i in used], workload, settings)
    periods = max(1, _STEPS // p.period)
    period = p.step_time * p.period
    activities = [
        activity
        for n in range(periods)
        for rank, length in enumerate(lengths)
        for activity in _phases(p, rank, length, n * period)
    ]
    return StepTimeline(
        label=p.label,
        step_time=p.step_time,
        nodes=tuple(cluster.nodes[i].name for i in used),
        slower=tuple(times[i] / min(times) for i in used),
        activities=tuple(activities),
        shown=periods * period,
        simulated=False,
    )


def _computing(
    p: Prediction, times: Sequence[float], workload: Workload, settings: Settings
) -> list[float]:
    """Seconds that each worker computes in a period."""
    if p.method == "alone":
        return list(times)
    if p.method == "localsgd":
        counts = split(settings.every, times, settings.local_steps)
        return [count * t for count, t in zip(counts, times, strict=True)]
    batches = split(workload.batch, times, settings.batch)
    return [p.period * batch / workload.batch * t for batch, t in zip(batches, times, strict=True)]


def _phases(p: Prediction, rank: int, length: float, start: float) -> Iterator[Activity]:
    """Computing, selecting and merging; the exchange, in part beside them; waiting for the rest.

    The closed forms know one time for what all nodes select and merge, and one for the exchange,
    which ends the period.
    """
    end = start + p.step_time * p.period
    own = min(end, start + length + p.overhead * p.period)
    yield Activity(rank=rank, what="compute", start=start, end=own)
    if p.communication:
        yield Activity(rank=rank, what="send", start=end - p.communication * p.period, end=end)
    if own < end:
        yield Activity(rank=rank, what="wait", start=own, end=end)
