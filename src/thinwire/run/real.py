"""`thinwire run`: this process is one worker of a real run.

Processes are started by torchrun, or whatever starts torchrun; `--processes N` starts it here.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch

from thinwire._version import __version__
from thinwire.cluster import Cluster, cluster_to_toml, load_cluster
from thinwire.collectives.native import NativeGroup, join_native
from thinwire.errors import InputError
from thinwire.report import End, Line, Recorder, RunView, render
from thinwire.run.compare import header
from thinwire.run.experiment import Emit, Job, Programs, bad_end, summary
from thinwire.run.folders import claim_folder, refuse_used
from thinwire.run.foresee import foresee
from thinwire.run.recipes import RECIPES
from thinwire.run.settings import MethodSpec, assign
from thinwire.tasks import Task, load_task
from thinwire.wire.base import Comm
from thinwire.wire.meter import Meter, PeerMeter
from thinwire.wire.packet import Packet
from thinwire.wire.sockets import SocketComm, connect
from thinwire.worker import Plan

__all__ = ["Running", "run_here", "start_processes"]


@dataclass(frozen=True, kw_only=True)
class Running:
    """One real run.

    Args:
        cluster: a preset or TOML file; rank r is its node r.
        method: as `MethodSpec.parse` reads it.
        task: a key of TASKS or `module:Class`.
        data: where the task's data are, if it needs any.
        seed: of everything random.
        given: flat settings, as `--set` gives them.
        out: run folder, written by rank 0; None is a new one under `runs`.
        interface: network interface or address; None is the one that leads to the master.
        predict: whether rank 0 predicts the step first, and puts that into the record.
    """

    cluster: str
    method: str = "ssgd"
    task: str = "digits"
    data: str | None = None
    seed: int = 0
    given: Mapping[str, Any] = field(default_factory=dict)
    out: Path | None = None
    interface: str | None = None
    predict: bool = False


def start_processes(count: int, request: Running, arguments: list[str]) -> int:
    """Become torchrun with `count` processes of this command on this machine; does not return.

    Args:
        count: at least 1.
        request: checked here, so that bad input is reported once and at once.
        arguments: the command line's, from the verb on.
    """
    _job(request, count)
    refuse_used(request.out)
    kept = list(_without_processes(arguments))
    environment = dict(os.environ)
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--local-addr", "127.0.0.1", "--nproc-per-node", str(count), "-m", "thinwire"]
    processes = "one process" if count == 1 else f"{count} processes"
    print(f"starting {processes} on this machine", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os.execve(sys.executable, command + kept, environment)


def _without_processes(arguments: list[str]) -> Iterator[str]:
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument == "--processes":
            skip = True
        elif not argument.startswith("--processes="):
            yield argument


def _job(request: Running, size: int) -> tuple[Job, Task]:
    cluster = load_cluster(request.cluster)
    spec = MethodSpec.parse(request.method)
    assigned = assign([spec], request.given, RECIPES.get(request.task, {}), real=True)[0]
    _check_size(cluster, assigned.method.traits.workers, size)
    limit = {"train_limit": assigned.train.train_limit}
    job = Job(
        run=f"{spec.label}/{request.seed}",
        label=spec.label,
        name=spec.name,
        method=assigned.method,
        cluster=cluster.select(range(size)),
        train=assigned.train,
        wire=assigned.wire,
        seed=request.seed,
    )
    return job, load_task(request.task, request.data, **limit)


def _check_size(cluster: Cluster, workers: str, size: int) -> None:
    if size > cluster.size:
        raise InputError(
            f"{size} processes, but cluster {cluster.name!r} has {cluster.size} nodes: start at "
            "most one per node, or describe more nodes"
        )
    if workers == "fastest" and size > 1:
        raise InputError(f"{size} processes for a method that uses one machine: start 1")


def run_here(request: Running) -> int:
    """Run as the rank that the environment says; the exit code.

    Raises:
        InputError: bad settings, or not started by torchrun.
        ThinwireError: the run failed; the record says so too.
    """
    if "RANK" not in os.environ:
        raise InputError(
            "this is not a worker of a run yet: add --processes 4 to start four here, or start it "
            "with torchrun --nproc-per-node 4 -m thinwire run ..."
        )
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        refuse_used(request.out)  # a restarted run goes on in the same folder
    job, task = _job(request, _world_size())
    task.train_data()
    threads = _use_threads(job.train.threads)
    ready = _Ready(
        request, job, task, job.plan(task.num_train), threads, _predicted(request, job, task)
    )
    # torch imports its compiler with the first optimizer: seconds that are not the training's.
    ready.plan.optimizer.build(torch.nn.Parameter(torch.zeros(1)))
    with _display(ready) as view:
        joined = connect(
            deadline=job.wire.deadline,
            warn_after=job.wire.warn_after,
            num_servers=job.method.num_servers,
            interface=request.interface,
            expected=_expected(request, job, threads),
            watch=view.gather if view else None,
        )
        with joined as comm:
            folder = claim_folder(request.out, "run") if view else None
            with _recording(ready, folder, comm, view) as emit:
                _train(ready, comm, emit)
    if folder is not None:
        render(folder)
    return 0


def _predicted(request: Running, job: Job, task: Task) -> dict[str, float]:
    if not request.predict or os.environ["RANK"] != "0":
        return {}
    found = foresee(job, task)
    if not found:
        print("no prediction: it would take too long; the run begins", file=sys.stderr, flush=True)
    return found


def _display(ready: _Ready) -> contextlib.AbstractContextManager[RunView | None]:
    """Rank 0 shows the progress of all."""
    if os.environ["RANK"] != "0":
        return contextlib.nullcontext()
    traits, plan = ready.job.method.traits, ready.plan
    # Where nobody waits for the others, a rank knows its own pace only.
    samples, whose = (plan.global_batch, "") if traits.synchronous else (plan.shares[0], "rank 0")
    return RunView(ready.job.label, plan.steps, samples, whose=whose)


@dataclass(frozen=True)
class _Ready:
    """A request with everything looked up and checked."""

    request: Running
    job: Job
    task: Task
    plan: Plan
    threads: int
    predicted: dict[str, float]


def _world_size() -> int:
    text = os.environ.get("WORLD_SIZE", "")
    if not text.isdecimal() or int(text) < 1:
        raise InputError(
            f"RANK is set but WORLD_SIZE = {text!r}: start the run with torchrun, or unset RANK"
        )
    return int(text)


def _use_threads(asked: int) -> int:
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    threads = asked or max(1, (os.cpu_count() or 1) // local)
    torch.set_num_threads(threads)
    return threads


def _expected(request: Running, job: Job, threads: int) -> dict[str, str]:
    """What must be equal on all ranks for the run to make sense."""
    return {
        "thinwire": __version__,
        "cluster": cluster_to_toml(job.cluster),
        "method": repr(job.method),
        "task": request.task,
        "seed": str(request.seed),
        "train settings": repr(job.train),
        "collectives": job.wire.collectives,
        "torch threads": str(threads),
    }


@contextlib.contextmanager
def _recording(
    ready: _Ready, folder: Path | None, comm: SocketComm, view: RunView | None
) -> Iterator[Emit]:
    """Where there is a folder, write the record and show the progress; an end is written however
    it ends."""
    if folder is None or view is None:
        yield lambda line: None
        return
    request, job = ready.request, ready.job
    settings = {
        "verb": "run",
        "task": request.task,
        "methods": [job.label],
        "given": dict(request.given),
        "threads": ready.threads,
    }
    began = time.perf_counter()
    with Recorder(folder) as recorder:

        def emit(line: Line) -> None:
            recorder.write(line)
            view.feed(line)

        recorder.write(header(settings, cluster_to_toml(job.cluster)))
        num_params = sum(p.numel() for p in ready.task.model().parameters())
        nodes = [node.name for node in job.cluster.nodes]
        line = job.run_line("real", num_params, nodes)
        emit(msgspec.structs.replace(line, predicted=ready.predicted))
        view.begin(lambda: (comm.step, comm.meter.sent, comm.meter.phases.seconds()))
        try:
            yield emit
        except BaseException as error:
            wall = time.perf_counter() - began
            at = {"steps": comm.step - 1, "time": comm.now(), "wall": wall, "rank": comm.rank}
            emit(bad_end(job, error, [comm.meter], **at))
            raise


def _train(ready: _Ready, comm: SocketComm, emit: Emit) -> None:
    began = time.perf_counter()
    job, plan = ready.job, ready.plan
    group = _native_group(job, comm)
    programs = Programs(job, ready.task, plan, emit, group)
    servers = (
        [comm.serve(programs.server, i) for i in range(job.method.num_servers)]
        if (comm.rank == 0)
        else []
    )
    own = programs.worker(comm)
    elapsed = comm.now()
    served = [server.wait() for server in servers]
    if group is not None:
        group.close()
    results = _gather(comm, own)
    if comm.rank == 0:
        meters, digests = zip(*results, strict=True)
        served_by = [server.comm.meter for server in servers]
        fields = summary(job, plan, [*meters, *served_by], [*digests, *served])
        wall = time.perf_counter() - began
        emit(End(run=job.run, status="ok", time=elapsed, wall=wall, **fields))


def _native_group(job: Job, comm: SocketComm) -> NativeGroup | None:
    if job.wire.collectives == "written" or comm.size == 1:
        return None
    assert comm.store is not None
    return join_native(comm.store, comm.rank, comm.size, deadline=job.wire.deadline)


class _Report(msgspec.Struct):
    """What a rank tells rank 0 when it has finished."""

    digest: str
    sent: int
    messages: int
    waited: float
    computed: float
    phases: dict[str, int]


def _gather(comm: Comm, digest: str) -> list[tuple[Meter, str]]:
    """Every rank's meter and digest, at rank 0; these messages themselves are not in them."""
    meter = comm.meter
    own = _Report(
        digest=digest,
        sent=meter.sent,
        messages=meter.messages_sent,
        waited=meter.waited,
        computed=meter.computed,
        phases=meter.phases.so_far(),
    )
    if comm.rank:
        data = torch.frombuffer(bytearray(msgspec.msgpack.encode(own)), dtype=torch.uint8)
        comm.post(0, Packet((data,), kind="control"), "report")
        return []
    reports = [own]
    for rank in range(1, comm.size):
        packet = comm.wait(rank, "report").packet
        assert packet is not None
        raw = packet.buffers[0].numpy().tobytes()
        reports.append(msgspec.msgpack.decode(raw, type=_Report))
    return [(_meter(r), r.digest) for r in reports]


def _meter(r: _Report) -> Meter:
    """A meter with a rank's totals."""
    total = PeerMeter(sent=r.sent, messages_sent=r.messages, waited=r.waited)
    meter = Meter(computed=r.computed)
    meter.phases.spent.update(r.phases)
    meter.peers[-1] = total
    return meter
