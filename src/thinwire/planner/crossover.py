"""Where one method begins to beat another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from thinwire.errors import InputError
from thinwire.planner.predict import Prediction, Settings, num_kept, predict
from thinwire.planner.rounds import Round, all_gather, gtopk_tree
from thinwire.planner.workload import Workload

if TYPE_CHECKING:
    from thinwire.cluster import Cluster

__all__ = ["accumulation_where_dense_pays", "batch_where_dense_pays", "nodes_where_gtopk_wins"]


def nodes_where_gtopk_wins(
    num_params: int, density: float, latency: float, rate: float, max_nodes: int = 4096
) -> int | None:
    """Fewest workers, 2 or more, whose gtopk exchange is shorter than their topk exchange.

    Only the wire counts, on a uniform network. gtopk grows with ceil(log2 P), so just above a power
    of two topk may win once more.

    Args:
        num_params: of the model.
        density: above 0, up to 1.
        latency: seconds one way, 0 or more.
        rate: bytes per second, above 0.
        max_nodes: where to stop looking.

    Returns:
        None where topk's exchange is the shorter one up to `max_nodes`.

    >>> nodes_where_gtopk_wins(25_000_000, 0.001, latency=0.0, rate=125e6)
    8
    """
    if not rate > 0 or not latency >= 0:
        raise InputError(f"rate = {rate!r}, latency = {latency!r}; allowed: above 0, and 0 or more")
    nbytes = 8 * num_kept(density, num_params)

    def seconds(rounds: list[Round]) -> float:
        return sum((latency + each.nbytes / rate) * each.repeat for each in rounds)

    return next(
        (
            size
            for size in range(2, max_nodes + 1)
            if seconds(gtopk_tree(size, nbytes)) < seconds(all_gather(size, nbytes))
        ),
        None,
    )


def batch_where_dense_pays(
    workload: Workload, cluster: Cluster, speedup: float = 1.0, max_batch: int = 1 << 20
) -> int | None:
    """Smallest batch per worker with which plain DDP is `speedup` times as fast as one machine.

    The time of a step is taken to be proportional to the batch.

    Args:
        workload: its batch is where a measured step time belongs.
        cluster: one worker per node.
        speedup: samples per second against the fastest node alone, above 0.
        max_batch: where to stop looking.

    Returns:
        None where no batch up to `max_batch` reaches it.
    """

    def reached(batch: int) -> bool:
        scale = batch / workload.batch
        job = dataclasses.replace(
            workload, batch=batch, step_times=tuple(t * scale for t in workload.step_times)
        )
        return _of(predict(job, cluster), "ssgd").speedup_alone >= speedup

    return _first(reached, 1, max_batch)


def accumulation_where_dense_pays(
    workload: Workload,
    cluster: Cluster,
    speedup: float = 1.0,
    settings: Settings | None = None,
    max_accumulate: int = 1 << 16,
) -> int | None:
    """Fewest accumulated backward passes with which the dense exchange is `speedup` times as fast
    as one machine.

    Args:
        workload: what is trained.
        cluster: one worker per node.
        speedup: samples per second against the fastest node alone, above 0.
        settings: whose `batch` rule counts.
        max_accumulate: where to stop looking.

    Returns:
        1 where plain DDP reaches it; None where nothing up to `max_accumulate` does.
    """
    settings = settings or Settings()

    def reached(count: int) -> bool:
        if count == 1:
            return _of(predict(workload, cluster, settings), "ssgd").speedup_alone >= speedup
        set_so = dataclasses.replace(settings, accumulate=count)
        return _of(predict(workload, cluster, set_so), "accumulate").speedup_alone >= speedup

    return _first(reached, 1, max_accumulate)


def _of(predictions: tuple[Prediction, ...], method: str) -> Prediction:
    return next(p for p in predictions if p.method == method)


def _first(reached: Callable[[int], bool], low: int, high: int) -> int | None:
    """Smallest number in low..high that is reached, given that every larger one is too."""
    if not reached(high):
        return None
    while low < high:
        middle = (low + high) // 2
        if reached(middle):
            high = middle
        else:
            low = middle + 1
    return low
