"""Several ranks, each with an ordinary loop: they end alike, however the loops differ."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import thinwire as tw
from thinwire.flat import digest
from thinwire.testing.processes import run_processes

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

METHODS: list[tuple[str, dict[str, Any]]] = [
    ("ssgd", {}),
    ("ssgd", {"accumulate": 2}),
    ("topk", {"density": 0.2}),
    ("gtopk", {"density": 0.2}),
    ("gtopk", {"density": 0.2, "losses": "kept"}),
    ("dgc", {"density": 0.2, "dense_below": 20}),
    ("oktopk", {"density": 0.2, "estimate_every": 2}),
    ("powersgd", {"rank": 1}),
    ("qsgd", {"bits": 8}),
    ("localsgd", {"every": 3}),
    ("wfbp", {}),
    ("wfbp", {"groups": "merged"}),
    ("bytescheduler", {"partition": 100, "credit": 200}),
    ("lags", {"density": 0.2, "dense_below": 20}),
    ("asgd", {}),
]


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def sgd(model: nn.Module, method: str = "ssgd") -> torch.optim.Optimizer:
    momentum = 0.0 if method == "dgc" else 0.9  # which has its own
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum, weight_decay=0.01)


def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(8, 6, generator=generator)
    y = torch.randint(0, 3, (8,), generator=generator)
    return nn.functional.cross_entropy(model(x), y)


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    optimizer.zero_grad()
    loss_of(model, rank, step).backward()
    optimizer.step()


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def run(program: Callable[..., Any], size: int) -> list[Any]:
    found = run_processes(program, size, env={"OMP_NUM_THREADS": "1"}, deadline=120)
    for outcome in found:
        assert isinstance(outcome, dict), outcome
    return found


# Loops of unequal length.


def uneven(rank: int, size: int) -> dict[str, Any]:
    """Every method with as many steps as `counts` says, and a scheduler that steps with them."""
    found: dict[str, Any] = {}
    for counts in ((5, 4, 2), (0, 3, 3), (3, 3, 3)):
        for name, settings in METHODS:
            model = network(rank)
            optimizer = sgd(model, name)
            tw.distribute(model, optimizer, method=name, deadline=20, **settings)
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
            for step in range(counts[rank]):
                one_step(model, optimizer, rank, step)
                scheduler.step()
            if rank == 1:
                loss_of(model, rank, 77)  # a forward pass that no step follows
            tw.finish()
            found[f"{name} {settings} {counts}"] = digest(flat(model))
            if name == "ssgd" and not settings:
                found[f"ssgd parameters {counts}"] = flat(model).tolist()
    return found


def averaged_by_hand(counts: tuple[int, ...]) -> torch.Tensor:
    """One process: the ranks' gradients are summed, those that have ended count as zero."""
    model = network(0)
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    for step in range(max(counts)):
        optimizer.zero_grad()
        for rank, count in enumerate(counts):
            if step < count:
                (loss_of(model, rank, step) / len(counts)).backward()
        optimizer.step()
        scheduler.step()
    return flat(model)


def test_loops_of_unequal_length_end_alike_by_every_method():
    results = run(uneven, 3)
    for key, value in results[0].items():
        assert [found[key] for found in results] == [value] * 3, key
    for counts in ((5, 4, 2), (0, 3, 3), (3, 3, 3)):
        ours = torch.tensor(results[0][f"ssgd parameters {counts}"])
        torch.testing.assert_close(ours, averaged_by_hand(counts), rtol=1e-5, atol=1e-6)


# What the loop does between the steps.


def messages() -> int:
    from thinwire.loop import public

    return public._open[-1].comm.meter.messages_sent


def accumulating(rank: int) -> dict[str, Any]:
    """Two loops that differ in how they write four micro-batches; messages of each step."""
    found = {}
    for style in ("plain", "context around backward only"):
        model = network(rank)
        optimizer = sgd(model)
        tw.distribute(model, optimizer)
        sent = []
        for step in range(4):
            optimizer.zero_grad()
            before = messages()
            for part in range(4):
                loss = loss_of(model, rank, 4 * step + part) / 4
                with contextlib.nullcontext() if style == "plain" else torch.enable_grad():
                    loss.backward()
            assert messages() == before
            optimizer.step()
            sent.append(messages() - before)
        found[style] = (tw.digests(), flat(model).tolist(), sent)
        tw.finish()
    return found


def clipping(rank: int) -> list[float]:
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    nn.init.zeros_(model.weight)
    with tw.distribute(model, optimizer):
        x = torch.tensor([[10.0, 0.0]]) if rank == 0 else torch.tensor([[0.0, 0.1]])
        model(x).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.weight.flatten().tolist()


def two_heads(rank: int) -> list[float]:
    """Rank 0 uses both heads, rank 1 the first only."""
    heads = nn.ModuleList([nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)])
    for head in heads:
        nn.init.zeros_(head.weight)
    optimizer = torch.optim.SGD(heads.parameters(), lr=1.0)
    with tw.distribute(heads, optimizer):
        x = torch.ones(1, 2)
        total = heads[0](x).sum() + (heads[1](x).sum() if rank == 0 else 0)
        total.backward()
        optimizer.step()
    return flat(heads).tolist()


def backbone(rank: int) -> dict[str, Any]:
    """Frozen for three steps, distributed again, trained for three; other weights on each rank."""
    model = network(rank)
    model[0].requires_grad_(False)
    optimizer = sgd(model)
    tw.distribute(model, optimizer, method="topk", density=0.5)
    start = digest(model[0].weight.data)
    for step in range(3):
        one_step(model, optimizer, rank, step)
    middle = digest(model[0].weight.data)
    tw.finish()
    model[0].requires_grad_(True)
    with tw.distribute(model, optimizer, method="topk", density=0.5):
        for step in range(3, 6):
            one_step(model, optimizer, rank, step)
    return {"start": start, "middle": middle, "end": digest(flat(model))}


def turns(rank: int) -> list[str]:
    """Two models with methods of their own, stepped in turns."""
    models = [network(rank), network(10 + rank)]
    optimizers = [sgd(m) for m in models]
    tw.distribute(models[0], optimizers[0], method="ssgd", name="generator")
    tw.distribute(models[1], optimizers[1], method="asgd", name="critic")
    for step in range(6):
        for model, optimizer in list(zip(models, optimizers, strict=True))[: 1 + step % 2]:
            one_step(model, optimizer, rank, step)
    tw.finish()
    return [digest(flat(m)) for m in models]


def buffers(rank: int) -> list[float]:
    model = network(rank)
    model[1].running_mean.fill_(float(rank + 3))
    with tw.distribute(model, sgd(model)):
        return model[1].running_mean.tolist()


def loops(rank: int, size: int) -> dict[str, Any]:
    return {
        "place": (tw.rank(), tw.size()),
        "accumulating": accumulating(rank),
        "clipping": clipping(rank),
        "two heads": two_heads(rank),
        "backbone": backbone(rank),
        "turns": turns(rank),
        "buffers": buffers(rank),
    }


@pytest.fixture(scope="module")
def both() -> list[Any]:
    return run(loops, 2)


def test_every_process_knows_its_place(both: list[Any]):
    assert [found["place"] for found in both] == [(0, 2), (1, 2)]


def test_micro_batches_are_exchanged_once_per_step_whatever_is_around_them(both: list[Any]):
    first, second = (found["accumulating"] for found in both)
    assert first == second
    (digests, params, sent), (_, other_params, other_sent) = first.values()
    assert params == other_params
    assert digests[0] == digests[1]
    # The first step also compares the optimizers' settings.
    assert sent[1] >= 1
    assert sent == other_sent == [sent[1] + 1, *[sent[1]] * 3]


def test_clipping_before_the_step_clips_each_ranks_own_gradient(both: list[Any]):
    for found in both:
        torch.testing.assert_close(torch.tensor(found["clipping"]), torch.tensor([-0.5, -0.05]))


def test_a_head_that_one_rank_does_not_use_gets_the_others_gradient(both: list[Any]):
    for found in both:
        assert found["two heads"] == [-1.0, -1.0, -0.5, -0.5]


def test_a_frozen_part_is_rank_0s_and_joins_when_distributed_again(both: list[Any]):
    first, second = (found["backbone"] for found in both)
    assert first == second
    assert first["start"] == first["middle"]


def test_two_models_train_beside_each_other(both: list[Any]):
    assert both[0]["turns"] == both[1]["turns"]


def test_buffers_begin_as_rank_0s(both: list[Any]):
    assert [found["buffers"] for found in both] == [[3.0] * 8] * 2


# What goes wrong.


def other_rate(rank: int) -> None:
    """A checkpoint that only rank 0 has loaded."""
    model = network(0)
    optimizer = sgd(model)
    with tw.distribute(model, optimizer):
        if rank == 0:
            optimizer.param_groups[0]["lr"] = 2e-11
        one_step(model, optimizer, rank, 0)


def other_state(rank: int) -> None:
    model = network(0)
    optimizer = sgd(model)
    if rank == 0:
        one_step(model, optimizer, rank, 0)
    with tw.distribute(model, optimizer):
        one_step(model, optimizer, rank, 1)


def other_method(rank: int) -> None:
    model = network(0)
    tw.distribute(model, sgd(model), method="topk", density=0.1 * (rank + 1))


def other_model(rank: int) -> None:
    model = nn.Linear(3 + rank, 2)
    tw.distribute(model, sgd(model))


def failing_user(rank: int) -> None:
    model = network(0)
    optimizer = sgd(model)
    with tw.distribute(model, optimizer):
        for step in range(5):
            if rank == 1 and step == 3:
                raise ValueError("a bad batch")
            one_step(model, optimizer, rank, step)


def failing_while_others_wait_at_the_end(rank: int) -> None:
    model = network(0)
    optimizer = sgd(model)
    with tw.distribute(model, optimizer):
        for step in range(2 + 3 * rank):
            if rank == 1 and step == 3:
                raise ValueError("a bad batch")
            one_step(model, optimizer, rank, step)


def not_a_number(rank: int) -> None:
    model = network(0)
    optimizer = sgd(model)
    with tw.distribute(model, optimizer, method="gtopk"):
        for step in range(5):
            optimizer.zero_grad()
            scale = float("nan") if rank == 1 and step == 2 else 1.0
            (scale * loss_of(model, rank, step)).backward()
            optimizer.step()


def scaled(rank: int) -> None:
    model = network(0)
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu")
    with tw.distribute(model, optimizer):
        scaler.scale(loss_of(model, rank, 0)).backward()
        scaler.step(optimizer)


def drifting(rank: int) -> None:
    model = network(0)
    optimizer = sgd(model)
    with tw.distribute(model, optimizer):
        for step in range(3):
            one_step(model, optimizer, rank, step)
            if rank == 1 and step == 1:
                with torch.no_grad():
                    model[0].bias[0] += 1e-6


def one_machine(rank: int) -> None:
    model = network(0)
    tw.distribute(model, sgd(model), method="alone")


FAILURES: dict[Callable[[int], None], tuple[str, str]] = {
    other_rate: (
        r".*InputError: .*'lr' of parameter group 0 is 2e-11 on rank 0 and 0\.1 on rank 1",
        r".*InputError: .*'lr' of parameter group 0 is 2e-11 on rank 0 and 0\.1 on rank 1",
    ),
    other_state: (
        ".*InputError: .*tensors with a state is 6 on rank 0 and 0 on rank 1",
        ".*InputError: .*tensors with a state is 6 on rank 0 and 0 on rank 1",
    ),
    other_method: (
        r"RendezvousError: the ranks differ in method: .*0\.1.* on rank 0 .*0\.2",
        r"RendezvousError: the ranks differ in method: .*0\.1.* on rank 0 .*0\.2",
    ),
    other_model: (
        "RendezvousError: the ranks differ in parameters: '8 of .*' on rank 0 .*'10 of",
        "RendezvousError: the ranks differ in parameters: '8 of .*' on rank 0 .*'10 of",
    ),
    failing_user: (
        "PeerDiedError: rank 1 .*failed at step 3: ValueError: a bad batch",
        "ValueError: a bad batch",
    ),
    failing_while_others_wait_at_the_end: (
        "PeerDiedError: rank 1 .*failed at step 3: ValueError: a bad batch",
        "ValueError: a bad batch",
    ),
    not_a_number: (
        r"PeerDiedError: rank 1 .*NonFiniteError: .*step 3: the gradient of '0\.weight'",
        r"NonFiniteError: rank 1, step 3: the gradient of '0\.weight'",
    ),
    scaled: (".*InputError: GradScaler on 2 ranks", ".*InputError: GradScaler on 2 ranks"),
    drifting: (
        ".*ThinwireError: the parameters of rank 1 differ from rank 0's",
        ".*ThinwireError: the parameters of rank 1 differ from rank 0's",
    ),
    one_machine: ("InputError: method Alone uses one machine", "InputError: method Alone uses one"),
}


def failures(rank: int, size: int) -> dict[str, Any]:
    """Each failure is caught and the next begins: a run that failed leaves nothing behind."""
    found: dict[str, Any] = {}
    for program in FAILURES:
        try:
            program(rank)
            found[program.__name__] = "nothing was raised"
        except Exception as error:
            found[program.__name__] = f"{type(error).__name__}: {error}"
    found["after all"] = turns(rank)
    return found


@pytest.fixture(scope="module")
def failed() -> list[Any]:
    return run(failures, 2)


@pytest.mark.parametrize("program", FAILURES, ids=lambda f: f.__name__)
def test_every_rank_is_told_what_went_wrong_and_where(program: Any, failed: list[Any]):
    for found, pattern in zip(failed, FAILURES[program], strict=True):
        text = found[program.__name__]
        assert re.match(pattern, text.replace("\n", " ")), text


def test_training_can_begin_anew_after_a_failure(failed: list[Any]):
    assert failed[0]["after all"] == failed[1]["after all"]
