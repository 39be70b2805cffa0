"""The lossless setting of each method against PyTorch's own data parallelism, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from thinwire.testing.processes import run_processes

LOSSLESS: list[tuple[str, dict[str, Any]]] = [
    ("ssgd", {}),
    ("topk", {"density": 1.0}),
    ("gtopk", {"density": 1.0}),
    ("gtopk", {"density": 1.0, "losses": "kept"}),
    ("localsgd", {"every": 1}),
]
STEPS = 8

Pair = tuple[nn.Module, torch.optim.Optimizer]


def pair(seed: int) -> Pair:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 3)
    )
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)


def train(rank: int, wrap: Callable[[nn.Module, torch.optim.Optimizer], Pair]) -> list[Any]:
    """The parameters after each step; every second step has two backward passes."""
    # Both libraries give all ranks the model of rank 0.
    model, optimizer = wrap(*pair(seed=rank))
    data = torch.Generator().manual_seed(100 + rank)
    history = []
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=step % 3 == 0)
        for _ in range(1 + step % 2):
            x = torch.randn(6, 1, 6, 6, generator=data)
            y = torch.randint(0, 3, (6,), generator=data)
            nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        history.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    return history


def all_methods(rank: int, size: int) -> list[list[list[float]]]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    histories = [train(rank, lambda m, o: (DistributedDataParallel(m), o))]
    dist.destroy_process_group()
    for name, settings in LOSSLESS:
        with_name = {"method": name, **settings}
        histories.append(train(rank, lambda m, o, kw=with_name: tw.distribute(m, o, **kw)))
        tw.finish()
    return [[params.tolist() for params in history] for history in histories]


@pytest.mark.distributed
@pytest.mark.parametrize("size", [1, 2, 3])
def test_lossless_settings_track_plain_ddp_at_every_step(size: int):
    # Sums of a few float32 in another order: 1e-5 relative over 8 steps with momentum.
    for found in run_processes(all_methods, size, env={"OMP_NUM_THREADS": "1"}):
        assert not isinstance(found, BaseException), found
        reference, *others = (torch.tensor(history) for history in found)
        assert (reference[-1] - reference[0]).abs().max() > 1e-2
        for (name, settings), history in zip(LOSSLESS, others, strict=True):
            torch.testing.assert_close(
                history, reference, rtol=1e-5, atol=1e-6, msg=f"{name} {settings}"
            )
