"""What each host of `benchmarks/wire.py` does: its rows one after the other.

A row that trains runs a method's own text on the real wire, or PyTorch's DistributedDataParallel
over gloo; its gradients are real (ResNet-20 on random images) or emulated: a fixed random vector,
and a sleep for the time that the passes would take, layer by layer as the gradients would come.
What was measured is appended to a file, a JSON line a row, so that nothing is lost when a later row
fails.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from _wire_models import Emulated, RandomImages, Shapes, SleepingModel, load_shapes
from netns import on_the_wire
from thinwire import collectives as co
from thinwire.batches import SampleStream
from thinwire.compress import add_sets
from thinwire.compress._native import kernels
from thinwire.compress.coded import Coded
from thinwire.methods import Alone, Method, build_method, lags
from thinwire.methods.sending import Sending
from thinwire.seeds import generator_for
from thinwire.tasks.models import ResNet20
from thinwire.wire.base import Comm
from thinwire.wire.sockets import SocketComm, connect
from thinwire.worker import Body, Optimizer, Plan, Replica, Server, Worker

BATCH = 32
LR = 1e-3


@dataclass
class Stamp:
    """Where a host was at the beginning of a step."""

    time: float
    cpu: float
    sent: int
    phases: dict[str, int]


@dataclass
class Watched:
    """A worker's body, and a stamp whenever it is asked for the next batch.

    Args:
        body: a `thinwire.worker.Body`.
        comm: of this host.
        warmup: steps before the hosts are lined up and the interface is read.
    """

    body: Any
    comm: SocketComm
    warmup: int
    stamps: list[Stamp] = field(default_factory=list)
    wire_before: int = 0
    frames_before: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.body, name)

    def stamp(self) -> None:
        """Now."""
        phases = self.comm.phases
        assert phases is not None
        times = time.perf_counter(), time.process_time()
        self.stamps.append(Stamp(*times, self.comm.meter.sent, phases.so_far()))

    def next_batch(self, step: int, stream: SampleStream | None) -> Any:
        """See `Body`."""
        if step == self.warmup:
            co.barrier(self.comm)
            self.wire_before = on_the_wire()
            self.frames_before = on_the_wire("tx_packets")
        self.stamp()
        return self.body.next_batch(step, stream)


def split(text: str) -> tuple[str, dict[str, str]]:
    """A method and its settings, from "gtopk:density=0.001:losses=kept"."""
    name, *pairs = text.split(":")
    return name, dict(pair.split("=", 1) for pair in pairs)


def plan_of(method: Method, size: int, steps: int, batch: int) -> Plan:
    """Equal shares; momentum where the method leaves it to the optimizer."""
    momentum = 0.0 if method.traits.momentum == "method" else 0.9
    return Plan(
        shares=(batch,) * size,
        steps=steps,
        speeds=(1.0,) * size,
        optimizer=Optimizer(lr=LR, momentum=momentum),
        eval_every=1 << 60,
        evaluate_at="call",
        log_every=1 << 60,
    )


class Host:
    """One process: rows are run on its open connections.

    Args:
        comm: of the real wire.
    """

    def __init__(self, comm: SocketComm):
        self.comm = comm
        self._shapes: dict[str, Shapes] = {}
        self._grads: tuple[str, torch.Tensor] | None = None

    def run(self, row: dict[str, Any]) -> dict[str, Any]:
        """What a row took on this host."""
        found = getattr(self, f"_{row['kind']}")(row)
        co.barrier(self.comm)
        return {"id": row["id"], "rank": self.comm.rank, **found}

    def _grad_of(self, model: str) -> torch.Tensor:
        """This host's fixed gradient; kept for the next row with the same model."""
        if self._grads is None or self._grads[0] != model:
            generator = generator_for(0, "gradient", self.comm.rank)
            self._grads = (model, torch.randn(self._shape(model).numel, generator=generator))
        return self._grads[1]

    def _shape(self, model: str) -> Shapes:
        if model not in self._shapes:
            self._shapes[model] = load_shapes(model)
        return self._shapes[model]

    def _ours(self, row: dict[str, Any]) -> dict[str, Any]:
        name, settings = split(row["method"])
        method = Alone() if name == "alone" else build_method(name, settings)
        return self._method(method, row)

    def _method(self, method: Method, row: dict[str, Any]) -> dict[str, Any]:
        comm, steps = self.comm, row["steps"] + row["warmup"]
        plan, stream = plan_of(method, comm.size, steps, row.get("batch", BATCH)), None
        if row["real"]:
            images = RandomImages(row.get("model") or "resnet20")
            body: Any = Replica(images, plan, comm, lambda what, values: None)
            stream = SampleStream(images.num_train, plan.seed)
        else:
            body = self._emulated(row, plan, comm)
        watched = Watched(body, comm, row["warmup"])
        worker = Worker(comm, cast(Body, watched), stream)
        served = None
        if method.num_servers and comm.rank == 0:
            served = comm.serve(
                lambda own: method.server(Server(own, self._emulated(row, plan, own)))
            )
        co.barrier(comm)
        with sending_late() if row.get("late") else contextlib.nullcontext():
            method.worker(worker)
        watched.stamp()
        if served is not None:
            served.wait()
        co.barrier(comm)
        wire = on_the_wire() - watched.wire_before
        frames = on_the_wire("tx_packets") - watched.frames_before
        found = {**_between(watched.stamps[row["warmup"] :], wire), "frames": frames}
        return found | {"sending": Late.took[row["warmup"] :]} if row.get("late") else found

    def _emulated(self, row: dict[str, Any], plan: Plan, comm: Comm) -> Emulated:
        shapes, grad = self._shape(row["model"]), self._grad_of(row["model"])
        return Emulated(shapes, grad, row["compute"], plan, comm, row.get("serial", False))

    def _ddp(self, row: dict[str, Any]) -> dict[str, Any]:
        join_gloo(self.comm)
        source = None if row["real"] else self._grad_of(row["model"])
        if source is None:
            torch.manual_seed(0)
            model: nn.Module = ResNet20()
        else:
            model = SleepingModel(self._shape(row["model"]), source, row["compute"])
        ddp = nn.parallel.DistributedDataParallel(
            model, gradient_as_bucket_view=True, broadcast_buffers=False, init_sync=False
        )
        if row.get("hook"):
            _register(ddp, row["hook"])
        optimizer = torch.optim.SGD(ddp.parameters(), lr=LR, momentum=0.9)
        found: dict[str, list[float]] = {"step": [], "apply": []}
        wire = 0
        for step in range(row["warmup"] + row["steps"]):
            if step == row["warmup"]:
                co.barrier(self.comm)
                found = {"step": [], "apply": []}
                wire = on_the_wire()
            began = time.perf_counter()
            _backward(ddp, row["accumulate"], row["real"])
            middle = time.perf_counter()
            optimizer.step()
            optimizer.zero_grad()
            end = time.perf_counter()
            found["step"].append(end - began)
            found["apply"].append(end - middle)
        co.barrier(self.comm)
        return {**found, "wire": on_the_wire() - wire}

    def _exchange(self, row: dict[str, Any]) -> dict[str, Any]:
        """Only the exchange of sets of k random entries, and adding what comes of it into a vector:
        without selection and put-back."""
        comm, numel, k = self.comm, row["numel"], row["k"]
        generator = generator_for(0, "set", comm.rank)
        drawn = torch.randint(0, numel, (2 * k,), generator=generator).unique()
        index = drawn[torch.randperm(len(drawn), generator=generator)[:k]].sort().values.int()
        own = co.Sparse(index, torch.randn(k, generator=generator), numel)
        direction = torch.zeros(numel)

        def topk(form: co.Form) -> None:
            add_sets(co.all_gather_sparse(comm, own, form=form), direction)

        def gtopk(form: co.Form) -> None:
            add_sets([co.gtopk_all_reduce(comm, own, k, form=form)[0]], direction)

        calls = {"topk": topk, "gtopk": gtopk}
        name, how = row["method"].split()
        exchange, form = calls[name], Coded() if how == "coded" else co.Plain()
        kernels()  # loaded before what is timed
        took, sent, wire = [], 0, 0
        for step in range(row["warmup"] + row["steps"]):
            co.barrier(comm)
            if step == row["warmup"]:
                took, sent, wire = [], comm.meter.sent, on_the_wire()
            before = comm.meter.sent
            began = time.perf_counter()
            exchange(form)
            took.append(time.perf_counter() - began)
            sent = comm.meter.sent - before
        co.barrier(comm)
        return {"step": took, "sent": [sent] * len(took), "wire": on_the_wire() - wire}


class Late(Sending):
    """The same messages, but none leaves before the backward pass of all hosts has ended."""

    took: ClassVar[list[float]] = []
    """Seconds of all messages together, by step."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self._kept: list[int] = []

    def ready(self, tensor: int) -> None:
        """See `Sending`: only noted."""
        self._kept.append(tensor)

    def wait(self) -> None:
        """See `Sending`."""
        co.barrier(self._comm)
        began = time.perf_counter()
        for tensor in self._kept:
            super().ready(tensor)
        super().wait()
        self.took.append(time.perf_counter() - began)


@contextlib.contextmanager
def sending_late() -> Iterator[None]:
    """LAGS without overlap: what its overlap is measured against."""
    before, lags.Sending = lags.Sending, Late
    Late.took.clear()
    try:
        yield
    finally:
        lags.Sending = before


def _between(stamps: list[Stamp], wire: int) -> dict[str, Any]:
    """Seconds and bytes of each step, from the stamps around them."""
    pairs = list(itertools.pairwise(stamps))
    phases = {
        name: [(b.phases[name] - a.phases[name]) / 1e9 for a, b in pairs]
        for name in stamps[0].phases
    }
    return {
        "ended": [stamp.time for stamp in stamps],
        "step": [b.time - a.time for a, b in pairs],
        "cpu": [b.cpu - a.cpu for a, b in pairs],
        "sent": [b.sent - a.sent for a, b in pairs],
        "compute": phases["compute"],
        "apply": phases["apply"],
        "phases": {name: series for name, series in phases.items() if any(series)},
        "wire": wire,
    }


def _backward(ddp: nn.parallel.DistributedDataParallel, accumulate: int, real: bool) -> None:
    """Forward and backward of one update; all but the last batch without an exchange."""
    x, y = RandomImages().train_data() if real else (torch.zeros(1), None)

    def once() -> None:
        if y is None:
            ddp(x).sum().backward()
        else:
            at = torch.randint(0, len(x), (BATCH,))
            nn.functional.cross_entropy(ddp(x[at]), y[at]).backward()

    for _ in range(accumulate - 1):
        with ddp.no_sync():
            once()
    once()


def _register(ddp: nn.parallel.DistributedDataParallel, hook: str) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    assert hook == "powersgd"
    state = powerSGD_hook.PowerSGDState(
        process_group=None, matrix_approximation_rank=4, start_powerSGD_iter=2
    )
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def join_gloo(comm: SocketComm) -> None:
    """torch.distributed, once, for the rows that need it."""
    if not dist.is_initialized():
        store = TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]) + 1,
            is_master=comm.rank == 0,
            timeout=timedelta(seconds=60),
        )
        dist.init_process_group(
            "gloo",
            store=store,
            rank=comm.rank,
            world_size=comm.size,
            timeout=timedelta(seconds=120),
        )


def rows_of(path: str) -> Iterator[dict[str, Any]]:
    """The rows that the parent asks for."""
    yield from json.loads(Path(path).read_text())


def main(rows: str, results: str) -> None:
    """Run all rows; what each took goes to `results`, with the rank at the end of its name."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    with connect(deadline=120.0) as comm, open(f"{results}.{comm.rank}", "a") as out:
        host = Host(comm)
        for row in rows_of(rows):
            found = host.run(row)
            out.write(json.dumps(found) + "\n")
            out.flush()
        if dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
