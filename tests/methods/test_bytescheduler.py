"""Parts of tensors by urgency: the sums of S-SGD, and updates that come layer by layer."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import thinwire as tw
from thinwire import collectives
from thinwire.batches import SampleStream
from thinwire.cluster import Cluster, Node
from thinwire.errors import InputError, WorkerFailedError
from thinwire.flat import digest
from thinwire.methods import SSGD, WFBP, ByteScheduler, Method, build_method
from thinwire.methods.bytescheduler import Queue
from thinwire.testing.processes import run_processes
from thinwire.testing.toys import Moons, Poisoned
from thinwire.wire import Comm
from thinwire.wire.packet import header_nbytes
from thinwire.wire.sockets import connect
from thinwire.wire.virtual import World
from thinwire.worker import Optimizer, Plan, Replica, Worker

ALL = [
    ByteScheduler(),
    ByteScheduler(partition=100, credit=100),
    ByteScheduler(partition=100, credit=350),
    ByteScheduler(partition=1000, credit=1),
]


def ids(method: ByteScheduler) -> str:
    return f"{method.partition}-{method.credit}"


class Deep(Moons):
    """Eight layers, the last the largest."""

    name: ClassVar[str] = "deep"

    def model(self) -> nn.Module:
        """As `Task.model`."""
        layers: list[nn.Module] = [nn.Linear(2, 32)]
        for _ in range(5):
            layers += [nn.Tanh(), nn.Linear(32, 32)]
        return nn.Sequential(*layers, nn.Tanh(), nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 2))


class Mixed(Deep):
    """The same, its forward pass in bfloat16."""

    name: ClassVar[str] = "mixed"

    def loss(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """As `Task.loss`."""
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().loss(model, x, y)


class Wide(Moons):
    """1.2 MB of parameters, which go round the ring."""

    name: ClassVar[str] = "wide"

    def model(self) -> nn.Module:
        """As `Task.model`."""
        return nn.Sequential(nn.Linear(2, 60_000), nn.Tanh(), nn.Linear(60_000, 2))


class Convolved(Moons):
    """Most of the computing in the first layers, most of the parameters in the last."""

    name: ClassVar[str] = "convolved"

    def model(self) -> nn.Module:
        """As `Task.model`."""
        layers: list[nn.Module] = [nn.Linear(2, 64), nn.Unflatten(1, (1, 64)), nn.Conv1d(1, 8, 1)]
        for _ in range(4):
            layers += [nn.Tanh(), nn.Conv1d(8, 8, 5, padding=2)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 64), nn.Tanh(), nn.Linear(64, 2))


def cluster(size: int, rate: float = 12.5e6) -> Cluster:
    nodes = [
        Node(name=f"n{i}", flops=2e7, memory_rate=8e9, egress=rate, ingress=rate)
        for i in range(size)
    ]
    return Cluster(name="test", nodes=tuple(nodes), default_latency=0.0003)


def plan_of(size: int, optimizer: Optimizer | None = None, steps: int = 6) -> Plan:
    return Plan(
        shares=(4,) * size,
        steps=steps,
        speeds=(1.0,) * size,
        optimizer=optimizer or Optimizer(lr=0.1, momentum=0.9),
        evaluate_at="call",
    )


def program(method: Method, task: Moons, plan: Plan, comm: Comm) -> str:
    replica = Replica(task, plan, comm, lambda kind, values: None)
    method.worker(Worker(comm, replica, SampleStream(task.num_train, 0)))
    return replica.digest


def virtual(
    method: Method, size: int, task: Moons, plan: Plan | None = None, rate: float = 12.5e6
) -> tuple[list[str], float]:
    """Digests by rank, and the virtual time."""
    world = World(cluster(size, rate))
    plan = plan or plan_of(size)
    return world.run(lambda comm: program(method, task, plan, comm)), world.elapsed


# What comes out.


@pytest.mark.slow
@pytest.mark.parametrize("method", ALL, ids=ids)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_a_small_model_ends_with_the_bits_of_plain_s_sgd(run_method, method, size):
    ours, plain = run_method(method, size), run_method(SSGD(), size)
    for a, b in zip(ours.params, plain.params, strict=True):
        assert torch.equal(a, b)
    assert ours.evals == plain.evals


def test_uneven_batches_are_weighted_by_their_samples(run_method):
    shares = (3, 4, 9)
    ours, plain = (run_method(m, 3, shares=shares) for m in (ByteScheduler(), SSGD()))
    assert torch.equal(ours.params[2], plain.params[2])


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4, 5])
def test_a_model_that_goes_round_the_ring_ends_as_plain_s_sgd_to_rounding(run_method, size):
    task = Wide()
    method = ByteScheduler(partition=400_000, credit=800_000)
    ours, plain = (run_method(m, size, task=task, lr=1e-4, steps=3) for m in (method, SSGD()))
    for params in ours.params:
        assert torch.equal(params, ours.params[0])
    torch.testing.assert_close(ours.params[0], plain.params[0], rtol=1e-5, atol=1e-6)
    if size == 2:
        assert torch.equal(ours.params[0], plain.params[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer",
    [
        Optimizer(name="adamw", lr=0.01, weight_decay=0.1),
        Optimizer(name="lars", lr=0.1, momentum=0.9, weight_decay=0.01),
        Optimizer(name="lamb", lr=0.01),
        Optimizer(lr=0.2, momentum=0.9, warmup=3, decay="cosine"),
    ],
    ids=["adamw", "lars", "lamb", "rates"],
)
def test_an_optimizer_for_each_layer_steps_as_one_for_all(optimizer):
    plan = plan_of(2, optimizer)
    ours, plain = (virtual(m, 2, Deep(), plan)[0] for m in (ByteScheduler(), SSGD()))
    assert ours == plain


def test_mixed_precision_ends_as_plain_s_sgd():
    ours, plain = (virtual(m, 2, Mixed())[0] for m in (ByteScheduler(), SSGD()))
    assert ours == plain
    assert ours != virtual(SSGD(), 2, Deep())[0]


def test_payloads_are_those_of_plain_s_sgd_and_each_part_one_word(run_method):
    ours, plain = (
        run_method(m, 3, steps=4).world.endpoints for m in (ByteScheduler(partition=10_000), SSGD())
    )
    num_tensors = len(list(Moons().model().parameters()))
    words = [2 * num_tensors * 4, 0, 0]  # rank 0 tells two others
    for a, b, told in zip(ours, plain, words, strict=True):
        sums = a.meter.messages_sent - told
        assert sums == num_tensors * b.meter.messages_sent
        payload = b.meter.sent - header_nbytes(1) * b.meter.messages_sent
        assert a.meter.sent == payload + sums * header_nbytes(1) + told * header_nbytes(0)


def test_a_nan_of_one_worker_stops_the_run(run_method):
    with pytest.raises(WorkerFailedError, match=r"rank \d, step"):
        run_method(ByteScheduler(), 3, task=Poisoned(), steps=20)


# What goes when.


def queued(size: int, partition: int, credit: int, lengths: list[int]) -> World:
    """All gradients of a step at once, in backward order, of so many elements; a traced world."""

    def worker(comm: Comm) -> None:
        queue = Queue(comm, partition, credit)
        gradients = [torch.full((n,), float(comm.rank + 1)) for n in lengths]
        order = list(range(len(lengths)))
        # Complete in another order on each rank.
        for tensor in reversed(order) if comm.rank == 0 else order[2:] + order[:2]:
            queue.ready(tensor, gradients[tensor])
        for tensor in order:
            queue.wait(tensor)
            assert torch.equal(
                gradients[tensor], torch.full((lengths[tensor],), size * (size + 1) / 2)
            )

    world = World(cluster(size), trace=True)
    world.run(worker)
    return world


def test_the_first_layers_overtake_whatever_is_not_under_way():
    lengths = [1000, 2000, 3000, 4000]
    world = queued(2, 10**9, 1, lengths)
    header = 24
    halves = {2 * n + header: tensor for tensor, n in enumerate(lengths)}
    order: dict[int, None] = {}
    for span in sorted(world.spans or (), key=lambda s: s[2]):
        if span[:2] == (0, "send") and span[5] in halves:
            order[halves[span[5]]] = None
    assert list(order) == [3, 0, 1, 2]  # the last one began when no other was complete


@pytest.mark.parametrize(("credit", "at_once"), [(1, 1), (4000, 1), (8000, 2), (13_000, 3)])
def test_the_credit_bounds_what_is_under_way(monkeypatch, credit, at_once):
    under_way, most = 0, 0
    plain = collectives.all_reduce

    def counted(comm: Comm, x: torch.Tensor, *more: Any) -> torch.Tensor:
        nonlocal under_way, most
        under_way += x.nbytes * (comm.rank == 0)
        most = max(most, under_way)
        plain(comm, x, *more)
        under_way -= x.nbytes * (comm.rank == 0)
        return x

    monkeypatch.setattr(collectives, "all_reduce", counted)
    queued(3, 4000, credit, [5000, 3000, 8000])
    assert most == at_once * 4000


def test_ranks_that_finish_layers_in_different_orders_do_not_wait_in_a_circle():
    for size in (2, 3, 5):
        queued(size, 500, 500, [100, 300, 200, 400, 50])


@pytest.mark.slow
def test_what_is_sent_beside_the_next_forward_pass_shortens_the_step():
    """The exchange takes longer than backward: WFBP shows the rest, priorities hide some of it.
    With all credit there are no priorities."""

    def step(method: Method) -> float:
        times = [virtual(method, 2, Convolved(), plan_of(2, steps=n), 1e6)[1] for n in (4, 8)]
        return (times[1] - times[0]) / 4

    overlapped = step(WFBP())
    assert step(ByteScheduler(partition=4000, credit=8000)) < 0.9 * overlapped
    assert step(ByteScheduler()) > 0.95 * overlapped


# Updates that come late.


def on_two(action: Any) -> list[Any]:
    task = Deep()

    def worker(comm: Comm) -> Any:
        replica = Replica(task, plan_of(2), comm, lambda kind, values: None)
        return action(Worker(comm, replica, SampleStream(task.num_train, 0)))

    return World(cluster(2)).run(worker)


def test_who_reads_the_parameters_waits_for_the_update():
    def action(w: Worker) -> list[int]:
        waited: list[int] = []
        before = w.params.clone()
        w.wait_and_apply(torch.ones_like(before), waited.append)
        assert waited == []
        torch.testing.assert_close(w.params, before - 0.1)
        return waited

    assert on_two(action) == [list(range(16))] * 2


def test_a_layer_is_stepped_before_the_forward_pass_comes_to_it():
    def action(w: Worker) -> None:
        events: list[tuple[str, int]] = []
        batches = w.batches()
        next(batches)
        w.wait_and_apply(torch.zeros_like(w.params), lambda i: events.append(("wait", i)))
        w.gradient(next(batches), before_layer=lambda i: events.append(("before", i)))
        assert events == [(what, i) for i in range(16) for what in ("wait", "before")]

    on_two(action)


def test_one_program_steps_in_one_way():
    def late_then_plain(w: Worker) -> None:
        w.wait_and_apply(torch.zeros_like(w.params), lambda i: None)
        with pytest.raises(InputError, match="one of the two"):
            w.apply(torch.zeros_like(w.params))

    def plain_then_late(w: Worker) -> None:
        w.apply(torch.zeros_like(w.params))
        with pytest.raises(InputError, match="one of the two"):
            w.wait_and_apply(torch.zeros_like(w.params), lambda i: None)

    def wrong(w: Worker) -> None:
        with pytest.raises(InputError, match=r"vector of \(3,\)"):
            w.wait_and_apply(torch.zeros(3), lambda i: None)

    for action in (late_then_plain, plain_then_late, wrong):
        on_two(action)


@pytest.mark.parametrize(("key", "value"), [("partition", 0), ("credit", -1), ("credit", "many")])
def test_settings_out_of_range_are_refused_by_name(key, value):
    with pytest.raises(InputError, match=rf"{key} = '?{value}"):
        build_method("bytescheduler", {key: value})


# For real.

CASES: list[tuple[Method, type[Moons]]] = [
    (ByteScheduler(), Deep),
    (ByteScheduler(partition=1000, credit=1000), Deep),
    (ByteScheduler(partition=500, credit=2000), Mixed),
]


def real_programs(rank: int, size: int) -> list[str]:
    torch.set_num_threads(1)
    found = []
    for method, task in CASES:
        with connect(deadline=60) as comm:
            found.append(program(method, task(), plan_of(size), comm))
    return [*found, seen_in_forward()]


def seen_in_forward() -> str:
    """Which layers have been stepped when the first and the last one have computed."""
    task, steps = Deep(), 2
    with connect(deadline=60) as comm:
        replica = Replica(task, plan_of(comm.size, steps=steps), comm, lambda kind, values: None)
        first, last = replica.layers[0], replica.layers[-1]
        values = replica.flat.params_P.data
        start, seen = values.clone(), []

        def moved(*_: Any) -> None:
            ends = [slice(layer.start, layer.stop) for layer in (first, last)]
            seen.append([not torch.equal(values[end], start[end]) for end in ends])

        replica.model[0].register_forward_hook(moved)  # pyright: ignore[reportIndexIssue]
        replica.model[-1].register_forward_hook(moved)  # pyright: ignore[reportIndexIssue]
        stream = SampleStream(task.num_train, 0)
        method = ByteScheduler(partition=1000, credit=1000)
        worker = Worker(comm, replica, stream)
        for batch in worker.batches():
            method._step(worker, batch)
        worker.wait_applied()
    return repr(seen[:4])


def own_loop(rank: int, size: int) -> dict[str, str]:
    """A plain loop with three micro-batches a step."""
    torch.set_num_threads(1)
    found = {}
    for name in ("ssgd", "bytescheduler"):
        torch.manual_seed(0)
        model = Deep().model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        more = {"accumulate": 3, "partition": 1000} if name == "bytescheduler" else {}
        with tw.distribute(model, optimizer, method=name, **more):
            for step in range(4):
                for part in range(3):
                    draw = torch.Generator().manual_seed(100 * rank + 10 * step + part)
                    (model(torch.randn(4, 2, generator=draw)).square().mean() / 3).backward()
                optimizer.step()
                optimizer.zero_grad()
        found[name] = digest(torch.cat([p.data.view(-1) for p in model.parameters()]))
    return found


@pytest.mark.distributed
@pytest.mark.parametrize("size", [2, 3])
def test_real_processes_end_with_the_bits_of_plain_s_sgd(size):
    real = run_processes(real_programs, size, env={"OMP_NUM_THREADS": "1"}, deadline=100)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for index, (_, task) in enumerate(CASES):
            expected = virtual(SSGD(), size, task())[0]
            assert [found[index] for found in real] == expected, real
    finally:
        torch.set_num_threads(threads)
    # Of two steps: nothing moves in the first; in the second the first layer has been stepped when
    # it computes, and the last only when its own turn comes.
    steps = [[False, False], [False, False], [True, False], [True, True]]
    assert [found[-1] for found in real] == [repr(steps)] * size


@pytest.mark.distributed
def test_a_loop_of_ones_own_ends_as_with_plain_s_sgd():
    for found in run_processes(own_loop, 2, env={"OMP_NUM_THREADS": "1"}, deadline=100):
        assert isinstance(found, dict), found
        assert found["bytescheduler"] == found["ssgd"]
