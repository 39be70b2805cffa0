"""A task's own model as what is planned: its operations, and its tensors in their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thinwire.errors import InputError
from thinwire.planner.workload import Workload

if TYPE_CHECKING:
    from thinwire.planner.timed import Load
    from thinwire.tasks import Task

__all__ = ["load_of_task", "workload_of_task"]


def workload_of_task(task: Task, name: str, batch: int, step_time: float | None = None) -> Workload:
    """The workload of training the task's model.

    Args:
        task: its training data are looked at for their shape and number.
        name: what to call it.
        batch: samples per worker and step, 1 or more.
        step_time: seconds of one step on the fastest node, measured; None: from operations.

    Raises:
        InputError: a batch below 1, a model without operations and no step time.
    """
    return Workload(
        name=f"model of {name}",
        num_params=load_of_task(task).numel,
        batch=batch,
        flops=3.0 * task.flops_per_sample,
        step_times=() if step_time is None else (step_time,),
        samples_per_epoch=task.num_train,
    )


def load_of_task(task: Task) -> Load:
    """The tensors of the task's model; where it cannot be described, operations go by parameters.

    Args:
        task: its first training sample is looked at for its shape.
    """
    import torch

    from thinwire.flat import Flat
    from thinwire.models import describe
    from thinwire.planner.timed import Load, load_of_table

    with torch.random.fork_rng(devices=[]):
        model = task.model()
    try:
        return load_of_table(describe(model, batch=1, inputs=task.train_data()[0][:1]))
    except InputError:
        flat = Flat(model)
        shares = tuple(layer.numel / flat.params_P.numel() for layer in flat.layers)
        order = tuple(reversed(range(len(shares))))
        return Load(layers=flat.layers, order=order, forward=shares, backward=shares)
