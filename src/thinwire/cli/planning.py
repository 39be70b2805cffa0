"""From the words of `thinwire plan` to the planner's numbers."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire.cluster import load_cluster
from thinwire.errors import InputError
from thinwire.planner import Plan, Settings, make_workload, quick_cluster
from thinwire.planner import plan as make_plan
from thinwire.units import parse_compute, parse_count, parse_rate, parse_time

__all__ = ["Question", "answer"]


@dataclass(frozen=True, kw_only=True)
class Question:
    """The options of `thinwire plan` as typed; empty or 0 where not given."""

    model: str
    params: str
    batch: int
    step_time: str
    cluster: str
    nodes: int
    link: str
    latency: str
    device_flops: str
    density: float
    accumulate: int
    every: int


def answer(q: Question) -> Plan:
    """The plan.

    Raises:
        InputError: neither a cluster nor nodes and a link, both, or anything out of range.
    """
    _check_cluster(q)
    workload = make_workload(
        q.model or None,
        params=int(parse_count(q.params)) if q.params else None,
        batch=q.batch,
        step_time=parse_time(q.step_time) if q.step_time else None,
    )
    assumptions: tuple[str, ...] = ()
    if q.cluster:
        cluster = load_cluster(q.cluster)
    else:
        cluster, assumptions = quick_cluster(
            q.nodes,
            parse_rate(q.link),
            latency=parse_time(q.latency) if q.latency else None,
            flops=parse_compute(q.device_flops) if q.device_flops else None,
            workload=workload,
        )
    settings = Settings(density=q.density, accumulate=q.accumulate, every=q.every)
    return make_plan(workload, cluster, settings, assumptions)


def _check_cluster(q: Question) -> None:
    quick = {"--nodes": q.nodes, "--link": q.link, "--latency": q.latency,
             "--device-flops": q.device_flops}  # fmt: skip
    given = [name for name, value in quick.items() if value]
    if q.cluster and given:
        raise InputError(f"{given[0]} has no effect with --cluster: the file says it")
    if not q.cluster and not (q.nodes and q.link):
        raise InputError("which cluster? Give --cluster NAME-OR-FILE, or --nodes 4 --link 1gbit")
