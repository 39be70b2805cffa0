"""A method's own program, timed on the virtual cluster: what a step takes once it is under way.

Each method runs twice, some steps and some more; what the second run has more than the first is
what those steps took. So first steps (that look at the order of gradients, or choose messages) and
last ones count nowhere. Methods with long periods run once, one period: they begin each together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thinwire.errors import InputError
from thinwire.methods import Method, build_method
from thinwire.planner.timed import Load, Pace, TimedBody, paces_of
from thinwire.planner.totals import (
    Totals,
    joules_per_sample,
    line_time,
    price_per_sample,
    totals_of,
)
from thinwire.planner.workload import Workload, compute_times, mean_of
from thinwire.wire.base import Comm
from thinwire.wire.virtual import World
from thinwire.wire.virtual.world import LinkModel
from thinwire.worker import Plan, Server, Worker

if TYPE_CHECKING:
    from thinwire.cluster import Cluster

__all__ = ["Scene", "Simulated", "simulate", "trace"]

_LOOKING = 5
"""Steps before one that is like all others, of methods that choose messages by measured times."""

_AVERAGED = 8
"""Steps that are averaged where chance has a part in them, and half of it of overlapped methods,
which take longer to simulate."""


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """One method on one cluster. Seconds and bytes are per step of one batch, as in `Prediction`.

    Args:
        method: its name.
        settings: those that are not its defaults.
        label: both, as a table shows them.
        steps: that were simulated and counted.
        step_time: seconds.
        samples_per_second: of the whole cluster.
        bytes_per_step: sent per worker, mean over the workers; a server's count, too.
        waiting: part of their time in which workers wait, 0..1, mean over the workers.
        exposed: seconds in which even the worker that waits least waits for messages.
        joules_per_sample: of the whole cluster; None where a node states no power.
        price_per_sample: of the nodes in use and of the traffic that leaves sites; None where one
            of these nodes states no price.
        parts: seconds of `step_time` by what they go to; the keys are the possible limits.
        limit: the key of the largest of them.
    """

    method: str
    settings: dict[str, Any]
    label: str
    steps: int
    step_time: float
    samples_per_second: float
    bytes_per_step: float
    waiting: float
    exposed: float
    joules_per_sample: float | None
    price_per_sample: float | None
    parts: dict[str, float]
    limit: str

    def price_of(self, samples: int | None) -> float | None:
        """What so many samples cost; None where that is unknown."""
        each = self.price_per_sample
        return None if each is None or samples is None else each * samples


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What is simulated, where.

    Args:
        cluster: one worker per node.
        load: of the model.
        paces: of its nodes, for batches of `batch`.
        batch: samples per worker and step.
        shares: samples of a step by worker, where they are not all `batch`.
        link_model: of the network, see `wire/virtual/network.py`.
        seed: of jitter.
    """

    cluster: Cluster
    load: Load
    paces: tuple[Pace, ...]
    batch: int
    shares: tuple[int, ...] = ()
    link_model: LinkModel = "fair"
    seed: int = 0

    @staticmethod
    def of(workload: Workload, cluster: Cluster, load: Load) -> Scene:
        """With the compute times of a workload.

        Raises:
            InputError: step times that do not fit the cluster, a model of another size.
        """
        if load.numel != workload.num_params:
            raise InputError(
                f"the model's table has {load.numel} parameters, the workload "
                f"{workload.num_params}: they must be one model's"
            )
        times = compute_times(workload, cluster)
        nominal = [
            seconds * mean_of(node.speed) / node.slowdown
            for seconds, node in zip(times, cluster.nodes, strict=True)
        ]
        paces = tuple(paces_of(load, nominal))
        return Scene(cluster=cluster, load=load, paces=paces, batch=workload.batch)

    @property
    def seconds(self) -> list[float]:
        """Of a step's computation, by node, at the average speed of each."""
        return [
            (sum(pace.forward) + sum(pace.backward)) * node.slowdown / mean_of(node.speed)
            for pace, node in zip(self.paces, self.cluster.nodes, strict=True)
        ]

    def shares_of(self, num_workers: int) -> tuple[int, ...]:
        """Samples of a step by worker."""
        return self.shares if len(self.shares) == num_workers else (self.batch,) * num_workers

    @property
    def random(self) -> bool:
        """Whether chance or the time of day has a part in a step's length."""
        nodes = self.cluster.nodes
        moving = any(n.jitter or n.speed or n.egress_scale or n.ingress_scale for n in nodes)
        return bool(moving or self.cluster.latency_jitter)


def simulate(
    scene: Scene,
    method: str | Method,
    settings: Mapping[str, Any] | None = None,
    *,
    check: Callable[[], None] | None = None,
) -> Simulated:
    """One method's step, by its own program.

    Args:
        scene: what is simulated, where.
        method: a name in `METHODS`, or `module:Class`; or a method.
        settings: of the method, where it is named.
        check: called before every step of every worker; what it raises ends the simulation.

    Raises:
        InputError: an unknown method or setting.
        ThinwireError: the program failed.
    """
    built = build_method(method, settings or {}) if isinstance(method, str) else method
    name = method if isinstance(method, str) else type(method).__name__
    first, more = _lengths(built, scene.random)
    few = _run(scene, built, first, check) if first else Totals()
    many = _run(scene, built, first + more, check)
    label = " ".join([name, *(f"{k}={v}" for k, v in (settings or {}).items())])
    return _summed(scene, few, many, more, (name, dict(settings or {}), label))


def trace(
    scene: Scene, method: str, settings: Mapping[str, Any], steps: int
) -> tuple[list[int], list[tuple[int, str, float, float]]]:
    """What every worker does in some steps, once they are like all others.

    Args:
        scene: what is simulated, where.
        method: a name in `METHODS`, or `module:Class`.
        settings: of the method.
        steps: so many, and more where its period asks for it.

    Returns:
        The node of each worker; (rank, "compute", "wait" or "send", start, end) in seconds after
        the first of these steps began.
    """
    built = build_method(method, settings)
    first, least = _lengths(built, random=False)
    few = _run(scene, built, first, None) if first else Totals()
    more = _up_to_whole(steps, _period(built)) if first else max(steps, least)
    many = _run(scene, built, first + more, None, traced=True)
    spans = [
        (rank, what, start / 1e9 - few.elapsed, end / 1e9 - few.elapsed)
        for rank, what, start, end, *_ in many.spans
    ]
    return _placement(scene, built), spans


def _period(method: Method) -> int:
    """Steps after which it does the same again."""
    periods = (getattr(method, key, 1) for key in ("accumulate", "every", "estimate_every"))
    return max(1, *periods)


def _lengths(method: Method, random: bool) -> tuple[int, int]:
    """Steps of the first run, and by how many the second is longer: whole periods each."""
    period = _period(method)
    until_alike, counted = 1, 2
    if random or not method.traits.synchronous:
        counted = _AVERAGED
    if method.traits.kind == "overlapped":
        until_alike, counted = _looking(method), counted // 2
    first = 0 if period >= _AVERAGED else _up_to_whole(until_alike, period)
    return first, _up_to_whole(counted, period)


def _looking(method: Method) -> int:
    """Steps of an overlapped method until they are alike."""
    settings = vars(method)
    timed = settings.get("adaptive") or settings.get("groups") in ("merged", "optimal")
    return _LOOKING if timed else 2


def _up_to_whole(steps: int, period: int) -> int:
    return -(-steps // period) * period


def _placement(scene: Scene, method: Method) -> list[int]:
    """The node of each worker."""
    seconds = scene.seconds
    alone = method.traits.workers == "fastest"
    return [seconds.index(min(seconds))] if alone else list(range(scene.cluster.size))


def _run(
    scene: Scene,
    method: Method,
    steps: int,
    check: Callable[[], None] | None,
    traced: bool = False,
) -> Totals:
    seconds, placement = scene.seconds, _placement(scene, method)
    plan = Plan(
        shares=scene.shares_of(len(placement)),
        steps=steps,
        speeds=tuple(min(seconds) / seconds[i] for i in placement),
        eval_every=steps + 1,
        evaluate_at=method.traits.evaluate_at,
    )
    world = World(
        scene.cluster,
        placement=placement,
        num_servers=method.num_servers,
        link_model=scene.link_model,
        seed=scene.seed,
        trace=traced,
    )

    def body(comm: Comm) -> TimedBody:
        pace = scene.paces[world.endpoints[comm.rank].node]
        return TimedBody(scene.load, pace, scene.batch, plan, comm, check)

    def program(comm: Comm) -> None:
        worker = Worker(comm, body(comm))
        comm.meter.phases.restart()
        method.worker(worker)
        worker.finish()

    world.run(program, lambda comm: method.server(Server(comm, body(comm))))
    return totals_of(world, placement)


def _summed(
    scene: Scene,
    few: Totals,
    many: Totals,
    steps: int,
    named: tuple[str, dict[str, Any], str],
) -> Simulated:
    """The difference of two runs, per step."""
    size = len(many.phases)
    step = (many.elapsed - few.elapsed) / steps
    phases = [
        {name: (b.get(name, 0.0) - a.get(name, 0.0)) / steps for name in b}
        for a, b in zip(few.phases or [{}] * size, many.phases, strict=True)
    ]
    waits = [max(0.0, each.get("wait", 0.0)) for each in phases]
    exposed = min(waits)
    parts = _parts(scene, phases[waits.index(exposed)], exposed, size)
    line = line_time(scene.cluster, few, many, steps)
    parts |= {"bandwidth": min(exposed, line), "latency": max(0.0, exposed - line)}
    sent = (sum(many.sent.values()) - sum(few.sent.values())) / steps
    samples = float(sum(scene.shares_of(size)))
    return Simulated(
        method=named[0],
        settings=named[1],
        label=named[2],
        steps=steps,
        step_time=step,
        samples_per_second=samples / step,
        bytes_per_step=sent / size,
        waiting=sum(waits) / size / step,
        exposed=exposed,
        joules_per_sample=joules_per_sample(scene.cluster, few, many, steps * samples),
        price_per_sample=price_per_sample(scene.cluster, few, many, steps * samples),
        parts=parts,
        limit=max(parts, key=lambda part: parts[part]),
    )


def _parts(
    scene: Scene, phases: Mapping[str, float], exposed: float, size: int
) -> dict[str, float]:
    """Where the time of the worker goes that waits least, its waiting left out."""
    compute, seconds = phases.get("compute", 0.0), scene.seconds
    ideal = compute if size == 1 else min(compute, size / sum(1 / t for t in seconds))
    own = sum(s for name, s in phases.items() if name in ("select", "encode", "send", "merge"))
    return {
        "compute": ideal,
        "the slowest node": compute - ideal,
        "selection and merging": own,
        "updating parameters": phases.get("apply", 0.0),
    }
