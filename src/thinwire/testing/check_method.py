"""The conformance suite of a training method: what each must keep, a user's own included.

    for finding in check_method("my_module:MyMethod"):
        print(finding)

All of it runs on small virtual clusters with toy tasks whose answers are known, in seconds; with
`real=True` three processes on this machine repeat one run, which must end with the same bits.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from unittest import mock

import numpy as np
import torch

from thinwire.batches import SampleStream, split_batch
from thinwire.cluster import Cluster, Node
from thinwire.errors import PeerDiedError, WorkerFailedError
from thinwire.flat import digest
from thinwire.methods import Method, build_method
from thinwire.tasks import Task
from thinwire.testing.findings import Finding, finding
from thinwire.testing.processes import Ended, run_processes
from thinwire.testing.toys import Moons, Poisoned, Quadratic
from thinwire.wire.base import Comm
from thinwire.wire.faults import Crash, FaultPlan
from thinwire.wire.sockets import connect
from thinwire.wire.virtual import World
from thinwire.worker import Optimizer, Plan, Replica, Server, Worker

__all__ = ["CHECKS", "Finding", "check_method"]

SIZES = (1, 2, 3, 4, 5)
STEPS = 8


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """One run on a virtual cluster: what is left of it.

    `params` holds every endpoint's parameters, `losses` the evaluations' losses.
    """

    params: list[torch.Tensor]
    losses: list[float]
    sent: list[int]
    elapsed: float


def check_method(
    name: str, settings: Mapping[str, Any] | None = None, *, real: bool = False
) -> Iterator[Finding]:
    """Hold a method to what every method must keep.

    Args:
        name: a key of METHODS, or `module:Class`.
        settings: the method's own.
        real: repeat a run on three real processes, if the method is synchronous.

    Raises:
        InputError: no such method or setting.
    """
    method = build_method(name, settings or {})
    for promise, check in CHECKS.items():
        yield finding(promise, lambda check=check: check(method))
    if real and method.traits.synchronous and method.traits.workers == "all":
        yield finding(
            "the virtual run and three real processes end with the same bits",
            lambda: _real_equals_virtual(method),
        )


def _cluster(speeds: tuple[float, ...]) -> Cluster:
    nodes = tuple(
        Node(
            name=f"n{i}", flops=2e6, memory_rate=8e9, egress=12.5e6, ingress=12.5e6, slowdown=1 / s
        )
        for i, s in enumerate(speeds)
    )
    return Cluster(name="check", nodes=nodes, default_latency=0.0003)


def _plan(method: Method, size: int, steps: int, lr: float, uneven: bool) -> Plan:
    speeds = tuple(1.0 / (1 + r % 3) for r in range(size)) if uneven else (1.0,) * size
    return Plan(
        shares=split_batch(8 * size, speeds if uneven else None, size),
        steps=steps,
        speeds=speeds,
        optimizer=Optimizer(lr=lr),
        eval_every=max(1, steps // 10),
        evaluate_at=method.traits.evaluate_at,
    )


def _run(
    method: Method,
    size: int,
    *,
    task: Task | None = None,
    steps: int = STEPS,
    lr: float = 0.1,
    uneven: bool = False,
    faults: FaultPlan | None = None,
) -> _Trial:
    """Train on a virtual cluster."""
    task = task or Moons()
    plan = _plan(method, size, steps, lr, uneven)
    stream = SampleStream(task.num_train, plan.seed)
    losses: list[float] = []

    def log(kind: str, values: dict[str, Any]) -> None:
        if kind == "eval":
            losses.append(values["loss"])

    def worker(comm: Comm) -> torch.Tensor:
        replica = Replica(task, plan, comm, log)
        method.worker(Worker(comm, replica, stream))
        return replica.params.clone()

    def server(comm: Comm) -> torch.Tensor:
        replica = Replica(task, plan, comm, log)
        method.server(Server(comm, replica))
        return replica.params.clone()

    world = World(_cluster(plan.speeds), num_servers=method.num_servers, faults=faults)
    params = world.run(worker, server)
    sent = [endpoint.meter.sent for endpoint in world.endpoints]
    return _Trial(params=params, losses=losses, sent=sent, elapsed=world.elapsed)


def _sizes(method: Method) -> tuple[int, ...]:
    return (1,) if method.traits.workers == "fastest" else SIZES


def _runs_at_any_size(method: Method) -> None:
    for size in _sizes(method):
        for uneven in (False, True):
            trial = _run(method, size, uneven=uneven)
            for rank, params in enumerate(trial.params):
                finite = bool(torch.isfinite(params).all())
                assert finite, (
                    f"{size} workers: rank {rank} ends with parameters that aren't finite"
                )


def _repeats(method: Method) -> None:
    size = _sizes(method)[-1]
    first, second = _run(method, size, uneven=True), _run(method, size, uneven=True)
    for what in ("elapsed", "sent", "losses"):
        a, b = getattr(first, what), getattr(second, what)
        assert a == b, (
            f"two runs with one seed differ in {what}: {a} and {b}; use w.rng, not random"
        )
    for rank, (a, b) in enumerate(zip(first.params, second.params, strict=True)):
        assert torch.equal(a, b), f"two runs with one seed end with other parameters on rank {rank}"


def _replicas_agree(method: Method) -> None:
    if not method.traits.agree:
        return
    for size in _sizes(method)[1:]:
        params = _run(method, size).params
        ends = [digest(p) for p in params[:size]]
        assert len(set(ends)) == 1, (
            f"{size} workers end with different parameters ({', '.join(ends)}); if that is meant, "
            "say agree=False in its traits"
        )


def _sends_what_it_says(method: Method) -> None:
    for size in _sizes(method):
        trial = _run(method, size)
        numel = trial.params[0].numel()
        declared = method.sent_bytes(numel, size, STEPS)
        if declared is None:
            return
        assert list(declared) == trial.sent[:size], (
            f"{size} workers sent {trial.sent[:size]} bytes in {STEPS} steps of a model of {numel} "
            f"parameters; sent_bytes says {list(declared)}"
        )


def _leaves_the_world_alone(method: Method) -> None:
    def state() -> tuple[Any, ...]:
        drawn = [torch.get_rng_state().numpy().tobytes(), repr(np.random.get_state())]
        return (*drawn, random.getstate())

    before, threads = state(), torch.get_num_threads()

    def refuse(*_: Any) -> None:
        raise AssertionError("it calls time.sleep; time passes by waiting and by w.comm.spend")

    with mock.patch.object(time, "sleep", refuse):
        _run(method, _sizes(method)[-1])
    names = ("torch's", "numpy's", "Python's")
    for name, old, new in zip(names, before, state(), strict=True):
        assert old == new, (
            f"{name} global random generator was used; draw from w.rng or w.shared_rng"
        )
    assert torch.is_grad_enabled(), "gradients were left switched off"
    assert torch.get_num_threads() == threads, "the number of torch's threads was changed"


E = TypeVar("E", bound=Exception)


def _raised(kind: type[E], action: Callable[[], Any]) -> E | None:
    """The exception of that kind that `action` raises, or None."""
    try:
        action()
    except kind as error:
        return error
    return None


def _names_a_crashed_peer(method: Method) -> None:
    if method.traits.workers == "fastest":
        return
    for size in (2, 4):
        faults = FaultPlan([Crash(rank=1, step=3)])
        error = _raised(PeerDiedError, lambda n=size, f=faults: _run(method, n, faults=f))
        assert error is not None, f"{size} workers: rank 1 crashed at step 3 and nobody noticed"
        assert error.rank == 1, f"{size} workers: the crash of rank 1 is blamed on {error.rank}"


def _stops_at_nan(method: Method) -> None:
    size = _sizes(method)[-1]
    error = _raised(WorkerFailedError, lambda: _run(method, size, task=Poisoned(), steps=20))
    assert error is not None, "a NaN loss on one worker went unnoticed"
    assert "step" in str(error), str(error)


def _learns(method: Method) -> None:
    size = min(4, _sizes(method)[-1])
    for task, steps, lr in ((Quadratic(), 150, 0.2), (Moons(), 300, 0.2)):
        losses = _run(method, size, task=task, steps=steps, lr=lr).losses
        assert losses, f"{task.name}: it was never evaluated; iterate w.batches() to its end"
        assert losses[-1] < 0.6 * losses[0], (
            f"{task.name}: the loss went from {losses[0]:.4g} to {losses[-1]:.4g} in {steps} steps"
        )


CHECKS: Mapping[str, Callable[[Method], None]] = {
    "runs on 1 to 5 workers, equal and uneven": _runs_at_any_size,
    "two runs with one seed are the same in every number": _repeats,
    "replicas end equal, where the method says so": _replicas_agree,
    "bytes are those that sent_bytes declares, where it does": _sends_what_it_says,
    "global random state, grad mode and clock stay untouched": _leaves_the_world_alone,
    "a crashed peer is named": _names_a_crashed_peer,
    "a NaN on one worker stops the run": _stops_at_nan,
    "learns two toy tasks": _learns,
}


def _real_equals_virtual(method: Method) -> None:
    size = 3
    virtual = [digest(p) for p in _run(method, size).params]
    threads = torch.get_num_threads()
    results = run_processes(_real_worker, size, method, threads, deadline=120.0)
    for rank, result in enumerate(results):
        if isinstance(result, Ended):
            raise AssertionError(
                f"real rank {rank} ended without a result (exit code {result.code})"
            )
        if isinstance(result, BaseException):
            raise result
        assert result == virtual[rank], f"rank {rank} ends with other bits on real processes"


def _real_worker(rank: int, size: int, method: Method, threads: int) -> str:
    torch.set_num_threads(threads)
    task = Moons()
    plan = _plan(method, size, STEPS, 0.1, False)
    stream = SampleStream(task.num_train, plan.seed)

    def server(comm: Comm) -> None:
        method.server(Server(comm, Replica(task, plan, comm, lambda kind, values: None)))

    with connect(num_servers=method.num_servers, deadline=60.0) as comm:
        if rank == 0:
            for index in range(method.num_servers):
                comm.serve(server, index)
        replica = Replica(task, plan, comm, lambda kind, values: None)
        method.worker(Worker(comm, replica, stream))
        return replica.digest
