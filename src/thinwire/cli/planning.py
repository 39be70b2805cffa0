"""From the words of `thinwire plan` to the planner's numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from thinwire.cluster import Cluster, load_cluster
from thinwire.errors import InputError
from thinwire.planner import Plan, Scaled, Settings, Workload, make_workload, quick_cluster, scale
from thinwire.planner import plan as make_plan
from thinwire.units import parse_compute, parse_count, parse_rate, parse_time

__all__ = ["Question", "answer", "scaled"]


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
    workload, cluster, settings, assumptions = _understood(q)
    return make_plan(workload, cluster, settings, assumptions)


def scaled(q: Question, sizes: str) -> tuple[str, tuple[str, ...], Iterator[Scaled]]:
    """The methods' steps at each number of workers: a title, what was assumed, the results.

    Args:
        q: `nodes` may be left out.
        sizes: numbers of workers, comma-separated.

    Raises:
        InputError: as `answer`; a number that is none.
    """
    if q.nodes:
        raise InputError("--nodes has no effect with --scale, which says how many machines")
    try:
        numbers = [int(parse_count(size)) for size in sizes.split(",")]
    except InputError as error:
        raise InputError(
            f"--scale {sizes}: {error}; give numbers of workers, such as 2,8,64,1000"
        ) from None
    q = q if q.cluster else dataclasses.replace(q, nodes=2)
    _check_cluster(q)
    workload, cluster, settings, assumptions = _understood(q)
    what = cluster.name if q.cluster else f"machines on {q.link}"
    title = f"{workload.name}, {workload.batch} samples a worker, {what}"
    return title, assumptions, scale(workload, cluster, numbers, settings=settings)


def _understood(q: Question) -> tuple[Workload, Cluster, Settings, tuple[str, ...]]:
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
    return workload, cluster, settings, assumptions


def _check_cluster(q: Question) -> None:
    quick = {"--nodes": q.nodes, "--link": q.link, "--latency": q.latency,
             "--device-flops": q.device_flops}  # fmt: skip
    given = [name for name, value in quick.items() if value]
    if q.cluster and given:
        raise InputError(f"{given[0]} has no effect with --cluster: the file says it")
    if not q.cluster and not (q.nodes and q.link):
        raise InputError("which cluster? Give --cluster NAME-OR-FILE, or --nodes 4 --link 1gbit")
