"""Step time, bytes and exposed communication of each method, from closed forms.

What is predicted, and how (docs/plan.md says how far to trust it):

* `ssgd` is plain DDP: its all-reduce runs beside the backward pass, so only
  max(0, communication - 2/3 of compute) is exposed. That is the best DDP can do; `bsp_step_time`
  is the time without any overlap, and the truth lies between.
* `accumulate` hides one exchange behind the last of its n backward passes.
* `topk`, `gtopk` and `localsgd` act when the gradient is complete, so nothing is hidden.
* A synchronous step takes as long as its slowest node.

Times and bytes are per step of one batch: a method that exchanges every n-th step shows the n-th
part of its exchange.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from thinwire.errors import InputError
from thinwire.passes import (
    merge_bytes,
    packed_code_bytes,
    packed_size,
    scatter_bytes,
    selection_bytes,
)
from thinwire.planner.rounds import Cost, Round, Wire, all_gather, all_reduces, gtopk_tree
from thinwire.planner.workload import Workload, compute_times, mean_of

if TYPE_CHECKING:
    from thinwire.cluster import Cluster, Node

__all__ = [
    "BACKWARD_SHARE",
    "METHODS",
    "Prediction",
    "Settings",
    "cheapest_all_reduce",
    "num_kept",
    "predict",
    "split",
]

BACKWARD_SHARE = 2 / 3
"""Part of a step's compute that is backward, and so can hide an all-reduce."""

METHODS = ("alone", "ssgd", "accumulate", "topk", "gtopk", "localsgd")
"""In the order in which a plan prefers them when they are equally fast: the simplest first."""

_VALUE = 4  # bytes of a float32


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the predicted methods are set to.

    Args:
        density: part of the entries that topk and gtopk send, above 0 up to 1.
        accumulate: backward passes per exchange of the `accumulate` row, 2 or more.
        every: local steps between two averages of localsgd, mean over the nodes, 1 or more.
        batch: "equal" batches on every node, or "by_speed": the same sum, split by speed.
        local_steps: "equal", or "by_speed": slower nodes do fewer local steps, faster ones more.
    """

    density: float = 0.001
    accumulate: int = 8
    every: int = 8
    batch: Literal["equal", "by_speed"] = "equal"
    local_steps: Literal["equal", "by_speed"] = "by_speed"

    def __post_init__(self) -> None:
        if not 0 < self.density <= 1:
            raise InputError(f"density = {self.density!r}; allowed: above 0, up to 1")
        for key, least in (("accumulate", 2), ("every", 1)):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"{key} = {value!r}; allowed: a whole number, {least} or more")
        for key in ("batch", "local_steps"):
            if getattr(self, key) not in ("equal", "by_speed"):
                raise InputError(f"{key} = {getattr(self, key)!r}; allowed: equal, by_speed")


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One method on one cluster. Times are seconds per step of one batch, averaged over a period.

    Args:
        method: a name in `METHODS`.
        label: the method with its settings, as a table shows it.
        period: steps per exchange.
        samples_per_step: samples of the whole cluster.
        step_time: `compute + overhead + exposed`.
        bsp_step_time: the same if nothing were hidden behind backward.
        compute: forward and backward on the node that everybody waits for.
        overhead: selecting and merging of sparse methods.
        communication: the exchange, start to end.
        exposed: the part of it that no computation hides.
        bytes_per_step: sent per worker, mean over the workers.
        algorithm: the collective.
        samples_per_second: of the whole cluster.
        speedup_alone: samples per second against the fastest machine by itself.
        speedup_ssgd: samples per second against plain DDP.
        epoch_time: seconds, where the size of an epoch is known.
        parts: seconds of `step_time` by what they go to; the keys are the possible limits.
        limit: the key of the largest of them: "compute", "the slowest node", "selection
            and merging", "bandwidth" or "latency".
    """

    method: str
    label: str
    period: int
    samples_per_step: float
    step_time: float
    bsp_step_time: float
    compute: float
    overhead: float
    communication: float
    exposed: float
    bytes_per_step: float
    algorithm: str
    samples_per_second: float
    speedup_alone: float
    speedup_ssgd: float
    epoch_time: float | None
    parts: dict[str, float]
    limit: str

    @property
    def exposed_share(self) -> float:
        """Part of the step spent in exposed communication, 0..1."""
        return self.exposed / self.step_time


_FREE = Cost()


@dataclass(frozen=True)
class _Raw:
    """One period of a method before it is compared with the others."""

    method: str
    label: str
    samples: float
    compute: float
    overhead: float = 0.0
    cost: Cost = _FREE
    hidden: float = 0.0
    period: int = 1
    algorithm: str = ""


def num_kept(density: float, num_params: int) -> int:
    """Entries that a sparse method sends: max(1, floor(density · num_params))."""
    return max(1, math.floor(density * num_params))


def predict(
    workload: Workload, cluster: Cluster, settings: Settings | None = None
) -> tuple[Prediction, ...]:
    """Every method of `METHODS`, in that order.

    Args:
        workload: what is trained.
        cluster: where; one worker per node.
        settings: of the methods.

    Raises:
        InputError: step times that do not fit the cluster.
    """
    settings = settings or Settings()
    times = compute_times(workload, cluster)
    wire = Wire(cluster)
    raws = [_alone(workload, times)]
    if len(times) == 1:
        raws += [_like_alone(raws[0], method, settings) for method in METHODS[1:]]
    else:
        rounds, algorithm = cheapest_all_reduce(wire, len(times), workload.num_params)
        dense = wire.cost(rounds)
        batches = split(workload.batch, times, settings.batch)
        step = max(b / workload.batch * t for b, t in zip(batches, times, strict=True))
        raws += [
            _ssgd(float(sum(batches)), step, dense, algorithm),
            _accumulate(float(sum(batches)), step, dense, algorithm, settings.accumulate),
            _topk(workload, cluster, settings, wire, times, batches),
            _gtopk(workload, cluster, settings, wire, times, batches),
            _localsgd(workload, settings, dense, algorithm, times),
        ]
    balanced = 1.0 / sum(workload.batch / t for t in times)  # seconds per sample, shared by speed
    return _compare(raws, workload, times, balanced)


def _alone(workload: Workload, times: Sequence[float]) -> _Raw:
    return _Raw("alone", "alone (fastest node)", float(workload.batch), min(times))


def _like_alone(alone: _Raw, method: str, settings: Settings) -> _Raw:
    """With one worker there is nobody to exchange with, and every method is the plain loop."""
    return _Raw(method, _label(method, settings), alone.samples, alone.compute)


def _ssgd(samples: float, step: float, dense: Cost, algorithm: str) -> _Raw:
    return _Raw("ssgd", "ssgd (plain DDP)", samples, step, cost=dense, algorithm=algorithm,
                hidden=min(dense.seconds, BACKWARD_SHARE * step))  # fmt: skip


def _accumulate(samples: float, step: float, dense: Cost, algorithm: str, count: int) -> _Raw:
    return _Raw("accumulate", f"ssgd, accumulate {count}", samples * count, step * count,
                cost=dense, algorithm=algorithm, period=count,
                hidden=min(dense.seconds, BACKWARD_SHARE * step))  # fmt: skip


def _topk(
    workload: Workload,
    cluster: Cluster,
    settings: Settings,
    wire: Wire,
    times: Sequence[float],
    batches: Sequence[int],
) -> _Raw:
    k, size = num_kept(settings.density, workload.num_params), len(times)
    moved = {
        "select": selection_bytes(workload.num_params),
        "scatter": scatter_bytes(k * size),
        # One's own set is written, all others are read.
        "code": packed_code_bytes(k) * size if size > 1 else 0.0,
    }
    compute, overhead = _critical(workload, cluster, times, batches, moved)
    return _Raw("topk", _label("topk", settings), float(sum(batches)), compute, overhead,
                wire.cost(all_gather(size, packed_size(k, workload.num_params))),
                algorithm="all-gather")  # fmt: skip


def _gtopk(
    workload: Workload,
    cluster: Cluster,
    settings: Settings,
    wire: Wire,
    times: Sequence[float],
    batches: Sequence[int],
) -> _Raw:
    k, numel = num_kept(settings.density, workload.num_params), workload.num_params
    merges = (len(times) - 1).bit_length()
    moved = {
        "select": selection_bytes(numel),
        "merge": merge_bytes(2 * k) * merges,
        "scatter": scatter_bytes(k),
        # Written and read again at each merge, and once more for the result.
        "code": 2 * packed_code_bytes(k) * (merges + 1) if merges else 0.0,
    }
    compute, overhead = _critical(workload, cluster, times, batches, moved)
    return _Raw("gtopk", _label("gtopk", settings), float(sum(batches)), compute, overhead,
                wire.cost(gtopk_tree(len(times), packed_size(k, numel))),
                algorithm="top-k tree")  # fmt: skip


def _localsgd(
    workload: Workload, settings: Settings, dense: Cost, algorithm: str, times: Sequence[float]
) -> _Raw:
    every = settings.every
    steps = split(every, times, settings.local_steps)
    compute = max(h * t for h, t in zip(steps, times, strict=True))
    return _Raw("localsgd", _label("localsgd", settings), float(workload.batch * sum(steps)),
                compute, cost=dense, algorithm=algorithm, period=every)  # fmt: skip


def _label(method: str, settings: Settings) -> str:
    return {
        "alone": "alone (fastest node)",
        "ssgd": "ssgd (plain DDP)",
        "accumulate": f"ssgd, accumulate {settings.accumulate}",
        "topk": f"topk, density {settings.density:g}",
        "gtopk": f"gtopk, density {settings.density:g}",
        "localsgd": f"localsgd, every {settings.every}",
    }[method]


def cheapest_all_reduce(wire: Wire, size: int, num_params: int) -> tuple[list[Round], str]:
    """The rounds and the name of the cheapest algorithm, so that the dense baseline is the
    strongest one.

    Args:
        wire: of the cluster.
        size: workers.
        num_params: summed, 4 bytes each.
    """
    found = all_reduces(size, _VALUE * num_params)
    best = min(found, key=lambda name: wire.cost(found[name]).seconds)
    return found[best], best


def split(each: int, times: Sequence[float], rule: str) -> list[int]:
    """Samples, or local steps, per node: all alike, or the same sum in proportion to speed, at
    least one each.

    Args:
        each: mean over the nodes, 1 or more.
        times: of a step, by node.
        rule: "equal" or "by_speed".
    """
    if rule == "equal":
        return [each] * len(times)
    total, speed = each * len(times), sum(1 / t for t in times)
    exact = [total / t / speed for t in times]
    shares = [max(1, math.floor(share + 1e-9)) for share in exact]
    while missing := total - sum(shares):
        one = 1 if missing > 0 else -1
        able = [i for i, share in enumerate(shares) if share + one >= 1]
        able.sort(key=lambda i: one * (shares[i] - exact[i]))
        for i in able[: abs(missing)]:
            shares[i] += one
    return shares


def _critical(
    workload: Workload,
    cluster: Cluster,
    times: Sequence[float],
    batches: Sequence[int],
    moved: Mapping[str, float],
) -> tuple[float, float]:
    """Compute and sparse overhead of the node whose sum of both is largest."""
    both = (
        (b / workload.batch * t, _memory_time(node, moved))
        for b, t, node in zip(batches, times, cluster.nodes, strict=True)
    )
    return max(both, key=sum)


def _memory_time(node: Node, moved: Mapping[str, float]) -> float:
    """Seconds for so many bytes of each kind of work."""
    nbytes = sum(amount * node.passes(kind) for kind, amount in moved.items())
    return nbytes * node.slowdown / (node.memory_rate * mean_of(node.speed))


def _compare(
    raws: Sequence[_Raw], workload: Workload, times: Sequence[float], balanced: float
) -> tuple[Prediction, ...]:
    """Per step instead of per period, and each against alone and plain DDP."""
    rates = {raw.method: raw.samples / _total(raw) for raw in raws}
    found = []
    for raw in raws:
        rate, period, epoch = rates[raw.method], raw.period, workload.samples_per_epoch
        least = raw.compute if raw.method == "alone" else min(raw.compute, balanced * raw.samples)
        parts = _parts(raw, least)
        found.append(
            Prediction(
                method=raw.method,
                label=raw.label,
                period=period,
                samples_per_step=raw.samples / period,
                step_time=_total(raw) / period,
                bsp_step_time=(_total(raw) + raw.hidden) / period,
                compute=raw.compute / period,
                overhead=raw.overhead / period,
                communication=raw.cost.seconds / period,
                exposed=(raw.cost.seconds - raw.hidden) / period,
                bytes_per_step=raw.cost.total_bytes / len(times) / period,
                algorithm=raw.algorithm,
                samples_per_second=rate,
                speedup_alone=rate / rates["alone"],
                speedup_ssgd=rate / rates["ssgd"],
                epoch_time=None if epoch is None else epoch / rate,
                parts=parts,
                limit=max(parts, key=lambda part: parts[part]),
            )
        )
    return tuple(found)


def _parts(raw: _Raw, least_compute: float) -> dict[str, float]:
    """Where a step's time goes."""
    exposed = raw.cost.seconds - raw.hidden
    latency = exposed * raw.cost.latency / raw.cost.seconds if raw.cost.seconds else 0.0
    period = {
        "compute": least_compute,
        "the slowest node": raw.compute - least_compute,
        "selection and merging": raw.overhead,
        "bandwidth": exposed - latency,
        "latency": latency,
    }
    return {part: seconds / raw.period for part, seconds in period.items()}


def _total(raw: _Raw) -> float:
    return raw.compute + raw.overhead + raw.cost.seconds - raw.hidden
