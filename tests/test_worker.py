"""What a method's program is given: batches, gradients, hooks, steps, evaluations, randomness."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from thinwire.batches import SampleStream
from thinwire.cluster import Cluster, Node
from thinwire.errors import (
    InputError,
    NonFiniteError,
    WaitInBackwardError,
    WorkerFailedError,
)
from thinwire.optim import LAMB, LARS
from thinwire.seeds import seed_for
from thinwire.testing.toys import DropoutMoons, Exploding, Moons
from thinwire.wire import Comm, Packet, Work
from thinwire.wire.sockets import connect
from thinwire.wire.virtual import World
from thinwire.worker import Optimizer, Plan, Replica, Worker

FLOPS = 1e6


def cluster(size: int) -> Cluster:
    nodes = tuple(
        Node(name=f"n{i}", flops=FLOPS, memory_rate=1e12, egress=1e6, ingress=1e6)
        for i in range(size)
    )
    return Cluster(name="test", nodes=nodes, default_latency=0.001)


def plan_of(size: int, **changes: Any) -> Plan:
    settings: dict[str, Any] = {"shares": (4,) * size, "steps": 6, "speeds": (1.0,) * size}
    return Plan(**{**settings, **changes})


class Log:
    """What a worker logs."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, kind: str, values: dict[str, Any]) -> None:
        self.lines.append((kind, values))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [values for k, values in self.lines if k == kind]


def on_virtual(
    program: Callable[[Worker], Any],
    size: int = 1,
    *,
    task: Any = None,
    log: Callable[[str, dict[str, Any]], None] = lambda kind, values: None,
    **changes: Any,
) -> list[Any]:
    """Run a program as every worker of a small virtual cluster; what each returned."""
    task = Moons() if task is None else task
    plan = plan_of(size, **changes)
    stream = SampleStream(task.num_train, plan.seed)

    def worker(comm: Comm) -> Any:
        return program(Worker(comm, Replica(task, plan, comm, log), stream))

    return World(cluster(size)).run(worker)


@pytest.fixture
def alone() -> Iterator[Comm]:
    """A comm of the real wire, without any peer."""
    with connect(deadline=5) as comm:
        yield comm


# Batches


@pytest.mark.parametrize("shares", [(4,), (4, 4, 4), (1, 5, 2, 9)])
def test_the_batches_of_a_step_are_exactly_the_next_global_batch(shares):
    def program(w: Worker) -> list[torch.Tensor]:
        return [batch.index_B for batch in w.batches()]

    parts = on_virtual(program, len(shares), shares=shares, speeds=(1.0,) * len(shares), steps=40)
    whole = sum(shares)
    for step in range(40):  # over the ends of several epochs
        union = torch.cat([part[step] for part in parts])
        expected = SampleStream(256, 0).take(step * whole, whole)
        assert torch.equal(union, expected)


def test_a_batch_holds_the_samples_it_names_and_weights_sum_to_one():
    x, y = Moons().train_data()

    def program(w: Worker) -> float:
        batch = next(w.batches())
        assert torch.equal(batch.x, x[batch.index_B])
        assert torch.equal(batch.y, y[batch.index_B])
        assert batch.size == w.plan.shares[w.rank]
        return batch.weight

    assert on_virtual(program, 3, shares=(1, 5, 2)) == [1 / 8, 5 / 8, 2 / 8]


def test_batches_in_portions_are_the_same_batches_and_set_the_step():
    def program(w: Worker) -> list[tuple[int, list[int]]]:
        portions = [2, 1, None] if w.rank else [None]
        return [
            (w.comm.step, batch.index_B.tolist())
            for portion in portions
            for batch in w.batches(portion)
        ]

    at_once, in_portions = on_virtual(program, 2)
    assert [step for step, _ in in_portions] == [1, 2, 3, 4, 5, 6]
    assert [step for step, _ in at_once] == [1, 2, 3, 4, 5, 6]
    assert [len(index) for _, index in in_portions] == [4] * 6


# Evaluations


def steps_of(log: Log) -> list[int]:
    return [values["step"] for values in log.of("eval")]


def train(w: Worker) -> None:
    for batch in w.batches():
        w.apply(w.gradient(batch))


def with_finish(program: Callable[[Worker], None]) -> Callable[[Worker], None]:
    def run(w: Worker) -> None:
        program(w)
        w.finish()

    return run


@pytest.mark.parametrize(
    ("steps", "every", "expected"),
    [(6, 2, [0, 2, 4, 6]), (7, 3, [0, 3, 6, 7]), (2, 10, [0, 2])],
)
def test_at_the_batches_the_model_is_tested_when_due_and_once_at_the_end(steps, every, expected):
    log = Log()
    on_virtual(with_finish(train), 2, log=log, steps=steps, eval_every=every)
    assert steps_of(log) == expected  # by rank 0 alone
    assert [values["samples"] for values in log.of("eval")] == [8 * step for step in expected]


def test_the_last_test_comes_after_what_a_method_applies_after_its_last_batch():
    log = Log()

    def program(w: Worker) -> None:
        train(w)
        w.params.zero_()
        w.apply(torch.zeros_like(w.params))

    on_virtual(with_finish(program), log=log, eval_every=3)
    zeroed = Moons().model()
    with torch.no_grad():
        for param in zeroed.parameters():
            param.zero_()
    accuracy, loss = Moons().evaluate(zeroed)
    assert steps_of(log) == [0, 3, 6]
    assert log.of("eval")[-1]["accuracy"] == accuracy
    assert log.of("eval")[-1]["loss"] == pytest.approx(loss)


def test_an_unchanged_model_is_not_tested_again():
    log = Log()

    def accumulate(w: Worker) -> None:
        for i, batch in enumerate(w.batches(), start=1):
            gradient = w.gradient(batch)
            if i % 3 == 0:
                w.apply(gradient)

    on_virtual(with_finish(accumulate), log=log, steps=9, eval_every=1)
    assert steps_of(log) == [0, 3, 6, 9]


def test_at_the_call_only_the_method_asks_and_the_end_is_always_due():
    log = Log()

    def program(w: Worker) -> None:
        w.evaluate(0)
        for done in (1, 2, 3, 4, 5, 6):
            for batch in w.batches(1):
                w.apply(w.gradient(batch))
            w.evaluate(done)

    on_virtual(with_finish(program), 2, log=log, eval_every=4, evaluate_at="call")
    assert steps_of(log) == [0, 4, 6]


def test_tests_cost_no_time_and_no_randomness():
    def program(w: Worker) -> tuple[float, list[float]]:
        train(w)
        return w.comm.now(), w.params.tolist()

    often, never = (
        on_virtual(program, task=DropoutMoons(), eval_every=every) for every in (1, 1000)
    )
    assert often == never


# Gradients and hooks


def test_the_gradient_is_the_one_that_torch_computes():
    def program(w: Worker) -> tuple[torch.Tensor, torch.Tensor]:
        batch = next(w.batches())
        before = w.params.clone()
        return w.gradient(batch).clone(), before

    gradient, params = on_virtual(program)[0]
    torch.manual_seed(seed_for(0, "model"))
    model = Moons().model()
    assert torch.equal(torch.cat([p.data.reshape(-1) for p in model.parameters()]), params)
    index = SampleStream(256, 0).take(0, 4)
    x, y = Moons().train_data()
    Moons().loss(model, x[index], y[index]).backward()
    expected = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
    assert torch.equal(gradient, expected)


def test_a_gradient_takes_the_forward_pass_and_twice_that_backward():
    def program(w: Worker) -> float:
        w.gradient(next(w.batches()))
        return w.comm.now()

    assert on_virtual(program)[0] == pytest.approx(3 * 4 * Moons().flops_per_sample / FLOPS)


def test_hooks_leave_gradient_and_time_as_they_are():
    def program(w: Worker) -> tuple[list[float], float]:
        hooks = (lambda layer: None, lambda layer, gradient: None) if w.rank else ()
        gradient = w.gradient(next(w.batches()), *hooks)
        return gradient.tolist(), w.comm.now()

    task = Moons()
    (_, plain), (_, hooked) = on_virtual(program, 2, task=task)
    assert hooked == pytest.approx(plain, abs=20e-9)  # a rounding to whole ns per layer


def test_before_layer_comes_in_forward_order_each_after_the_time_of_those_before():
    def program(w: Worker) -> list[tuple[int, float]]:
        seen: list[tuple[int, float]] = []
        w.gradient(next(w.batches()), before_layer=lambda i: seen.append((i, w.comm.now())))
        return seen

    seen = on_virtual(program)[0]
    times = [time for _, time in seen]
    assert [layer for layer, _ in seen] == list(range(6))
    assert times[0] == 0
    assert times == sorted(set(times))


def test_a_wait_before_a_layer_delays_the_forward_pass():
    def program(w: Worker) -> float:
        def before(layer: int) -> None:
            if layer == 3:
                w.receive(1, "weights")

        if w.rank == 1:
            w.comm.spend(Work(elapsed=5.0))
            w.send(0, torch.ones(1), "weights")
            return 0.0
        w.gradient(next(w.batches()), before_layer=before)
        return w.comm.now()

    compute = 3 * 4 * Moons().flops_per_sample / FLOPS
    assert 5.0 < on_virtual(program, 2)[0] < 5.01 + compute


class Late(nn.Module):
    """Its second layer is used first, its third not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.second, self.first, self.unused = nn.Linear(4, 2), nn.Linear(2, 4), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


class LateTask(Moons):
    """Moons by a network whose layers stand in another order than they are used in."""

    name: ClassVar[str] = "late"

    def model(self) -> nn.Module:
        """As `Task.model`."""
        return Late()


def seen_backward(w: Worker) -> tuple[list[int], list[float], list[bool]]:
    """Order and times of on_layer at the second gradient, and whether each gradient was whole."""
    layers, times, gradients = [], [], []

    def on_layer(layer: int, gradient: torch.Tensor) -> None:
        layers.append(layer)
        times.append(w.comm.now())
        gradients.append(gradient.clone())

    batches = w.batches()
    for _ in range(2):
        layers.clear(), times.clear(), gradients.clear()
        whole = w.gradient(next(batches), on_layer=on_layer)
    places = [w.layers[layer] for layer in layers]
    whole_at = [
        torch.equal(gradient, whole[place.start : place.stop])
        for gradient, place in zip(gradients, places, strict=True)
    ]
    return layers, times, whole_at


def test_on_layer_comes_in_the_real_backward_order_with_rising_times_unused_layers_last():
    layers, times, whole = on_virtual(seen_backward, task=LateTask())[0]
    assert set(layers[:2]) == {0, 1}  # `second`: the last used, whatever its place
    assert set(layers[2:4]) == {2, 3}
    assert layers[4:] == [5, 4]
    assert times == sorted(times)
    assert all(whole)


def test_backward_time_goes_by_operations_and_follows_the_tensors_that_need_them():
    # 4·4·2 multiply-adds for each gradient of `second`, of its weight and of its input; of `first`
    # only the weight's: the input needs none. A bias costs nothing that is counted.
    layers, times, _ = on_virtual(seen_backward, task=LateTask())[0]
    at = dict(zip(layers, times, strict=True))
    backward = 2 * 4 * LateTask().flops_per_sample / FLOPS
    second, first, unused = max(at[0], at[1]), max(at[2], at[3]), max(at[4], at[5])
    assert first - second == pytest.approx(backward / 3, abs=1e-8)
    assert unused == first


class NoMeta(Late):
    """Looks at its values in training, which it can't without data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (1 + 0 * float(x.sum()) if self.training else 1)


class NoMetaTask(Moons):
    name: ClassVar[str] = "no meta"

    def model(self) -> nn.Module:
        """As `Task.model`."""
        return NoMeta()


def test_where_operations_cannot_be_counted_backward_time_goes_by_parameters():
    layers, times, _ = on_virtual(seen_backward, task=NoMetaTask())[0]
    numel = {0: 8, 1: 2, 2: 8, 3: 4, 4: 4, 5: 2}
    spent = [b - a for a, b in pairwise(times)]
    unit = spent[0] / numel[layers[1]]
    for layer, took in zip(layers[1:], spent, strict=True):
        assert took == pytest.approx(unit * numel[layer], rel=1e-3)


def test_on_the_real_wire_a_layer_that_is_not_finite_is_named_and_never_given(alone):
    task, given = Steep(), []
    replica = Replica(task, plan_of(1), alone, lambda kind, values: None)
    worker = Worker(alone, replica, SampleStream(task.num_train, 0))
    on_layer = lambda layer, gradient: given.append(worker.layers[layer].name)  # noqa: E731
    with pytest.raises(NonFiniteError, match="gradient of 'steep' is not finite"):
        worker.gradient(next(worker.batches()), on_layer=on_layer)
    assert "steep" not in given


def test_on_layer_is_called_alike_on_the_real_wire(alone):
    virtual = on_virtual(seen_backward, task=LateTask())[0]
    task, plan = LateTask(), plan_of(1)
    log: Callable[..., None] = lambda kind, values: None  # noqa: E731
    worker = Worker(alone, Replica(task, plan, alone, log), SampleStream(task.num_train, 0))
    real = seen_backward(worker)
    assert real[0] == virtual[0]
    assert all(real[2])


def test_on_layer_may_post_start_and_spend_so_that_messages_leave_during_backward():
    def program(w: Worker) -> list[float]:
        if w.rank == 1:
            return [w.comm.wait(0, ("layer", i)).time for i in range(6)]

        def on_layer(layer: int, gradient: torch.Tensor) -> None:
            w.comm.spend(Work(elapsed=0.01))
            w.comm.post(1, Packet.of(gradient), ("layer", layer))
            tasks.append(w.comm.start(lambda comm: comm.now(), f"task {layer}"))

        tasks: list[Any] = []
        w.gradient(next(w.batches()), on_layer=on_layer)
        return [*(task.wait() for task in tasks), w.comm.now()]

    sender, arrivals = on_virtual(program, 2)
    end = sender[-1]
    assert sender[:-1] == sorted(sender[:-1])
    assert end > 6 * 0.01
    assert min(arrivals) < end / 2  # long before the last layer was ready


@pytest.mark.parametrize("how", ["wait", "task"])
def test_a_wait_in_on_layer_raises_on_the_virtual_cluster_as_it_would_on_a_real_one(how):
    def program(w: Worker) -> None:
        task = w.comm.start(lambda comm: comm.spend(Work(elapsed=1.0)), "beside")

        def on_layer(layer: int, gradient: torch.Tensor) -> None:
            if how == "wait":
                w.receive(1 - w.rank, "never")
            else:
                task.wait()

        w.gradient(next(w.batches()), on_layer=on_layer)

    with pytest.raises(WorkerFailedError, match="inside backward") as failed:
        on_virtual(program, 2)
    assert isinstance(failed.value.__cause__, WaitInBackwardError)


def test_waits_are_allowed_again_after_a_hook_that_raised():
    def program(w: Worker) -> int:
        def on_layer(layer: int, gradient: torch.Tensor) -> None:
            raise KeyError("a mistake in the hook")

        with pytest.raises(KeyError):
            w.gradient(next(w.batches()), on_layer=on_layer)
        return int(w.exchange(1 - w.rank, torch.tensor([w.rank])))

    assert on_virtual(program, 2) == [1, 0]


def test_a_wait_in_on_layer_raises_on_the_real_wire(alone):
    worker = Worker(
        alone,
        Replica(Moons(), plan_of(1), alone, lambda kind, values: None),
        SampleStream(256, 0),
    )
    with pytest.raises(WaitInBackwardError, match="inside backward"):
        worker.gradient(
            next(worker.batches()), on_layer=lambda i, g: worker.receive(tag="x") and None
        )


class Split(nn.Module):
    """One layer's gradient can be infinite while the loss is finite."""

    def __init__(self) -> None:
        super().__init__()
        self.sound, self.steep = nn.Linear(2, 2), nn.Parameter(torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.sound(x) + torch.sqrt(self.steep)


class Steep(Moons):
    """The root of 0 has an infinite slope."""

    name: ClassVar[str] = "steep"

    def model(self) -> nn.Module:
        """As `Task.model`."""
        return Split()


def test_a_gradient_that_is_not_finite_names_rank_step_and_layer():
    def program(w: Worker) -> None:
        for batch in w.batches():
            with pytest.raises(
                NonFiniteError, match=r"rank 0, step 1.*gradient of 'steep'.*train\.lr is 0\.1"
            ):
                w.gradient(batch)
            break

    on_virtual(program, task=Steep())


def test_a_loss_that_is_not_finite_names_rank_and_step():
    with pytest.raises(WorkerFailedError, match=r"^rank \d, step 3, .*the loss is nan") as failed:
        on_virtual(train, task=Exploding(at=3))
    assert isinstance(failed.value.__cause__, NonFiniteError)


# Steps


def test_a_direction_of_another_size_is_refused():
    def program(w: Worker) -> None:
        for bad in (torch.zeros(3), torch.zeros(1, w.params.numel()), torch.tensor(0.0)):
            with pytest.raises(InputError, match=r"apply\(\).*\(354,\)"):
                w.apply(bad)
        before = w.params.clone()
        w.apply(torch.zeros_like(w.params))
        assert torch.equal(w.params, before)

    on_virtual(program)


def test_a_direction_is_not_written_to():
    def program(w: Worker) -> None:
        direction = torch.ones_like(w.params)
        for _ in range(3):
            w.apply(direction)
        assert torch.equal(direction, torch.ones_like(direction))

    on_virtual(program, optimizer=Optimizer(lr=0.1, momentum=0.9, weight_decay=0.1))


def test_the_learning_rate_rises_over_the_warm_up_and_stays():
    def program(w: Worker) -> list[float]:
        taken = []
        for _ in range(6):
            before = w.params.clone()
            w.apply(torch.ones_like(w.params))
            taken.append(float((before - w.params).mean()))
        return taken

    taken = on_virtual(program, optimizer=Optimizer(lr=0.4, warmup=4))[0]
    assert taken == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4], rel=1e-4)


@pytest.mark.parametrize(
    ("decay", "rates"),
    [
        ("none", [0.2, 0.4, 0.4, 0.4]),
        ("linear", [0.2, 0.3, 0.2, 0.1]),
        ("cosine", [0.2, 0.2 + math.sqrt(0.02), 0.2, 0.2 - math.sqrt(0.02)]),
    ],
)
@pytest.mark.parametrize("evaluate_at", ["batch", "call"])
def test_the_learning_rate_falls_with_the_steps_of_the_run_that_are_done(decay, rates, evaluate_at):
    def program(w: Worker) -> list[float]:
        taken = []
        for batch in w.batches(4):
            if evaluate_at == "call":
                w.evaluate(w.steps)
            before = w.params.clone()
            w.apply(torch.ones_like(w.params))
            taken.append(float((before - w.params).mean()))
            assert batch.size
        return taken

    rule = Optimizer(lr=0.4, warmup=2, decay=decay)
    for taken in on_virtual(program, optimizer=rule, steps=4, evaluate_at=evaluate_at):
        assert taken == pytest.approx(rates, rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "sdg"}, "valid: sgd, adam, adamw, lars, lamb"),
        ({"lr": 0.0}, "lr = 0.0"),
        ({"lr": float("nan")}, "lr = nan"),
        ({"lr": float("inf")}, "lr = inf"),
        ({"momentum": 1.0}, "momentum = 1.0"),
        ({"name": "adam", "momentum": 0.9}, "no effect with adam"),
        ({"name": "lamb", "momentum": 0.9}, "no effect with lamb"),
        ({"weight_decay": -1.0}, "weight_decay = -1.0"),
        ({"warmup": -1}, "warmup = -1"),
        ({"decay": "step"}, "decay = 'step'; valid: none, linear, cosine"),
    ],
)
def test_an_optimizer_that_cannot_be_is_refused(settings, message):
    with pytest.raises(InputError, match=message):
        Optimizer(**settings)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_every_optimizer_is_torchs_own(name):
    def program(w: Worker) -> torch.Tensor:
        param = nn.Parameter(w.params.clone())
        torchs = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
        reference = torchs[name]([param], lr=0.05, weight_decay=0.01)
        for _ in range(3):
            direction = torch.randn(w.params.shape, generator=w.rng)
            param.grad = direction.clone()
            reference.step()
            w.apply(direction)
        assert torch.equal(w.params, param.data)
        return w.params

    on_virtual(program, optimizer=Optimizer(name=name, lr=0.05, weight_decay=0.01))


@pytest.mark.parametrize(
    ("name", "torchs"),
    [("lars", functools.partial(LARS, momentum=0.9)), ("lamb", LAMB)],
)
def test_a_layerwise_optimizer_scales_each_tensor_of_the_model_by_itself(name, torchs):
    def program(w: Worker) -> None:
        tensors = [
            nn.Parameter(w.params[layer.start : layer.stop].clone().view(layer.shape))
            for layer in w.layers
        ]
        reference = torchs(tensors, lr=0.5, weight_decay=0.01)
        for _ in range(3):
            direction = torch.randn(w.params.shape, generator=w.rng)
            for tensor, layer in zip(tensors, w.layers, strict=True):
                tensor.grad = direction[layer.start : layer.stop].clone().view(layer.shape)
            reference.step()
            w.apply(direction)
        expected = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        torch.testing.assert_close(w.params, expected, rtol=1e-5, atol=1e-7)

    momentum = 0.9 if name == "lars" else 0.0
    on_virtual(
        program, optimizer=Optimizer(name=name, lr=0.5, momentum=momentum, weight_decay=0.01)
    )


# Randomness


class Restless(Moons):
    """Draws from all three global generators."""

    name: ClassVar[str] = "restless"
    uses_rngs: ClassVar[tuple[str, ...]] = ("torch", "numpy", "random")

    def loss(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """As `Task.loss`."""
        noise = float(torch.rand(())) + np.random.rand() + random.random()
        return F.cross_entropy(model(x) * noise, y)


@pytest.mark.parametrize("task", [DropoutMoons(), Restless()], ids=lambda task: task.name)
def test_workers_of_one_process_draw_what_each_would_draw_in_a_process_of_its_own(task):
    def draw(w: Worker) -> list[float]:
        train(w)
        return w.params.tolist()

    together = on_virtual(draw, 3, task=task)
    assert together[0] != together[1]
    for rank in range(3):  # the others do nothing and draw nothing

        def only(w: Worker, rank: int = rank) -> list[float]:
            return draw(w) if w.rank == rank else []

        assert on_virtual(only, 3, task=task)[rank] == together[rank]


def test_a_run_leaves_the_global_generators_alone():
    def states() -> tuple[Any, ...]:
        return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()

    before = states()
    on_virtual(train, 2, task=Restless())
    assert states() == before


def test_ranks_share_one_generator_and_have_one_of_their_own():
    def program(w: Worker) -> tuple[list[float], list[float]]:
        return torch.rand(3, generator=w.shared_rng).tolist(), torch.rand(
            3, generator=w.rng
        ).tolist()

    (shared_0, own_0), (shared_1, own_1) = on_virtual(program, 2)
    assert shared_0 == shared_1
    assert len({tuple(own_0), tuple(own_1), tuple(shared_0)}) == 3


# The record


def test_numbers_are_logged_whatever_they_come_as():
    log = Log()

    def program(w: Worker) -> None:
        w.log(cut=torch.tensor(0.5), kept=3)

    on_virtual(program, log=log)
    assert log.of("values") == [{"cut": 0.5, "kept": 3.0}]


def test_the_loss_is_logged_at_the_first_step_and_then_every_so_many():
    log = Log()

    def program(w: Worker) -> list[int]:
        seen = []
        for batch in w.batches():
            before = len(log.lines)
            w.gradient(batch)
            if len(log.lines) > before:
                seen.append(w.comm.step)
        return seen

    assert on_virtual(program, log=log, steps=10, log_every=4, eval_every=100) == [[1, 4, 8]]


def test_exchanged_tensors_are_private_copies():
    def program(w: Worker) -> list[float]:
        own = torch.full((2, 2), float(w.rank))
        theirs = w.exchange(1 - w.rank, own)
        theirs.add_(10)
        w.all_reduce(own).add_(100)
        return own.reshape(-1).tolist()

    assert on_virtual(program, 2) == [[0.0] * 4, [1.0] * 4]
