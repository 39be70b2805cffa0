"""What a run will take, by its method's own program on the virtual cluster, before it begins."""

from __future__ import annotations

import time

from thinwire.planner.of_task import load_of_task
from thinwire.planner.simulate import Scene, simulate
from thinwire.planner.timed import paces_of
from thinwire.run.experiment import Job
from thinwire.tasks import Task

__all__ = ["PATIENCE", "foresee"]

PATIENCE = 30.0
"""Seconds for a prediction: the other ranks are waiting meanwhile."""


class _TooLongError(Exception):
    """Patience is at its end."""


def foresee(job: Job, task: Task, patience: float = PATIENCE) -> dict[str, float]:
    """The step of a run: `step_time` in seconds, `bytes_per_step` sent per worker, `waiting` as a
    share of the workers' time, 0..1.

    Evaluations, loading data and starting up are left out.

    Args:
        job: the run.
        task: its task; its training data are looked at for their shape.
        patience: seconds after which it is given up.

    Returns:
        Empty where it would take longer than that.
    """
    plan = job.plan(task.num_train)
    load = load_of_task(task)
    work = 3.0 * task.flops_per_sample * job.train.batch
    nominal = [work / (node.flops * node.devices) for node in job.cluster.nodes]
    scene = Scene(
        cluster=job.cluster,
        load=load,
        paces=tuple(paces_of(load, nominal)),
        batch=job.train.batch,
        shares=plan.shares,
        seed=job.seed,
    )
    until = time.monotonic() + patience

    def check() -> None:
        if time.monotonic() > until:
            raise _TooLongError

    try:
        found = simulate(scene, job.method, check=check)
    except Exception as error:
        if isinstance(error, _TooLongError) or isinstance(error.__cause__, _TooLongError):
            return {}
        raise
    return {
        "step_time": found.step_time,
        "bytes_per_step": found.bytes_per_step,
        "waiting": found.waiting,
    }
