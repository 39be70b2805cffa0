"""A world of one: the loop must go on as if nothing had been added."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import thinwire as tw
from thinwire.errors import InputError, NonFiniteError, ThinwireError, WaitInBackwardError
from thinwire.methods import METHODS, SSGD, LocalSGD, Method

LOSSLESS = {
    "alone": {},
    "asgd": {},
    "bytescheduler": {"partition": 40},
    "dgc": {"dense_below": 10**9},
    "gtopk": {"density": 1.0},
    "lags": {"density": 1.0},
    "localsgd": {"every": 4},
    "oktopk": {"density": 1.0},
    "powersgd": {"dense_below": 10**9},
    "qsgd": {"bucket": 1},
    "ssgd": {},
    "topk": {"density": 1.0},
    "wfbp": {},
}


@pytest.fixture(autouse=True)
def _finished() -> Iterator[None]:
    yield
    tw.finish()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def sgd(model: nn.Module, **settings: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **settings)


def data(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(16, 6, generator=generator)
    return x, torch.randint(0, 3, (16,), generator=generator)


def loss_of(model: nn.Module, step: int) -> torch.Tensor:
    x, y = data(step)
    return nn.functional.cross_entropy(model(x), y)


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    optimizer.zero_grad()
    loss_of(model, step).backward()
    optimizer.step()


def maker(name: str) -> Callable[[nn.Module], torch.optim.Optimizer]:
    """The optimizer that goes with a method: without momentum where the method has its own."""
    if METHODS[name].traits.momentum == "optimizer":
        return sgd
    return lambda model: torch.optim.SGD(model.parameters(), lr=0.1)


def train(
    one_step: Callable[[nn.Module, torch.optim.Optimizer, int], None] = plain_step,
    method: str | Method | None = None,
    settings: dict[str, Any] | None = None,
    make: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
    steps: int = 8,
) -> torch.Tensor:
    """Final parameters; without a method: a loop without thinwire."""
    model = network()
    optimizer = make(model)
    if method is not None:
        model, optimizer = tw.distribute(model, optimizer, method=method, **(settings or {}))
    for step in range(steps):
        one_step(model, optimizer, step)
    tw.finish()
    return flat(model)


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


# Equal to the plain loop, to the bit.


@pytest.mark.parametrize("name", METHODS)
def test_every_method_at_its_lossless_setting_is_plain_training(name: str):
    assert torch.equal(train(method=name, settings=LOSSLESS[name], make=maker(name)), train())


@pytest.mark.parametrize(
    "make",
    [
        lambda m: torch.optim.AdamW(m.parameters(), lr=0.01, weight_decay=0.1),
        lambda m: torch.optim.SGD(
            [
                {"params": m[0].parameters(), "lr": 0.2},
                {"params": [*m[1].parameters(), *m[3].parameters()], "weight_decay": 0.01},
            ],
            lr=0.05,
            nesterov=True,
            momentum=0.9,
        ),
    ],
    ids=["adamw", "groups"],
)
def test_the_optimizer_keeps_its_own_rule_groups_and_state(make: Any):
    assert torch.equal(train(method="ssgd", make=make), train(make=make))


def zero_after(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    loss_of(model, step).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=step % 2 == 0)


def zero_between(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    loss = loss_of(model, step)
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()


def zero_by_model(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    model.zero_grad(set_to_none=step % 2 == 0)
    loss_of(model, step).backward()
    optimizer.step()


def zero_by_hand(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    for param in model.parameters():
        param.grad = None
    loss_of(model, step).backward()
    optimizer.step()


def with_closure(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        return loss

    with torch.no_grad():  # step turns gradients on for the closure
        loss = optimizer.step(closure)  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert isinstance(loss, torch.Tensor)


def accumulated(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    optimizer.zero_grad()
    for part in range(4):
        (loss_of(model, 4 * step + part) / 4).backward()
    optimizer.step()


def clipped(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    optimizer.zero_grad()
    (50 * loss_of(model, step)).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    assert norm > 0.5
    optimizer.step()


def evaluated_between(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    plain_step(model, optimizer, step)
    model.eval()
    loss_of(model, 100)
    model.train()
    with torch.no_grad():
        loss_of(model, 101)


def skipping(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """A batch that is thrown away after its forward pass."""
    loss = loss_of(model, step)
    if step in (2, 3, 7):
        return
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def in_bfloat16(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(model, step)
    loss.backward()
    optimizer.step()


LOOPS = [
    zero_after,
    zero_between,
    zero_by_model,
    zero_by_hand,
    with_closure,
    accumulated,
    clipped,
    evaluated_between,
    skipping,
    in_bfloat16,
]


@pytest.mark.parametrize("name", ["ssgd", "topk", "localsgd", "lags"])
@pytest.mark.parametrize("loop", LOOPS, ids=lambda f: f.__name__)
def test_ordinary_loops_of_any_shape_train_as_before(loop: Any, name: str):
    assert torch.equal(train(loop, name, LOSSLESS[name]), train(loop))


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False])
def test_a_scheduler_ends_where_it_should_whenever_it_was_made(
    before: bool, recwarn: pytest.WarningsRecorder
):
    for name in METHODS:
        model = network()
        optimizer = maker(name)(model)
        linear = lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.1, total_iters=20)  # noqa: E731
        if before:
            scheduler = linear(optimizer)
            tw.distribute(model, optimizer, method=name)
        else:
            tw.distribute(model, optimizer, method=name)
            scheduler = linear(optimizer)
        for step in range(20):
            plain_step(model, optimizer, step)
            scheduler.step()
        tw.finish()
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    assert [str(w.message) for w in recwarn if "lr_scheduler" in str(w.message)] == []


def test_the_server_of_an_asynchronous_method_follows_the_scheduler():
    def run(method: str | None) -> torch.Tensor:
        model = network()
        optimizer = sgd(model)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        if method:
            tw.distribute(model, optimizer, method=method)
        for step in range(8):
            plain_step(model, optimizer, step)
            scheduler.step()
        tw.finish()
        return flat(model)

    assert torch.equal(run("asgd"), run(None))


def test_what_a_method_still_holds_at_the_end_is_applied():
    def pairs(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
        """The plain loop's equal: two batches a step, the fifth alone."""
        if step in (0, 2, 4):
            optimizer.zero_grad()
            parts = [step] if step == 4 else [step, step + 1]
            for part in parts:
                (loss_of(model, part) / len(parts)).backward()
            optimizer.step()

    held = train(method=SSGD(accumulate=2), steps=5)
    torch.testing.assert_close(held, train(pairs, steps=5), rtol=1e-5, atol=1e-6)


def test_a_last_forward_pass_without_a_step_changes_nothing():
    model = network()
    optimizer = sgd(model)
    with tw.distribute(model, optimizer):
        for step in range(4):
            plain_step(model, optimizer, step)
        loss_of(model, 99)
    reference = train(steps=4)
    assert torch.equal(flat(model), reference)


# Parts of a model.


def test_frozen_parameters_neither_move_nor_travel():
    model = network()
    model[0].requires_grad_(False)
    frozen = copy.deepcopy(model[0].state_dict())
    optimizer = sgd(model, weight_decay=0.1)
    tw.distribute(model, optimizer)
    for step in range(3):
        plain_step(model, optimizer, step)
    tw.finish()
    for key, value in model[0].state_dict().items():
        assert torch.equal(value, frozen[key])


def test_freezing_during_training_keeps_a_parameter_where_it_is():
    model = network()
    optimizer = sgd(model, weight_decay=0.1)
    tw.distribute(model, optimizer)
    plain_step(model, optimizer, 0)
    model[3].requires_grad_(False)
    before = model[3].weight.clone()
    for step in range(1, 4):
        plain_step(model, optimizer, step)
    assert torch.equal(model[3].weight, before)
    assert not torch.equal(model[0].weight, network()[0].weight)


def test_unfreezing_is_refused_by_name_until_distributed_again():
    model = network()
    model[0].requires_grad_(False)
    optimizer = sgd(model)
    tw.distribute(model, optimizer)
    for step in range(3):
        plain_step(model, optimizer, step)
    model[0].requires_grad_(True)
    with pytest.raises(InputError, match=r"'0\.weight' was frozen"):
        plain_step(model, optimizer, 3)
    tw.finish()
    before = model[0].weight.clone()
    tw.distribute(model, optimizer)
    for step in range(3, 6):
        plain_step(model, optimizer, step)
    assert not torch.equal(model[0].weight, before)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, use_b: bool = False) -> torch.Tensor:
        return (self.b if use_b else self.a)(self.trunk(x))


def test_an_unused_head_contributes_zero_and_joins_when_used():
    model = TwoHeads()
    optimizer = sgd(model)
    tw.distribute(model, optimizer, method="topk", density=1.0)
    start = model.b.weight.clone()
    for step in range(6):
        x, y = data(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x, use_b=step >= 3), y).backward()
        optimizer.step()
        assert torch.equal(model.b.weight, start) is (step < 3)


def test_two_models_with_two_optimizers_train_in_turns():
    def run(distributed: bool) -> list[torch.Tensor]:
        models = [network(), TwoHeads()]
        models[1].load_state_dict({k: v.fill_(0.1) for k, v in models[1].state_dict().items()})
        optimizers = [sgd(m) for m in models]
        if distributed:
            tw.distribute(models[0], optimizers[0], method="ssgd", name="first")
            tw.distribute(models[1], optimizers[1], method="topk", density=1.0, name="second")
        for step in range(6):
            plain_step(models[step % 2], optimizers[step % 2], step)
            if step == 4:
                plain_step(models[1], optimizers[1], 50)
        tw.finish()
        return [flat(m) for m in models]

    for ours, reference in zip(run(True), run(False), strict=True):
        assert torch.equal(ours, reference)


def test_one_model_with_two_optimizers_is_divided_by_what_each_steps():
    def run(distributed: bool) -> torch.Tensor:
        model = network()
        first = torch.optim.SGD(model[0].parameters(), lr=0.1)
        second = torch.optim.AdamW([*model[1].parameters(), *model[3].parameters()], lr=0.01)
        if distributed:
            tw.distribute(model, first, name="first")
            tw.distribute(model, second, name="second")
        for step in range(5):
            first.zero_grad()
            second.zero_grad()
            loss_of(model, step).backward()
            first.step()
            second.step()
        tw.finish()
        return flat(model)

    assert torch.equal(run(True), run(False))


# What a method sees.


def test_the_largest_in_magnitude_is_chosen_not_the_largest():
    model = nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    nn.init.zeros_(model.weight)
    tw.distribute(model, optimizer, method="topk", density=0.25)
    model(torch.tensor([[-5.0, 1.0, 2.0, 0.5]])).sum().backward()
    optimizer.step()
    assert model.weight.tolist() == [[5.0, 0.0, 0.0, 0.0]]


def test_the_gradient_that_was_applied_is_left_where_it_can_be_seen():
    model = nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    tw.distribute(model, optimizer, method="topk", density=0.25)
    model(torch.tensor([[-5.0, 1.0, 2.0, 0.5]])).sum().backward()
    optimizer.step()
    assert model.weight.grad is not None
    assert model.weight.grad.tolist() == [[-5.0, 0.0, 0.0, 0.0]]


@dataclass(frozen=True, kw_only=True)
class Watched(Method):
    """Calls back around each gradient."""

    def worker(self, w: tw.Worker) -> None:
        seen: list[Any] = []
        for batch in w.batches():
            before = lambda i: seen.append(("before", i))  # noqa: E731
            after = lambda i, grad: seen.append(("after", i, grad.numel()))  # noqa: E731
            w.apply(w.gradient(batch, before, after))
        w.state.seen = WATCHED.extend(seen)


WATCHED: list[Any] = []


def test_layer_callbacks_come_in_order_though_nothing_overlaps():
    WATCHED.clear()
    assert torch.equal(train(method=Watched(), steps=1), train(steps=1))
    sizes = [p.numel() for p in network().parameters()]
    before = [("before", i) for i in range(len(sizes))]
    after = [("after", i, sizes[i]) for i in reversed(range(len(sizes)))]
    assert before + after == WATCHED


@dataclass(frozen=True, kw_only=True)
class Short(Method):
    """Ends by itself after two batches."""

    def worker(self, w: tw.Worker) -> None:
        for batch in w.batches(steps=2):
            w.apply(w.gradient(batch))


@dataclass(frozen=True, kw_only=True)
class Endless(Method):
    """Never looks whether there is more to do."""

    def worker(self, w: tw.Worker) -> None:
        while True:
            for batch in w.batches(steps=2):
                w.apply(w.gradient(batch))


def test_a_method_that_ends_by_itself_is_named():
    with pytest.raises(InputError, match="Short ended by itself after 2 steps"):
        train(method=Short(), steps=3)


def test_a_method_that_never_ends_is_stopped():
    with pytest.raises(ThinwireError, match="Endless goes on asking for batches"):
        train(method=Endless(), steps=3)


# The end.


def test_afterwards_model_and_optimizer_are_ordinary_again():
    model = network()
    optimizer = sgd(model)
    keys = list(model.state_dict())
    with tw.distribute(model, optimizer) as (same_model, same_optimizer):
        assert same_model is model
        assert same_optimizer is optimizer
        plain_step(model, optimizer, 0)
        assert list(model.state_dict()) == keys
        assert set(optimizer.state_dict()) == {"state", "param_groups"}
        assert tw.digests() == tw.digests(optimizer)
    assert "step" not in optimizer.__dict__
    assert "zero_grad" not in optimizer.__dict__
    assert not model._forward_pre_hooks
    plain_step(model, optimizer, 1)
    assert torch.equal(flat(model), train(steps=2))


def test_finish_may_be_called_at_any_time_and_again():
    tw.finish()
    model = network()
    tw.distribute(model, sgd(model))
    tw.finish()
    tw.finish()
    assert torch.equal(flat(model), flat(network()))
    with pytest.raises(InputError, match="found 0 models"):
        tw.digests()


@pytest.mark.slow
def test_nothing_is_kept_alive_afterwards():
    model = network()
    optimizer = sgd(model)
    tw.distribute(model, optimizer)
    plain_step(model, optimizer, 0)
    tw.finish()
    gone = weakref.ref(model)
    del model, optimizer
    gc.collect()
    assert gone() is None


def test_alone_there_is_one_rank():
    assert (tw.rank(), tw.size()) == (0, 1)


# What is refused.


def test_a_nan_gradient_never_gets_through_a_method_with_a_memory():
    model = network()
    optimizer = sgd(model)
    tw.distribute(model, optimizer, method="topk", density=1.0)
    plain_step(model, optimizer, 0)
    before = flat(model)
    optimizer.zero_grad()
    (loss_of(model, 1) * float("nan")).backward()
    with pytest.raises(NonFiniteError, match=r"element 0 .* is nan"):
        optimizer.step()
    assert torch.equal(flat(model), before)
    with pytest.raises(InputError, match="training has failed before"):
        optimizer.step()
    with pytest.raises(NonFiniteError):
        tw.finish()


def test_a_step_inside_backward_is_refused():
    model = network()
    optimizer = sgd(model)
    tw.distribute(model, optimizer)
    model[3].bias.register_post_accumulate_grad_hook(lambda p: optimizer.step())
    with pytest.raises(WaitInBackwardError, match=r"optimizer\.step"):
        loss_of(model, 0).backward()


def test_moving_the_model_afterwards_is_noticed():
    model = network()
    optimizer = sgd(model)
    tw.distribute(model, optimizer)
    model.double()
    model.float()
    with pytest.raises(InputError, match="was moved"):
        plain_step(model, optimizer, 0)


def test_a_group_added_afterwards_is_noticed():
    model = network()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    tw.distribute(model, optimizer)
    optimizer.add_param_group({"params": model[3].parameters()})
    with pytest.raises(InputError, match="group was added"):
        plain_step(model, optimizer, 0)


def sparse(model: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Embedding(50, 8, sparse=True), model)


def doubled(model: nn.Module) -> nn.Module:
    model[3].double()
    return model


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        (sparse, {}, r"'0\.weight' would have sparse gradients.*sparse=False"),
        (nn.DataParallel, {}, r"wrapped in DataParallel.*model\.module"),
        (doubled, {}, r"parameter '3\.weight' is torch\.float64"),
        (lambda m: m.requires_grad_(False), {}, "no parameter that requires a gradient"),
        (lambda m: nn.Sequential(m, nn.LazyLinear(3)), {}, r"'1\.weight' has no shape yet"),
        (None, {"method": "gtpok"}, "did you mean 'gtopk'"),
        (None, {"method": "gtopk", "densty": 0.1}, "did you mean 'density'"),
        (None, {"method": "topk", "density": 0}, "density"),
        (None, {"method": SSGD(), "accumulate": 2}, "settings go with a method's name"),
        (None, {"method": LocalSGD(pace="speed")}, "pace = 'speed' has no effect"),
    ],
)
def test_what_cannot_work_is_refused_by_name(change: Any, settings: Any, message: str):
    model = network() if change is None else change(network())
    with pytest.raises(InputError, match=message):
        tw.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), **settings)


def test_a_sparse_gradient_from_elsewhere_names_the_parameter():
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.ones(5, 2))

        def forward(self, index: torch.Tensor) -> torch.Tensor:
            return nn.functional.embedding(index, self.table, sparse=True)

    model = Sparse()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tw.distribute(model, optimizer)
    model(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(InputError, match="'table' has a sparse gradient"):
        optimizer.step()


def test_optimizers_that_do_not_fit_are_refused():
    model, other = network(), network()
    with pytest.raises(InputError, match="LBFGS"):
        tw.distribute(model, torch.optim.LBFGS(model.parameters()))
    with pytest.raises(InputError, match=r"group 0 .* no parameter of the model"):
        tw.distribute(model, sgd(other))
    with pytest.raises(InputError, match="optimizer is a str"):
        tw.distribute(model, "sgd")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="model is a SGD"):
        tw.distribute(sgd(model), model)  # pyright: ignore[reportArgumentType]


def test_a_model_is_given_to_one_method_at_a_time():
    model = network()
    tw.distribute(model, sgd(model))
    with pytest.raises(InputError, match=r"'0\.weight' has been given to distribute\(\) already"):
        tw.distribute(model, sgd(model))
