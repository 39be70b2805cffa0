"""All-reduces whose messages travel empty: nothing but the cost may differ."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from thinwire import collectives
from thinwire.cluster import Cluster, Node
from thinwire.collectives._all_reduce import ALL_REDUCES
from thinwire.errors import DeadlockError, InputError, PeerDiedError, WorkerFailedError
from thinwire.wire import Comm, Work
from thinwire.wire.faults import Crash, FaultPlan
from thinwire.wire.virtual import World


def cluster(size: int) -> Cluster:
    nodes = tuple(
        Node(name=f"n{i}", flops=1e9 * (1 + i % 3), memory_rate=1e9, egress=1e6, ingress=2e6)
        for i in range(size)
    )
    return Cluster(name="uneven", nodes=nodes, default_latency=0.001)


def run(size: int, algorithm: str, x: Any, together: bool, link_model: Any = "fair") -> Any:
    """Three all-reduces begun at uneven times: results, and all that the world has noted."""

    def program(comm: Comm) -> list[torch.Tensor]:
        if not together:
            comm.meetings = None
        outs = []
        for turn in range(3):
            comm.spend(Work(flops=1e6 * ((comm.rank * 7 + turn) % 5)))
            outs.append(collectives.all_reduce(comm, x(comm.rank, turn), algorithm))
        return outs

    world = World(cluster(size), link_model=link_model, trace=True)
    results = world.run(program)
    counted = [e.meter for e in world.endpoints]
    meters = [(m.peers, m.local, m.computed, m.phases.so_far()) for m in counted]
    assert world.spans is not None
    return results, world.clock.now, meters, sorted(world.spans)


def drawn(numel: int, dtype: torch.dtype) -> Any:
    def x(rank: int, turn: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(100 * rank + turn)
        return (torch.randn(numel, generator=generator) * 50).to(dtype)

    return x


@pytest.mark.parametrize("algorithm", list(ALL_REDUCES))
@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7, 8, 13, 16])
def test_bits_time_bytes_waits_and_spans_are_those_of_the_messages(
    size: int, algorithm: str
) -> None:
    x = drawn(1001, torch.float32)
    sums, *rest = run(size, algorithm, x, together=True)
    expected, *expected_rest = run(size, algorithm, x, together=False)
    for mine, theirs in zip(sums, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert rest == expected_rest


@pytest.mark.parametrize("algorithm", list(ALL_REDUCES))
@pytest.mark.parametrize(
    ("numel", "dtype"),
    [(1, torch.float32), (3, torch.float64), (40_000, torch.float32), (257, torch.bfloat16),
     (257, torch.float16), (100, torch.int64), (100, torch.int8)],
)  # fmt: skip
def test_any_size_and_dtype(numel: int, dtype: torch.dtype, algorithm: str) -> None:
    x = drawn(numel, dtype)
    sums, *rest = run(5, algorithm, x, True, "queue")
    expected, *expected_rest = run(5, algorithm, x, False, "queue")
    for mine, theirs in zip(sums, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert rest == expected_rest


def test_a_tensor_that_is_not_contiguous() -> None:
    def x(rank: int, turn: int) -> torch.Tensor:
        return torch.arange(12.0).view(3, 4).t() + rank

    sums = run(4, "ring", x, together=True)[0]
    expected = 4 * torch.arange(12.0).view(3, 4).t() + 6
    assert torch.equal(sums[2][1], expected)


def test_unequal_tensors_are_refused_by_name() -> None:
    def program(comm: Comm) -> None:
        collectives.all_reduce(comm, torch.ones(10 + comm.rank // 2))

    with pytest.raises(WorkerFailedError, match="must call the collective with equal") as failed:
        World(cluster(4)).run(program)
    assert isinstance(failed.value.__cause__, InputError)


def test_a_rank_that_does_not_come_is_named() -> None:
    def program(comm: Comm) -> None:
        if comm.rank == 2:
            comm.wait(0, "something else")
        collectives.all_reduce(comm, torch.ones(1000))

    with pytest.raises(DeadlockError, match=r"rank 2 waits for rank 0 .tag 'something else'") as e:
        World(cluster(4)).run(program)
    assert "rank 3 waits for rank" in str(e.value)


def test_a_crash_in_the_middle_is_named() -> None:
    def program(comm: Comm) -> None:
        for step in range(1, 5):
            comm.step = step
            collectives.all_reduce(comm, torch.ones(1000))

    world = World(cluster(4), faults=FaultPlan([Crash(rank=1, step=3)]))
    with pytest.raises(PeerDiedError, match="rank 1 died at step 3"):
        world.run(program)


def test_a_rank_that_has_finished_is_named() -> None:
    def program(comm: Comm) -> None:
        if comm.rank != 1:
            collectives.all_reduce(comm, torch.ones(1000))

    with pytest.raises(WorkerFailedError, match=r"waits for rank 1 .*has finished"):
        World(cluster(4)).run(program)
