"""How each method's step time grows with the number of workers, up to tens of thousands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from thinwire.errors import InputError, nearest
from thinwire.passes import (
    merge_bytes,
    packed_code_bytes,
    packed_size,
    scatter_bytes,
    selection_bytes,
    step_bytes,
)
from thinwire.planner.fleet import Fleet, grow
from thinwire.planner.predict import (
    BACKWARD_SHARE,
    Settings,
    cheapest_all_reduce,
    num_kept,
    split,
)
from thinwire.planner.rounds import Round, Wire, all_gather, gtopk_tree
from thinwire.planner.workload import Workload, compute_times

if TYPE_CHECKING:
    from thinwire.cluster import Cluster

__all__ = ["SCALED_METHODS", "Scaled", "scale"]


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """One method at one number of workers. Times are seconds per step of one batch.

    Args:
        method: a key of `SCALED_METHODS`.
        size: workers.
        step_time: mean over the steps simulated.
        low: the 5th of a hundred steps.
        high: the 95th of a hundred steps.
        waiting: part of the time in which a worker waits for messages, mean, 0..1.
        bytes_per_step: sent per worker, mean over the workers.
        samples_per_second: of the whole cluster.
        efficiency: that over what all nodes would do with nothing to exchange, 0..1.
        algorithm: the collective.
    """

    method: str
    size: int
    step_time: float
    low: float
    high: float
    waiting: float
    bytes_per_step: float
    samples_per_second: float
    efficiency: float
    algorithm: str


@dataclass(frozen=True)
class _Job:
    """What the methods' steps are made from."""

    fleet: Fleet
    workload: Workload
    settings: Settings
    wire: Wire
    compute: np.ndarray  # (P,) seconds

    @property
    def size(self) -> int:
        return self.fleet.size

    @property
    def apply(self) -> np.ndarray:
        """(P,) seconds of the optimizer's step."""
        return self.fleet.seconds({"step": step_bytes(self.workload.num_params)})

    @property
    def dense(self) -> tuple[list[Round], str]:
        """Rounds and name of the all-reduce."""
        return cheapest_all_reduce(self.wire, self.size, self.workload.num_params)


Steps = Iterator[tuple[int, float, str]]
"""After each exchange: steps done since the last one, bytes of all workers, the collective."""


def _bytes_of(rounds: Sequence[Round]) -> float:
    return sum(each.total * each.repeat for each in rounds)


def _ssgd(job: _Job, every: int = 1, share: float = BACKWARD_SHARE) -> Steps:
    rounds, name = job.dense
    legs, total, apply = job.fleet.legs(rounds), _bytes_of(rounds), job.apply
    ahead = share * job.compute if share else None
    while True:
        job.fleet.spend(every * job.compute)
        job.fleet.exchange(legs, ahead=ahead)
        job.fleet.spend(apply)
        yield every, total, name


def _bsp(job: _Job) -> Steps:
    return _ssgd(job, share=0.0)


def _accumulate(job: _Job) -> Steps:
    return _ssgd(job, every=job.settings.accumulate)


def _localsgd(job: _Job) -> Steps:
    every = job.settings.every
    rounds, name = job.dense
    legs, total = job.fleet.legs(rounds), _bytes_of(rounds)
    each = job.compute + job.apply
    steps = np.array(split(every, job.compute.tolist(), job.settings.local_steps), float)
    while True:
        job.fleet.spend(steps * each)
        job.fleet.exchange(legs)
        yield every, total, name


def _topk(job: _Job) -> Steps:
    numel = job.workload.num_params
    k = num_kept(job.settings.density, numel)
    rounds = all_gather(job.size, packed_size(k, numel))
    legs, total, fleet = job.fleet.legs(rounds), _bytes_of(rounds), job.fleet
    code = fleet.seconds({"code": packed_code_bytes(k) if job.size > 1 else 0.0})
    before = job.compute + fleet.seconds({"select": selection_bytes(numel)}) + code
    after = fleet.seconds({"scatter": scatter_bytes(k * job.size)}) + job.apply
    after += (job.size - 1) * code  # reading all others' sets
    while True:
        fleet.spend(before)
        fleet.exchange(legs)
        fleet.spend(after)
        yield 1, total, "all-gather"


def _gtopk(job: _Job) -> Steps:
    numel = job.workload.num_params
    k = num_kept(job.settings.density, numel)
    rounds = gtopk_tree(job.size, packed_size(k, numel))
    fleet, up = job.fleet, len(rounds) // 2
    code = fleet.seconds({"code": packed_code_bytes(k)})
    legs, total = fleet.legs(rounds), _bytes_of(rounds)
    before = job.compute + fleet.seconds({"select": selection_bytes(numel)})
    merging = fleet.seconds({"merge": merge_bytes(2 * k)}) + code
    after = fleet.seconds({"scatter": scatter_bytes(k)}) + code + job.apply
    after[0] -= code[0]  # rank 0 has the result as it is, and codes it for the others
    root = np.where(np.arange(job.size) == 0, code, 0.0)
    while True:
        fleet.spend(before)
        fleet.exchange(legs[:up], work=merging, prepare=code)
        fleet.spend(root)
        fleet.exchange(legs[up:])
        fleet.spend(after)
        yield 1, total, "top-k tree"


SCALED_METHODS: dict[str, tuple[Callable[[_Job], Steps], str]] = {
    "ssgd": (_ssgd, "plain DDP: the all-reduce beside the backward pass, as well as can be"),
    "bsp": (_bsp, "the all-reduce after the backward pass"),
    "accumulate": (_accumulate, "DDP, one exchange in several backward passes"),
    "topk": (_topk, "all-gather of sparse gradients"),
    "gtopk": (_gtopk, "tree of sparse merges"),
    "localsgd": (_localsgd, "averaging every so many steps"),
}
"""What can be scaled, and what it is."""


def scale(
    workload: Workload,
    cluster: Cluster,
    sizes: Sequence[int],
    *,
    methods: Sequence[str] = ("ssgd", "accumulate", "topk", "gtopk", "localsgd"),
    settings: Settings | None = None,
    steps: int = 100,
    seed: int = 0,
) -> Iterator[Scaled]:
    """Simulate steps of each method at each size, one after the other.

    Args:
        workload: what is trained; a measured step time is the fastest node's.
        cluster: what is repeated up to each size, see `grow`.
        sizes: numbers of workers, each 1 or more.
        methods: keys of `SCALED_METHODS`.
        settings: of the methods.
        steps: simulated, 1 or more; a method that exchanges seldom does at least one exchange.
        seed: of the jitter.

    Raises:
        InputError: an unknown method, a size or number of steps below 1.
    """
    settings = settings or Settings()
    if steps < 1:
        raise InputError(f"steps = {steps!r}; allowed: a whole number, 1 or more")
    for method in methods:
        if method not in SCALED_METHODS:
            raise InputError(f"method = {method!r}; {nearest(method, SCALED_METHODS)}")
    for size in sizes:
        grown = grow(cluster, size)
        times = np.array(compute_times(workload, grown))
        for method in methods:
            yield _run(method, workload, grown, times, settings, steps, seed)


def _run(
    method: str,
    workload: Workload,
    cluster: Cluster,
    times: np.ndarray,
    settings: Settings,
    steps: int,
    seed: int,
) -> Scaled:
    fleet = Fleet(cluster, seed)
    job = _Job(fleet, workload, settings, Wire(cluster), times)
    done, sent, ends, counts, name = 0, 0.0, [0.0], [], ""
    for count, total, algorithm in SCALED_METHODS[method][0](job):
        done, sent, name = done + count, sent + total, algorithm
        ends.append(float(fleet.ready.max()) / 1e9)
        counts.append(count)
        if done >= steps:
            break
    each = np.diff(ends) / np.array(counts)
    samples = workload.batch * fleet.size
    alone = float(np.sum(workload.batch / (times + job.apply)))
    rate = samples * done / ends[-1]
    return Scaled(
        method=method,
        size=fleet.size,
        step_time=ends[-1] / done,
        low=float(np.quantile(each, 0.05)),
        high=float(np.quantile(each, 0.95)),
        waiting=float(np.mean(fleet.waited)) / 1e9 / ends[-1],
        bytes_per_step=sent / fleet.size / done,
        samples_per_second=rate,
        efficiency=rate / alone,
        algorithm=name if fleet.size > 1 else "",
    )
