"""The same text gives the same bits on the virtual cluster and between processes."""

from __future__ import annotations

import pytest
import torch

from thinwire import collectives as co
from thinwire.compress import select_top
from thinwire.compress.coded import Coded
from thinwire.seeds import generator_for
from thinwire.testing.processes import run_processes
from thinwire.wire import Comm
from thinwire.wire.sockets import connect

pytestmark = pytest.mark.distributed

K = 20


def data(rank: int, numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(numel, generator=generator_for(0, "parity", rank)).to(dtype)


def everything(comm: Comm) -> tuple[list[bytes], int]:
    """The bits of every collective's result, and the bytes sent."""
    rank = comm.rank
    results = []
    for algorithm in ("ring", "halving_doubling", "tree"):
        for numel in (2, 1001, 300_000):
            x = co.all_reduce(comm, data(rank, numel), algorithm)
            results.append(x.clone())
            x.zero_()  # with packets still on their way
        results.append(co.all_reduce(comm, data(rank, 99, torch.bfloat16), algorithm))
    results.append(co.reduce(comm, data(rank, 500), root=1))
    results.append(co.broadcast(comm, data(rank, 500), root=1))
    results.append(co.reduce_scatter(comm, data(rank, 500)))
    results += co.gather(comm, data(rank, 500), root=2) or []
    for algorithm in ("doubling", "ring"):
        results += co.all_gather(comm, data(rank, 500), algorithm)
    own = select_top(data(rank, 1000), K)
    co.barrier(comm)
    sets = co.all_gather_sparse(comm, own)
    chosen, hit = co.gtopk_all_reduce(comm, own, K)
    kept, dropped = co.gtopk_all_reduce_conserving(comm, own, K)
    coded, _ = co.gtopk_all_reduce(comm, own, K, form=Coded())
    borders = co.agree_regions(comm, own)
    results.append(torch.tensor(borders))
    exact, limit = co.oktopk_all_reduce(comm, own, K, borders, None)
    passed = [
        co.oktopk_all_reduce(comm, own, K, b, limit)[0] for b in (borders, [0, *[1000] * comm.size])
    ]
    for buffers in co.all_gather_buffers(comm, (own.index, own.value, data(rank, rank))):
        results += buffers
    for s in (*sets, co.sum_sparse(sets), chosen, kept, dropped, coded, exact, *passed):
        results += [s.index, s.value]
    results.append(hit)
    co.barrier(comm)
    return [x.numpy().tobytes() for x in results if x.dtype != torch.bfloat16] + [
        x.view(torch.int16).numpy().tobytes() for x in results if x.dtype == torch.bfloat16
    ], comm.meter.sent


def real(rank: int, size: int) -> tuple[list[bytes], int]:
    torch.set_num_threads(1)
    with connect(deadline=30.0) as comm:
        return everything(comm)


@pytest.mark.parametrize("size", [3, 4])
def test_every_collective_gives_the_same_bits_and_bytes_sent_on_both_wires(lab, size):
    virtual = lab.run(size, everything)
    outcomes = run_processes(real, size)
    for rank, outcome in enumerate(outcomes):
        assert isinstance(outcome, tuple), outcome
        assert outcome == virtual[rank]
