"""Methods that send while the loop's own backward pass goes on."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import thinwire as tw
from thinwire.errors import InputError
from thinwire.flat import digest
from thinwire.loop import public
from thinwire.testing.processes import run_processes
from thinwire.wire.sockets import SocketComm

METHODS: list[tuple[str, dict[str, Any]]] = [
    ("wfbp", {}),
    ("wfbp", {"groups": "buckets", "bucket_bytes": 200}),
    ("bytescheduler", {"partition": 100, "credit": 200}),
    ("lags", {"density": 0.1, "dense_below": 20}),
]


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    layers = [nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)]
    return nn.Sequential(*layers)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(1000 * rank + step)
    x, y = torch.randn(8, 6, generator=draw), torch.randint(0, 3, (8,), generator=draw)
    return nn.functional.cross_entropy(model(x), y)


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    optimizer.zero_grad()
    loss_of(model, rank, step).backward()
    optimizer.step()


def flat(model: nn.Module) -> list[float]:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()


def run(program: Callable[..., Any], size: int) -> list[Any]:
    found = run_processes(program, size, env={"OMP_NUM_THREADS": "1"}, deadline=120)
    for outcome in found:
        assert isinstance(outcome, dict), outcome
    return found


# Alone.


def test_how_many_backward_passes_come_before_a_step_is_checked():
    model = network()
    with pytest.raises(InputError, match="accumulate = 0"):
        tw.distribute(model, sgd(model), method="wfbp", accumulate=0)
    with pytest.raises(InputError, match=r"topk\.accumulate"):
        tw.distribute(model, sgd(model), method="topk", accumulate=2)


def test_alone_nothing_is_in_the_way_of_clipping_and_accumulation():
    def train(method: str | None) -> list[float]:
        model = network()
        optimizer = sgd(model)
        if method is not None:
            tw.distribute(model, optimizer, method=method)
        for step in range(5):
            optimizer.zero_grad()
            for part in range(3):
                loss_of(model, 0, 3 * step + part).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        tw.finish()
        return flat(model)

    assert train("wfbp") == train(None)


# Two ranks.


def noted(rank: int) -> dict[str, Any]:
    """What happens in which order in one step: gradients, tasks begun, the return of backward,
    packets handed to the wire."""
    model = network()
    optimizer = sgd(model)
    tw.distribute(model, optimizer, method="wfbp")
    one_step(model, optimizer, rank, 0)  # the first meets, and compares settings
    events: list[str] = []
    start, post = SocketComm.start, SocketComm.post

    def noting_start(self: SocketComm, program: Any, key: str) -> Any:
        events.append("start")
        return start(self, program, key)

    def noting_post(self: SocketComm, *given: Any, **named: Any) -> Any:
        events.append("post")
        return post(self, *given, **named)

    def first_layer(param: nn.Parameter) -> None:
        # The last gradient of backward. Until a packet has left, it isn't complete.
        for _ in range(10_000):
            if "post" in events:
                break
            torch.ones(2000).cumsum(0)  # lets go of the interpreter
        events.append("first layer")

    model[0].weight.register_hook(lambda grad: first_layer(grad))
    SocketComm.start, SocketComm.post = noting_start, noting_post  # pyright: ignore
    try:
        optimizer.zero_grad()
        loss_of(model, rank, 1).backward()
        events.append("backward returned")
        optimizer.step()
    finally:
        SocketComm.start, SocketComm.post = start, post
    tw.finish()
    return {"events": events}


PARTS = (3, 3, 2, 3)


def accumulating(rank: int) -> dict[str, Any]:
    """Three micro-batches a step, told; of one step two."""
    found = {}
    for name, settings in METHODS:
        model = network()
        optimizer = sgd(model)
        tw.distribute(model, optimizer, method=name, accumulate=3, **settings)
        for step, parts in enumerate(PARTS):
            for part in range(parts):
                (loss_of(model, rank, 3 * step + part) / 3).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=step == 1)
        tw.finish()
        found[f"{name} {settings}"] = flat(model)
    return found


def zeroing(rank: int) -> dict[str, Any]:
    """The ways to zero gradients, all outside of backward and step: equal parameters."""
    found = {}

    def zero(how: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if how == "optimizer":
            optimizer.zero_grad()
        elif how == "model":
            model.zero_grad(set_to_none=True)
        elif how == "kept":
            model.zero_grad(set_to_none=False)

    for how in ("optimizer", "model", "kept"):
        model = network()
        optimizer = sgd(model)
        with tw.distribute(model, optimizer, method="wfbp"):
            for step in range(4):
                if step == 2:  # before the forward pass, or after it, or after the step
                    zero(how, model, optimizer)
                loss = loss_of(model, rank, step)
                if step % 2:
                    zero(how, model, optimizer)
                loss.backward()
                optimizer.step()
                if step % 2 == 0:
                    zero(how, model, optimizer)
                    zero(how, model, optimizer)
        found[how] = digest(torch.tensor(flat(model)))
    found["closure"] = with_closure(rank)
    return found


def with_closure(rank: int) -> str:
    """The whole of a step inside the optimizer's."""
    model = network()
    optimizer = sgd(model)
    with tw.distribute(model, optimizer, method="wfbp"):
        for step in range(4):

            def closure(step: int = step) -> torch.Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, rank, step)
                loss.backward()
                return loss

            optimizer.step(closure)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return digest(torch.tensor(flat(model)))


class Heads(nn.Module):
    """Two heads on one trunk, one of them used only where it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk, self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        hidden = self.trunk(x)
        return self.a(hidden) + self.b(hidden) if both else self.a(hidden)


def two_heads(rank: int) -> dict[str, Any]:
    """A head that rank 0 alone uses, then neither: everybody gets the mean with zeros."""
    found = {}
    for name in ("wfbp", "ssgd"):
        model = Heads()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with tw.distribute(model, optimizer, method=name):
            for step in range(3):
                draw = torch.Generator().manual_seed(step)
                optimizer.zero_grad()
                x = torch.randn(4, 6, generator=draw)
                model(x, both=rank == 0 and step < 2).square().sum().backward()
                optimizer.step()
        found[name] = flat(model)
    return found


def without_forward(rank: int) -> dict[str, Any]:
    """Parts are called by themselves: the step begins when the optimizer is called."""
    model = Heads()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tw.distribute(model, optimizer, method="wfbp"):
        for step in range(2):
            optimizer.zero_grad()
            x = torch.full((2, 6), float(rank + step))
            model.a(model.trunk(x)).square().sum().backward()
            optimizer.step()
    return {"end": flat(model)}


def in_one_process(rank: int, size: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    return {
        "noted": noted(rank),
        "accumulating": accumulating(rank),
        "zeroing": zeroing(rank),
        "two heads": two_heads(rank),
        "without forward": without_forward(rank),
    }


@pytest.fixture(scope="module")
def both() -> list[Any]:
    return run(in_one_process, 2)


@pytest.mark.distributed
@pytest.mark.slow
def test_packets_leave_before_the_last_gradient_is_complete(both: list[Any]):
    for found in both:
        events = found["noted"]["events"]
        last = events.index("first layer")
        assert events[0] == "start"
        assert "post" in events[:last]
        assert events[:last].count("start") == 5  # of six tensors; the first layer's bias too
        assert events.index("backward returned") > last
        assert "start" not in events[events.index("backward returned") :]


@pytest.mark.distributed
@pytest.mark.slow
def test_micro_batches_are_sent_once_a_step(both: list[Any]):
    first, second = (found["accumulating"] for found in both)
    assert first == second
    model = network()
    optimizer = sgd(model)
    for step, parts in enumerate(PARTS):
        optimizer.zero_grad()
        for rank in range(2):
            for part in range(parts):
                (loss_of(model, rank, 3 * step + part) / 6).backward()
        optimizer.step()
    for name, settings in METHODS[:3]:
        torch.testing.assert_close(
            torch.tensor(first[f"{name} {settings}"]), torch.tensor(flat(model)),
            rtol=1e-5, atol=1e-6,
        )  # fmt: skip


@pytest.mark.distributed
@pytest.mark.slow
def test_gradients_may_be_zeroed_in_any_way_outside_of_backward_and_step(both: list[Any]):
    for found in both:
        assert len(found["zeroing"]) == 4
        assert len(set(found["zeroing"].values())) == 1


@pytest.mark.distributed
@pytest.mark.slow
def test_a_gradient_that_one_rank_lacks_counts_as_zero(both: list[Any]):
    for found in both:
        assert found["two heads"]["wfbp"] == found["two heads"]["ssgd"]  # two ranks add alike
    assert both[0]["without forward"] == both[1]["without forward"]


# What goes wrong.


def open_loop(method: str = "wfbp", **settings: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = network()
    optimizer = sgd(model)
    tw.distribute(model, optimizer, method=method, deadline=20, **settings)
    return model, optimizer


def clipping(rank: int) -> None:
    model, optimizer = open_loop()
    loss_of(model, rank, 0).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 100.0)
    optimizer.step()


def zero_between(rank: int) -> None:
    model, optimizer = open_loop()
    loss_of(model, rank, 0).backward()
    optimizer.zero_grad()


def none_between(rank: int) -> None:
    model, optimizer = open_loop("lags")
    loss_of(model, rank, 0).backward()
    model.zero_grad(set_to_none=True)
    optimizer.step()


def untold(rank: int) -> None:
    model, optimizer = open_loop()
    for part in range(2):
        loss_of(model, rank, part).backward()
    optimizer.step()


def no_step(rank: int) -> None:
    model, _ = open_loop()
    loss_of(model, rank, 0).backward()
    tw.finish()


def told_differently(rank: int) -> None:
    open_loop(accumulate=1 + rank)


def not_a_number(rank: int) -> None:
    model, optimizer = open_loop("lags", density=0.1, dense_below=20)
    for step in range(5):
        optimizer.zero_grad()
        scale = float("nan") if rank == 1 and step == 2 else 1.0
        (scale * loss_of(model, rank, step)).backward()
        optimizer.step()


def not_a_number_unsent(rank: int) -> None:
    """In a step that had fewer passes than it was told, so that nothing was sent during them."""
    model, optimizer = open_loop(accumulate=2)
    scale = float("nan") if rank == 1 else 1.0
    (scale * loss_of(model, rank, 0)).backward()
    optimizer.step()


def failing_between(rank: int) -> None:
    """Rank 1 leaves in the middle of a step, when the others' messages are on their way."""
    model, optimizer = open_loop("lags", density=0.1, dense_below=20)
    for step in range(5):
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        if rank == 1 and step == 3:
            raise ValueError("a bad batch")
        optimizer.step()


FAILURES: dict[Callable[[int], None], tuple[str, ...]] = {
    clipping: (r".*InputError: .*gradient of '.*' was changed between backward and",) * 2,
    zero_between: (r".*InputError: .*zero_grad\(\) was called between backward and",) * 2,
    none_between: (r".*InputError: .*gradient of '.*' was changed between backward and",) * 2,
    untold: (r".*InputError: .*gradient of '4\..*' after it was sent: 2 passes .*accumulate = 1",)
    * 2,
    no_step: (r".*InputError: .*tw\.finish\(\) was called between backward and",) * 2,
    told_differently: (r"RendezvousError: the ranks differ in accumulate",) * 2,
    not_a_number: (
        r"PeerDiedError: rank 1 .*NonFiniteError: .*step 3: the gradient of '4\.",
        r"NonFiniteError: rank 1, step 3: the gradient of '4\.",
    ),
    not_a_number_unsent: (
        r"PeerDiedError: rank 1 .*NonFiniteError: .*step 1: the gradient of '4\.",
        r"NonFiniteError: rank 1, step 1: the gradient of '4\.",
    ),
    failing_between: (
        r"PeerDiedError: rank 1 .*failed at step 4: ValueError: a bad batch",
        "ValueError: a bad batch",
    ),
}


def failures(rank: int, size: int) -> dict[str, Any]:
    """Each failure is caught and the next begins: a run that failed leaves nothing behind."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for program in FAILURES:
        try:
            program(rank)
            found[program.__name__] = "nothing was raised"
        except Exception as error:
            found[program.__name__] = f"{type(error).__name__}: {error}"
            public._close(list(public._open), error)
    found["after all"] = accumulating(rank)
    return found


@pytest.fixture(scope="module")
def failed() -> list[Any]:
    return run(failures, 2)


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("program", FAILURES, ids=lambda f: f.__name__)
def test_what_cannot_be_is_said_on_every_rank(program: Any, failed: list[Any]):
    for found, pattern in zip(failed, FAILURES[program], strict=True):
        text = found[program.__name__]
        assert re.match(pattern, text.replace("\n", " ")), text


@pytest.mark.distributed
@pytest.mark.slow
def test_training_begins_anew_after_a_failure(failed: list[Any]):
    assert failed[0]["after all"] == failed[1]["after all"]
