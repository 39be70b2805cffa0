"""What is to be trained: size of the model, batch, and how long a step takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thinwire.errors import InputError
from thinwire.planner.models import find_model

if TYPE_CHECKING:
    from thinwire.cluster import Cluster, Node, Trace

__all__ = ["Workload", "compute_times", "make_workload", "mean_of"]

_MEAN_OVER = 3600.0


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One training job.

    The time of a step is either measured (`step_times`, which wins) or follows from `flops` and
    each node's effective rate.

    Args:
        name: for the reader.
        num_params: trainable parameters, each 4 bytes on the wire, 1 or more.
        batch: samples per worker and step, 1 or more.
        flops: operations to train on one sample; 0 where only step times are known.
        step_times: seconds that forward and backward of one batch take: one value for the fastest
            node (the others follow from their rates), or one per node.
        samples_per_epoch: for the time of an epoch.
    """

    name: str
    num_params: int
    batch: int
    flops: float = 0.0
    step_times: tuple[float, ...] = ()
    samples_per_epoch: int | None = None

    def __post_init__(self) -> None:
        _positive_integer("params", self.num_params)
        _positive_integer("batch", self.batch)
        if self.samples_per_epoch is not None:
            _positive_integer("samples_per_epoch", self.samples_per_epoch)
        for seconds in self.step_times:
            if not (math.isfinite(seconds) and seconds > 0):
                raise InputError(f"step_time = {seconds!r}; allowed: seconds above 0")
        if not self.step_times and not (math.isfinite(self.flops) and self.flops > 0):
            raise InputError(
                f"flops = {self.flops!r} and no step_time: nothing says how long a step takes; "
                "give model (from the table) or step_time (measured, for one batch)"
            )


def make_workload(
    model: str | None = None,
    *,
    params: int | None = None,
    batch: int = 32,
    step_time: float | tuple[float, ...] | None = None,
    samples_per_epoch: int | None = None,
) -> Workload:
    """A workload from a model of the table, or from its parameters and a measured step time.

    Args:
        model: a name in `MODELS`.
        params: number of parameters; not together with `model`.
        batch: samples per worker and step.
        step_time: seconds per step of one batch, measured; on the fastest node or one per node.
        samples_per_epoch: for the time of an epoch.

    Raises:
        InputError: neither or both of `model` and `params`, or nothing to tell the time of a step.
    """
    if (model is None) == (params is None):
        given = "both" if model is not None else "neither"
        raise InputError(f"model and params: {given} given; give exactly one of them")
    if isinstance(step_time, (int, float)):
        step_time = (float(step_time),)
    if model is not None:
        known = find_model(model)
        name, num_params, flops = known.name, known.num_params, known.flops
    else:
        assert params is not None
        if step_time is None:
            raise InputError(
                "params without step_time: the size alone does not say how long a step takes; "
                "give step_time (measured, for one batch), or model (from the table)"
            )
        name, num_params, flops = "model", params, 0.0
    return Workload(
        name=name,
        num_params=num_params,
        batch=batch,
        flops=flops,
        step_times=step_time or (),
        samples_per_epoch=samples_per_epoch,
    )


def compute_times(workload: Workload, cluster: Cluster) -> tuple[float, ...]:
    """Seconds that one step of `workload.batch` samples takes on each node, alone.

    A changing speed counts by its average while an hour's work is done. Several devices in a node
    add the ring all-reduce over the node's inner link, unless the time was measured.

    Raises:
        InputError: the number of step times is neither one nor the number of nodes.
    """
    nodes, given = cluster.nodes, workload.step_times
    if len(given) == len(nodes) > 1:
        return given
    if len(given) > 1:
        raise InputError(
            f"step_time has {len(given)} values for {len(nodes)} nodes of cluster "
            f"{cluster.name!r}; allowed: one (the fastest node's), or one per node"
        )
    speeds = [node.rate * mean_of(node.speed) for node in nodes]
    if given:
        return tuple(given[0] * max(speeds) / speed for speed in speeds)
    work = workload.flops * workload.batch
    return tuple(
        work / speed + _inner_time(node, workload.num_params)
        for node, speed in zip(nodes, speeds, strict=True)
    )


def mean_of(trace: Trace | None) -> float:
    """Average of a trace while an hour's work at its full value is done; 1 where there is none."""
    return 1.0 if trace is None else _MEAN_OVER / trace.finish(0.0, _MEAN_OVER)


def _inner_time(node: Node, num_params: int) -> float:
    if node.devices == 1 or node.inner is None:
        return 0.0
    rounds, chunk = 2 * (node.devices - 1), 4.0 * num_params / node.devices
    transfer = 0.0 if node.inner.rate is None else chunk / node.inner.rate
    return rounds * (node.inner.latency + transfer)


def _positive_integer(key: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{key} = {value!r}; allowed: a whole number, 1 or more")
