"""The only wiring: from settings to programs on a virtual cluster or on real processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from thinwire.batches import SampleStream, split_batch
from thinwire.cluster import Cluster, Node
from thinwire.errors import DeadlineError, DeadlockError, PeerDiedError, WorkerFailedError
from thinwire.methods import Method
from thinwire.optim import scale_lr
from thinwire.report.record import End, Eval, Line, Run, Span, Step
from thinwire.run.settings import TrainSettings, WireSettings
from thinwire.wire.base import Comm
from thinwire.wire.faults import FaultPlan
from thinwire.wire.meter import Meter
from thinwire.wire.virtual import World
from thinwire.worker import Group, Learner, Optimizer, Plan, Replica, Server, Worker

__all__ = ["Emit", "Job", "Programs", "bad_end", "run_virtual", "summary"]

Emit = Callable[[Line], None]

MAX_STEP_LINES = 200
"""Training-loss lines of one run in the record."""

MAX_SPANS = 6000
"""Timeline spans of one run in the record: enough to see the steps, small enough to draw."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run: a method with a seed on a cluster.

    Args:
        run: its id in the record.
        label: what tables call the method; groups the seeds.
        name: the method as given, for the record.
        method: the method.
        cluster: where it runs.
        train: how it learns.
        wire: how messages travel.
        seed: of everything random.
        timeline: whether spans are kept.
        faults: what goes wrong.
    """

    run: str
    label: str
    name: str
    method: Method
    cluster: Cluster
    train: TrainSettings
    wire: WireSettings = field(default_factory=WireSettings)
    seed: int = 0
    timeline: bool = False
    faults: FaultPlan | None = None

    @property
    def placement(self) -> list[int]:
        """The cluster node of each worker."""
        if self.method.traits.workers == "fastest":
            return [self.cluster.fastest()]
        return list(range(self.cluster.size))

    def plan(self, num_train: int) -> Plan:
        """How much there is to do with a training set of that size."""
        train, size = self.train, len(self.placement)
        speeds = self.cluster.relative_speeds()
        own = [speeds[i] for i in self.placement]
        global_batch = train.batch * size
        shares = split_batch(global_batch, own if train.split == "by_speed" else None, size)
        steps = max(1, round(train.epochs * num_train / global_batch))
        return Plan(
            shares=shares,
            steps=steps,
            speeds=tuple(own),
            optimizer=Optimizer(
                name=train.optimizer,
                lr=scale_lr(train.lr, global_batch, train.lr_batch or global_batch),
                momentum=train.momentum,
                weight_decay=train.weight_decay,
                warmup=train.warmup,
                decay=train.decay,
            ),
            seed=self.seed,
            eval_every=max(1, steps // train.evals),
            evaluate_at=self.method.traits.evaluate_at,
            log_every=max(1, -(-steps // MAX_STEP_LINES)),
        )

    def run_line(self, mode: str, num_params: int, nodes: list[str]) -> Run:
        """The record's line for its beginning."""
        return Run(
            run=self.run,
            label=self.label,
            method=self.name,
            seed=self.seed,
            mode=mode,
            settings={
                "method": asdict(self.method),
                "train": asdict(self.train),
                "wire": asdict(self.wire),
            },
            nodes=nodes,
            num_params=num_params,
            wire_model=self.wire.link_model if mode == "virtual" else "",
        )


class Programs:
    """A job's worker and server programs for any comm, and the lines they log.

    Args:
        job: the run.
        learner: its task.
        plan: how much there is to do.
        emit: takes the record's lines.
        group: torch.distributed's collectives, to be used instead of our own.
    """

    def __init__(
        self,
        job: Job,
        learner: Learner,
        plan: Plan,
        emit: Emit,
        group: Group | None = None,
    ):
        self.job = job
        self.learner = learner
        self.plan = plan
        self._emit = emit
        self._group = group
        self._stream = SampleStream(learner.num_train, plan.seed)

    def worker(self, comm: Comm) -> str:
        """Runs the method on a worker; returns the digest of its parameters."""
        replica = self._replica(comm)
        worker = Worker(comm, replica, self._stream, self._group)
        phases = comm.meter.phases
        phases.restart()
        self.job.method.worker(worker)
        worker.finish()
        phases.stop()
        return replica.digest

    def server(self, comm: Comm) -> str:
        """Runs the method on a server; returns the digest of its parameters."""
        replica = self._replica(comm)
        self.job.method.server(Server(comm, replica))
        return replica.digest

    def _replica(self, comm: Comm) -> Replica:
        run, emit = self.job.run, self._emit
        values: dict[str, float] = {}

        def log(kind: str, given: dict[str, Any]) -> None:
            if kind == "eval":
                emit(Eval(run=run, time=comm.now(), sent=comm.meter.sent, **given))
            elif kind == "values":
                values.update(given)
            elif comm.rank == 0:
                line = Step(
                    run=run,
                    rank=comm.rank,
                    step=comm.step,
                    time=comm.now(),
                    loss=given["loss"],
                    sent=comm.meter.sent,
                    values=dict(values),
                )
                values.clear()
                emit(line)

        return Replica(self.learner, self.plan, comm, log)


def run_virtual(job: Job, learner: Learner, emit: Emit) -> End:
    """Run a job on the virtual cluster, emitting the record's lines.

    Raises:
        ThinwireError: whatever ended it; an `End` line that says so has been emitted.
    """
    began = time.perf_counter()
    plan = job.plan(learner.num_train)
    programs = Programs(job, learner, plan, emit)
    nodes = [job.cluster.nodes[i].name for i in job.placement]
    world = World(
        job.cluster,
        placement=job.placement,
        num_servers=job.method.num_servers,
        link_model=job.wire.link_model,
        faults=job.faults,
        seed=job.seed,
        trace=job.timeline,
    )
    num_params = sum(p.numel() for p in learner.model().parameters())
    emit(job.run_line("virtual", num_params, nodes))
    try:
        digests = world.run(programs.worker, programs.server)
    except BaseException as error:
        ends = world.endpoints
        steps = max(e.step for e in ends[: len(nodes)]) - 1
        meters = [e.meter for e in ends]
        wall = time.perf_counter() - began
        emit(bad_end(job, error, meters, steps=steps, time=world.elapsed, wall=wall))
        raise
    _emit_spans(world, job.run, emit)
    end = End(
        run=job.run,
        status="ok",
        time=world.elapsed,
        joules=_joules(world, job.placement),
        wall=time.perf_counter() - began,
        **summary(job, plan, [e.meter for e in world.endpoints], digests),
    )
    emit(end)
    return end


def summary(job: Job, plan: Plan, meters: list[Meter], digests: list[str]) -> dict[str, Any]:
    """The fields of an `End` line that the meters and digests of all endpoints give."""
    size = len(plan.shares)
    servers = meters[size:]
    return {
        "steps": plan.steps,
        "samples": plan.samples,
        **_totals(meters, size),
        "digest": digests[-1] if servers else digests[0],
        "agree": not job.method.traits.agree or len(set(digests[:size])) == 1,
    }


def _totals(meters: list[Meter], size: int) -> dict[str, Any]:
    """The fields that meters give: of `size` workers, then of servers."""
    workers, servers = meters[:size], meters[size:]
    return {
        "sent": [m.sent for m in workers],
        "messages": [m.messages_sent for m in workers],
        "waited": [m.waited for m in workers],
        "computed": [m.computed for m in workers],
        "phases": [m.phases.seconds() for m in workers],
        "server_sent": sum(m.sent for m in servers),
    }


def bad_end(
    job: Job,
    error: BaseException,
    meters: list[Meter],
    *,
    steps: int,
    time: float,
    wall: float,
    rank: int = -1,
) -> End:
    """The line for a run that failed or was stopped: what is known by then.

    Args:
        job: the run.
        error: what ended it; an `Exception` is a failure, anything else an interruption.
        meters: of the workers that are known, rank 0 first, then of servers.
        steps: done.
        time: seconds on the run's own clock.
        wall: real seconds.
        rank: whose failure it is where the error names nobody.
    """
    if isinstance(error, PeerDiedError | WorkerFailedError):
        rank = error.rank
    elif isinstance(error, DeadlineError | DeadlockError):
        rank = -1
    failed = isinstance(error, Exception)
    return End(
        run=job.run,
        status="failed" if failed else "interrupted",
        time=time,
        steps=max(steps, 0),
        wall=wall,
        error=str(error) or (type(error).__name__ if failed else ""),
        failed_rank=rank if failed else -1,
        **_totals(meters, len(job.placement)),
    )


def _emit_spans(world: World, run: str, emit: Emit) -> None:
    for rank, what, start, end, peer, nbytes in (world.spans or [])[:MAX_SPANS]:
        emit(
            Span(
                run=run,
                rank=rank,
                what=what,
                start=start / 1e9,
                end=end / 1e9,
                peer=peer,
                nbytes=nbytes,
            )
        )


def _joules(world: World, placement: list[int]) -> list[float]:
    """Energy of each node in use, idle time included; empty where the cluster states no power."""
    nodes = [world.cluster.nodes[i] for i in placement]
    if any(node.power_idle is None for node in nodes):
        return []
    return [_node_joules(world, i, node) for i, node in zip(placement, nodes, strict=True)]


def _node_joules(world: World, index: int, node: Node) -> float:
    assert node.power_idle is not None
    assert node.power_busy is not None
    busy = world.processors[index].busy_ns / 1e9
    joules = node.power_idle * (world.elapsed - busy) + node.power_busy * busy
    if node.power_network is not None:
        meters = [e.meter for e in world.endpoints if e.node == index]
        sent = sum(m.sent for m in meters) / node.egress
        received = sum(m.received for m in meters) / node.ingress
        joules += node.power_network * max(sent, received)
    return joules
