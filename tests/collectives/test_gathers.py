"""Gathering buffers of any kind and size."""

from __future__ import annotations

import pytest
import torch

from thinwire import collectives as co
from thinwire.collectives import costs, traffic
from thinwire.errors import WorkerFailedError

SIZES = [*range(1, 10), 13, 16]


def own(rank: int) -> tuple[torch.Tensor, ...]:
    """Three buffers that differ in size between ranks; rank 0's are empty."""
    return (
        torch.arange(rank, dtype=torch.uint8),
        torch.full((2 * rank,), float(rank)),
        torch.tensor([rank] * (rank > 0)),
    )


@pytest.mark.parametrize("size", SIZES)
def test_every_rank_gets_everybodys_buffers_by_rank(lab, size):
    for gathered in lab.run(size, lambda c: co.all_gather_buffers(c, own(c.rank))):
        for rank, buffers in enumerate(gathered):
            for a, b in zip(buffers, own(rank), strict=True):
                assert (a.dtype, a.tolist()) == (b.dtype, b.tolist())


@pytest.mark.parametrize("width", [1, 2, 3, 100, 255])
def test_more_buffers_than_a_packet_holds_are_dealt_out(lab, width):
    def program(comm):
        buffers = [torch.tensor([comm.rank, i]) for i in range(width)]
        return [[b.tolist() for b in row] for row in co.all_gather_buffers(comm, buffers)]

    expected = [[[rank, i] for i in range(width)] for rank in range(6)]
    assert lab.run(6, program) == [expected] * 6


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("width", [1, 2, 100])
def test_time_and_bytes_are_the_formula(lab, size, width):
    nbytes = 20 * width

    def program(comm):
        buffers = [torch.empty(5, device="meta") for _ in range(width)]
        return co.all_gather_buffers(comm, buffers)

    elapsed, sent, _ = lab.time(size, program)
    assert elapsed == costs.all_gather_buffers(
        size, nbytes, lab.latency, lab.rate, num_buffers=width
    )
    assert sent == list(traffic.all_gather_buffers(size, nbytes, num_buffers=width))


@pytest.mark.parametrize("width", [0, 256])
def test_what_no_packet_can_hold_is_refused(lab, width):
    with pytest.raises(WorkerFailedError, match=rf"{width} buffers; .* 1\.\.255"):
        lab.run(1, lambda c: co.all_gather_buffers(c, [torch.zeros(1)] * width))


def test_unequal_numbers_of_buffers_are_named(lab):
    with pytest.raises(WorkerFailedError, match="rank 0 sent 1 buffers where 2 were due"):
        lab.run(2, lambda c: co.all_gather_buffers(c, [torch.zeros(1)] * (1 + c.rank)))
