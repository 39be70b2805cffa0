"""What people ran into with other systems, on real processes: exchange, places, precision."""

from __future__ import annotations

import re
import socket
from typing import Any

import pytest
import torch
from torch import nn

import thinwire as tw
from thinwire.collectives import all_reduce
from thinwire.errors import InputError, RendezvousError
from thinwire.run import real
from thinwire.testing.processes import run_processes
from thinwire.wire.sockets import connect

QUIET = {"OMP_NUM_THREADS": "1"}


def half_precision(rank: int, size: int, method: str) -> list[float]:
    torch.manual_seed(0)
    model = nn.Linear(4, 1, bias=False).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    model, optimizer = tw.distribute(model, optimizer, method=method)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.full((2, 4), float(rank), dtype=torch.bfloat16)).mean().backward()
        optimizer.step()
    tw.finish()
    return model.weight.detach().float().flatten().tolist()


@pytest.mark.distributed
def test_a_bfloat16_model_is_exchanged_and_ends_alike_on_all_ranks():
    torch.manual_seed(0)
    start = nn.Linear(4, 1, bias=False).bfloat16().weight.detach().float().flatten()
    for method in ("ssgd", "topk"):
        first, second = run_processes(half_precision, 2, method, env=QUIET)
        assert first == second
        if method == "ssgd":  # the mean gradient is 0.5 everywhere, exact in half precision
            expected = start - 6 * 0.125 * 0.5
            torch.testing.assert_close(torch.tensor(first), expected, rtol=0, atol=6 * 2**-9)


def unequal(rank: int, size: int) -> Any:
    with connect(deadline=20.0, meeting_deadline=20.0) as comm:
        return all_reduce(comm, torch.zeros((261_551, 260_064)[rank]))


@pytest.mark.distributed
def test_tensors_of_unequal_size_are_an_error_on_every_rank_not_the_end_of_a_process():
    told = (
        r"rank \d sent \d+ x torch.float32 where \d+ x torch.float32 were due .*'all_reduce', step"
    )
    for rank, outcome in enumerate(run_processes(unequal, 2, env=QUIET)):
        assert isinstance(outcome, InputError), outcome
        assert re.match(rf"rank {rank}: {told}", str(outcome)), outcome


def meeting(rank: int, size: int, options: dict[int, dict[str, Any]]) -> int:
    with connect(meeting_deadline=20.0, **options.get(rank, {})) as comm:
        return comm.size


@pytest.mark.distributed
def test_a_machine_of_another_kind_is_named_when_the_ranks_meet():
    foreign = {1: {"expected": {"byte order": "big"}}}
    for outcome in run_processes(meeting, 2, foreign, env=QUIET):
        assert isinstance(outcome, RendezvousError)
        assert "the ranks differ in byte order: 'little' on rank 0" in str(outcome)
        assert "'big' on rank 1" in str(outcome)


def with_a_name_that_nobody_knows(rank: int, size: int) -> int:
    socket.gethostname = lambda: "no-such-host.invalid"
    return meeting(rank, size, {})


@pytest.mark.distributed
def test_a_host_name_that_nobody_resolves_does_not_matter():
    assert run_processes(with_a_name_that_nobody_knows, 2, env=QUIET) == [2, 2]


@pytest.mark.parametrize(
    ("cores", "local", "threads"), [(4, 4, 1), (8, 3, 2), (4, 1, 4), (2, 4, 1)]
)
def test_the_ranks_of_a_machine_share_its_cores(monkeypatch, cores, local, threads):
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(local))
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    assert real._use_threads(0) == threads
    assert real._use_threads(3) == 3  # as the user says


def sparse_embedding(rank: int, size: int) -> None:
    model = nn.Embedding(50, 8, sparse=True)
    tw.distribute(model, torch.optim.SparseAdam(model.parameters()), method="ssgd")


@pytest.mark.distributed
def test_a_sparse_embedding_is_refused_by_name_on_every_rank_before_the_first_step():
    for outcome in run_processes(sparse_embedding, 2, env=QUIET):
        assert isinstance(outcome, InputError), outcome
        assert "weight" in str(outcome)
        assert "sparse" in str(outcome)
