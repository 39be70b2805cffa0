"""From the words of `thinwire plan` to the planner's numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from thinwire.cluster import LINKS, Cluster, link_latency, link_rate, load_cluster
from thinwire.errors import InputError
from thinwire.planner import Plan, Scaled, Settings, Workload, make_workload, quick_cluster, scale
from thinwire.planner import plan as make_plan
from thinwire.planner.objective import Objective, make_objective
from thinwire.units import parse_compute, parse_count, parse_time

if TYPE_CHECKING:
    from thinwire.models import ModelTable
    from thinwire.planner.refine import Refined
    from thinwire.planner.simulate import Scene
    from thinwire.planner.timed import Load
    from thinwire.tasks import Task

__all__ = ["SIMULATED_UP_TO", "Asked", "Question", "answer", "refined", "scaled"]

SIMULATED_UP_TO = 16
"""Nodes of a cluster up to which a plan is simulated unless told otherwise: within a minute."""


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
    layer_times: str = ""
    target: str = "time"
    samples: str = ""
    deadline: str = ""
    task: str = ""
    data: str | None = None

    @property
    def of_task(self) -> bool:
        """Whether the model is the task's own."""
        return bool(self.task) and not self.model and not self.params


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the options mean: what is trained, where, how, and what for; the task, where named."""

    workload: Workload
    cluster: Cluster
    settings: Settings
    aim: Objective
    assumptions: tuple[str, ...]
    task: Task | None = None


def answer(q: Question) -> tuple[Plan, Asked]:
    """The plan by closed forms, and what was asked for.

    Raises:
        InputError: neither a cluster nor nodes and a link, both, or anything out of range.
    """
    _check_cluster(q)
    asked = _understood(q)
    return make_plan(asked.workload, asked.cluster, asked.settings, asked.assumptions), asked


def refined(
    q: Question, asked: Asked, tell: Callable[[str, int, int], None]
) -> tuple[Refined, Scene]:
    """The plan refined by simulation, and what was simulated.

    Args:
        q: the question.
        asked: what it means.
        tell: given progress, see `thinwire.planner.refine.refine`.

    Raises:
        InputError: layer times of another model.
    """
    from thinwire.planner.refine import refine
    from thinwire.planner.simulate import Scene
    from thinwire.planner.timed import measured_paces

    job, cluster = asked.workload, asked.cluster
    load = _load(q, asked)
    scene = Scene.of(job, cluster, load)
    if q.layer_times:
        from thinwire.models import load_layer_times

        times = load_layer_times(Path(q.layer_times))
        names = [node.name for node in cluster.nodes]
        paces = tuple(measured_paces(load, times, names, job.batch))
        scene = dataclasses.replace(scene, paces=paces)
    aim = asked.aim
    found = refine(job, scene, asked.settings, target=aim.target, samples=aim.samples,
                   deadline=aim.deadline, tell=tell)  # fmt: skip
    return found, scene


def _load(q: Question, asked: Asked) -> Load:
    from thinwire.planner.of_task import load_of_task
    from thinwire.planner.timed import load_of_table

    if q.of_task:
        assert asked.task is not None
        return load_of_task(asked.task)
    return load_of_table(_table(q, asked.workload))


def _table(q: Question, job: Workload) -> ModelTable:
    """The model's tensors; one of its size where only that is known."""
    from thinwire.models import LayerRow, ModelTable, TensorRow, describe

    if q.model:
        return describe(q.model, batch=job.batch)
    whole = LayerRow(name="", num_params=job.num_params, forward_flops=0, backward_flops=0,
                     activation_bytes=0, order=0)  # fmt: skip
    tensor = TensorRow(name="all", layer=0, shape=(job.num_params,), order=0, ready_flops=0)
    return ModelTable(name=job.name, batch=job.batch, sample="", source="its size alone",
                      layers=(whole,), tensors=(tensor,))  # fmt: skip


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
    asked = _understood(q)
    workload, cluster = asked.workload, asked.cluster
    what = cluster.name if q.cluster else f"machines on {q.link}"
    title = f"{workload.name}, {workload.batch} samples a worker, {what}"
    found = scale(workload, cluster, numbers, settings=asked.settings)
    return title, asked.assumptions, found


def _task(q: Question) -> Task | None:
    """The task with its data; what is missing is known before anything is simulated."""
    if not q.task:
        return None
    from thinwire.tasks import load_task

    task = load_task(q.task, q.data)
    task.train_data()
    return task


def _workload(q: Question, task: Task | None) -> Workload:
    step_time = parse_time(q.step_time) if q.step_time else None
    if q.of_task:
        from thinwire.planner.of_task import workload_of_task

        assert task is not None
        return workload_of_task(task, q.task, q.batch, step_time)
    return make_workload(
        q.model or None,
        params=int(parse_count(q.params)) if q.params else None,
        batch=q.batch,
        step_time=step_time,
    )


def _understood(q: Question) -> Asked:
    task = _task(q)
    workload = _workload(q, task)
    if q.layer_times and not q.model:
        raise InputError("--layer-times without --model: which tensors were measured?")
    assumptions: tuple[str, ...] = ()
    if q.cluster:
        cluster = load_cluster(q.cluster)
    else:
        cluster, assumptions = quick_cluster(
            q.nodes,
            link_rate(q.link),
            latency=_latency(q),
            flops=parse_compute(q.device_flops) if q.device_flops else None,
            workload=workload,
        )
        named = LINKS.get(q.link)
        if named is not None and q.nodes > 1:
            assumptions = (*assumptions, f"{q.link}: {named.rate_is} rate, {named.source}.")
    settings = Settings(density=q.density, accumulate=q.accumulate, every=q.every)
    samples = int(parse_count(q.samples)) if q.samples else None
    deadline = parse_time(q.deadline) if q.deadline else None
    aim = make_objective(cluster, q.target, samples, deadline)
    return Asked(workload=workload, cluster=cluster, settings=settings, aim=aim,
                 assumptions=assumptions, task=task)  # fmt: skip


def _latency(q: Question) -> float | None:
    """As given, else of a link by name, as far as that is known."""
    if q.latency:
        return link_latency(q.latency)
    named = LINKS.get(q.link)
    return None if named is None else named.latency


def _check_cluster(q: Question) -> None:
    quick = {"--nodes": q.nodes, "--link": q.link, "--latency": q.latency,
             "--device-flops": q.device_flops}  # fmt: skip
    given = [name for name, value in quick.items() if value]
    if q.cluster and given:
        raise InputError(f"{given[0]} has no effect with --cluster: the file says it")
    if not q.cluster and not (q.nodes and q.link):
        raise InputError("which cluster? Give --cluster NAME-OR-FILE, or --nodes 4 --link 1gbit")
