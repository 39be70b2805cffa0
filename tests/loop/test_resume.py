"""A run that is gone on with from a checkpoint ends with the bits of one that never stopped."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn

import thinwire as tw
from thinwire.errors import InputError
from thinwire.testing.processes import run_processes

CASES: list[tuple[str, dict[str, Any]]] = [
    ("ssgd", {}),
    ("ssgd", {"accumulate": 3}),
    ("topk", {"density": 0.2, "warmup": 8}),
    ("gtopk", {"density": 0.2}),
    ("gtopk", {"density": 0.2, "losses": "kept"}),
    ("localsgd", {"every": 4}),
    ("wfbp", {"groups": "buckets", "bucket_bytes": 100}),
    ("bytescheduler", {"partition": 100, "credit": 200}),
    ("lags", {"density": 0.05, "dense_below": 20, "warmup": 8}),
]
STOP, STEPS = 5, 11  # in the middle of a round and of an accumulation


def pair(seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    for step in range(first, last):
        draw = torch.Generator().manual_seed(100 * step + tw.rank())
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(
            model(torch.randn(8, 6, generator=draw)), torch.randint(0, 3, (8,), generator=draw)
        )
        loss.backward()
        optimizer.step()


def flat(model: nn.Module) -> list[float]:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()


def whole_and_resumed(rank: int, size: int) -> list[bool]:
    torch.set_num_threads(1)
    equal = []
    for name, settings in CASES:
        model, optimizer = pair()
        with tw.distribute(model, optimizer, method=name, **settings):
            steps(model, optimizer, 0, STEPS)
        expected = flat(model)

        model, optimizer = pair()
        with tw.distribute(model, optimizer, method=name, **settings):
            steps(model, optimizer, 0, STOP)
            saved = {
                "model": {k: v.clone() for k, v in model.state_dict().items()},
                "optimizer": optimizer.state_dict(),
                "method": tw.state_dict(),
            }
            torch.save(saved, buffer := io.BytesIO())  # as users do

        buffer.seek(0)
        saved = torch.load(buffer, weights_only=True)
        model, optimizer = pair(7)
        with tw.distribute(model, optimizer, method=name, **settings):
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            tw.load_state_dict(saved["method"])
            steps(model, optimizer, STOP, STEPS)
        equal.append(flat(model) == expected)
    return equal


def test_alone_a_resumed_run_equals_the_whole_one():
    assert whole_and_resumed(0, 1) == [True] * len(CASES)


@pytest.mark.distributed
@pytest.mark.slow
def test_on_three_ranks_a_resumed_run_equals_the_whole_one():
    found = run_processes(whole_and_resumed, 3, env={"OMP_NUM_THREADS": "1"})
    assert found == [[True] * len(CASES)] * 3


def test_another_methods_state_is_refused():
    model, optimizer = pair()
    with tw.distribute(model, optimizer, method="topk", density=0.5):
        saved = tw.state_dict()
    model, optimizer = pair()
    with (
        tw.distribute(model, optimizer, method="topk", density=0.25),
        pytest.raises(InputError, match=r"density=0\.5.*density=0\.25"),
    ):
        tw.load_state_dict(saved)


def test_a_method_that_cannot_be_gone_on_with_says_so():
    model, optimizer = pair()
    with (
        tw.distribute(model, optimizer, method="powersgd", rank=1),
        pytest.raises(InputError, match=r"PowerSGD can't be gone on with"),
    ):
        tw.state_dict()


def test_a_checkpoint_is_taken_between_steps_and_loaded_before_the_first():
    model, optimizer = pair()
    with tw.distribute(model, optimizer):
        saved = tw.state_dict()
        model(torch.randn(4, 6)).sum().backward()
        with pytest.raises(InputError, match="inside a step"):
            tw.state_dict()
        optimizer.step()
        tw.state_dict()
        optimizer.zero_grad()
        tw.state_dict()
        model(torch.randn(4, 6)).sum().backward()
        model.zero_grad()
        tw.state_dict()
        with pytest.raises(InputError, match="right after distribute"):
            tw.load_state_dict(saved)
