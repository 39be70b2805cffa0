"""QSGD: right on average, drawn apart on every rank, as many bytes as bits."""

from __future__ import annotations

import pytest
import torch

from thinwire.collectives import traffic
from thinwire.methods import QSGD
from thinwire.methods.qsgd import largest_kept_bucket
from thinwire.seeds import generator_for


def drawn(size: int, steps: int, numel: int = 300) -> torch.Tensor:
    once = torch.randn(size, 1, numel, generator=generator_for(0, "qsgd", size))
    return once.repeat(1, steps, 1)


@pytest.mark.slow
@pytest.mark.parametrize("shares", [(1,), (1, 1), (5, 1, 2)])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_it_is_the_weighted_mean_on_average(feed_method, shares, bits):
    steps = 200
    gradients = drawn(len(shares), steps)
    result = feed_method(QSGD(bits=bits, bucket=64), gradients, [(300,)], shares)
    directions = result.directions[0]
    weights = torch.tensor(shares) / sum(shares)
    expected = (weights[:, None] * gradients[:, 0]).sum(dim=0)
    error = directions.mean(dim=0) - expected
    deviation = directions.std(dim=0) / steps**0.5
    assert 0 < float(error.abs().max()) < 5 * float(deviation.max())


def test_ranks_draw_apart_so_that_their_noise_averages_out(feed_method):
    def noise(size: int) -> float:
        gradients = drawn(1, 50).repeat(size, 1, 1)
        directions = feed_method(QSGD(bits=4), gradients, [(300,)]).directions[0]
        return float((directions - gradients[0]).pow(2).mean())

    assert noise(8) == pytest.approx(noise(1) / 8, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_what_rounding_took_is_sent_later_where_it_is_kept(feed_method, bits):
    gradients = drawn(2, 100)
    method = QSGD(bits=bits, bucket=largest_kept_bucket(bits), errors="kept")
    directions = feed_method(method, gradients, [(300,)]).directions[0]
    kept = float((directions.mean(dim=0) - gradients[:, 0].mean(dim=0)).norm())
    dropped_method = QSGD(bits=bits, bucket=largest_kept_bucket(bits))
    directions = feed_method(dropped_method, gradients, [(300,)]).directions[0]
    dropped = float((directions.mean(dim=0) - gradients[:, 0].mean(dim=0)).norm())
    assert kept < dropped / 2 or dropped < 1e-5  # of 2 bits a bucket is one element, and exact


@pytest.mark.parametrize("size", [1, 2, 5, 8])
@pytest.mark.parametrize(("bits", "bucket"), [(4, 512), (8, 100), (2, 7)])
def test_the_bytes_are_those_of_codes_and_norms(feed_method, size, bits, bucket):
    numel = 1000
    result = feed_method(QSGD(bits=bits, bucket=bucket), drawn(size, 2, numel), [(numel,)])
    nbytes = numel * bits // 8 + 4 * -(-numel // bucket) + 8
    expected = traffic.all_gather_buffers(size, nbytes, num_buffers=3)
    assert [e.meter.sent for e in result.world.endpoints] == [2 * n for n in expected]
