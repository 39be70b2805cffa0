"""Methods inside DistributedDataParallel."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire as tw
from thinwire.errors import InputError, PeerDiedError
from thinwire.flat import digest
from thinwire.loop.ddp import ddp_hook
from thinwire.testing.processes import run_processes

pytestmark = pytest.mark.distributed


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(),
                         nn.Linear(200, 3))  # fmt: skip


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(16, 20, generator=generator)
    return x, x[:, :3].argmax(dim=1)


def join() -> None:
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False
    )
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=dist.PrefixStore("ddp", store), rank=rank,
                            world_size=size)  # fmt: skip


def train(
    rank: int, size: int, settings: dict[str, Any] | None, steps: int = 12, parts: int = 1
) -> Any:
    """Parameters, their digest, first and last loss; plain DDP without settings.

    Gradients of several parts of a batch are exchanged once, by `no_sync`.
    """
    torch.set_num_threads(1)
    join()
    # Small buckets: several of them, dealt out anew after the first step.
    ddp = DistributedDataParallel(model(), bucket_cap_mb=0.1)  # pyright: ignore[reportArgumentType]
    hook = None if settings is None else ddp_hook(ddp, **settings)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.2)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(parts):
            x, y = batch(rank, parts * step + part)
            with ddp.no_sync() if part < parts - 1 else contextlib.nullcontext():
                loss = nn.functional.cross_entropy(ddp(x), y)
                loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if hook is not None:
        hook.close()
    params = torch.cat([p.detach().reshape(-1) for p in ddp.parameters()])
    dist.destroy_process_group()
    return params, digest(params), losses[0], losses[-1]


@pytest.mark.parametrize(
    "settings",
    [{"method": "ssgd"}, {"method": "topk", "density": 1.0}, {"method": "gtopk", "density": 1.0}],
)
def test_a_lossless_method_is_ddp(settings: dict[str, Any]) -> None:
    plain = run_processes(train, 3, None)
    ours = run_processes(train, 3, settings)
    assert len({each[1] for each in ours}) == 1
    torch.testing.assert_close(ours[0][0], plain[0][0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", ["ssgd", "gtopk"])
def test_accumulation_by_no_sync_is_ddps(method: str) -> None:
    settings = {"method": method, **({"density": 1.0} if method == "gtopk" else {})}
    plain = run_processes(train, 2, None, 8, 2)
    ours = run_processes(train, 2, settings, 8, 2)
    assert len({each[1] for each in ours}) == 1
    torch.testing.assert_close(ours[0][0], plain[0][0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [{"method": "topk", "density": 0.02}, {"method": "gtopk", "density": 0.02},
     {"method": "gtopk", "density": 0.02, "losses": "kept"}],
)  # fmt: skip
def test_a_sparse_method_learns_and_all_ranks_end_equal(settings: dict[str, Any]) -> None:
    ours = run_processes(train, 2, settings, 60)
    assert len({each[1] for each in ours}) == 1
    assert ours[0][3] < 0.8 * ours[0][2]


def sends_more_at_first(rank: int, size: int) -> list[int]:
    """Bytes sent in each of four steps, the first two of them warm-up."""
    torch.set_num_threads(1)
    join()
    ddp = DistributedDataParallel(model())
    sent = []
    with ddp_hook(ddp, method="topk", density=0.01, warmup=2) as hook:
        for step in range(4):
            before = hook.comm.meter.sent
            x, y = batch(rank, step)
            nn.functional.cross_entropy(ddp(x), y).backward()
            sent.append(hook.comm.meter.sent - before)
    dist.destroy_process_group()
    return sent


def test_the_density_warms_up_as_in_the_method() -> None:
    for first, second, third, fourth in run_processes(sends_more_at_first, 2):
        assert first > second > 2 * third
        assert third == fourth


def dies(rank: int, size: int) -> Any:
    torch.set_num_threads(1)
    join()
    ddp = DistributedDataParallel(model())
    ddp_hook(ddp, method="gtopk", density=0.02)
    for step in range(5):
        if rank == 1 and step == 2:
            os._exit(9)
        x, y = batch(rank, step)
        nn.functional.cross_entropy(ddp(x), y).backward()
    return "went on"


def test_a_rank_that_dies_is_named_out_of_backward() -> None:
    results = run_processes(dies, 3)
    for rank in (0, 2):
        assert isinstance(results[rank], PeerDiedError), results[rank]
        assert "rank 1" in str(results[rank])


def refused(rank: int, size: int) -> Any:
    join()
    ddp = DistributedDataParallel(model())
    with pytest.raises(InputError, match="valid: gtopk, ssgd, topk"):
        ddp_hook(ddp, method="localsgd")
    with pytest.raises(InputError, match="accumulation"):
        ddp_hook(ddp, method="ssgd", accumulate=2)
    return "refused"


def test_a_method_that_is_no_exchange_of_gradients_is_refused() -> None:
    assert run_processes(refused, 1) == ["refused"]


def finished(rank: int, size: int) -> bool:
    torch.set_num_threads(1)
    join()
    ddp = DistributedDataParallel(model())
    hook = ddp_hook(ddp, method="ssgd")
    x, y = batch(rank, 0)
    nn.functional.cross_entropy(ddp(x), y).backward()
    tw.finish()
    return hook._closed


def test_finish_closes_the_hooks_that_are_open():
    assert run_processes(finished, 2, env={"OMP_NUM_THREADS": "1"}) == [True, True]
