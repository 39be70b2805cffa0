"""A sampled threshold keeps about k of the largest, whatever the sample saw."""

from __future__ import annotations

import pytest
import torch

from thinwire.compress import SampledThreshold, num_kept, sampled_threshold, select_top
from thinwire.compress.draws import stratified
from thinwire.compress.sampled import MIN_SAMPLE, select_sampled
from thinwire.seeds import generator_for

NUMEL = 60_000
PLACES = torch.from_numpy(stratified(NUMEL, MIN_SAMPLE, 1))


def vector(kind):
    x = torch.randn(NUMEL, generator=generator_for(2, kind))
    if kind == "heavy tailed":
        x = x**5
    elif kind == "constant":
        x.fill_(3)
    elif kind == "zero":
        x.zero_()
    elif kind == "mostly zero":
        x[x.abs() < 2.5] = 0
    elif kind == "only small ones sampled":
        x[PLACES] = 1e-9
    elif kind == "only large ones sampled":
        x.mul_(1e-6)
        x[PLACES] = 10
    return x


KINDS = ["normal", "heavy tailed", "constant", "zero", "mostly zero", "only small ones sampled",
         "only large ones sampled"]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 60, 3000, NUMEL])
@pytest.mark.parametrize("tolerance", [0, 0.1, 0.5])
def test_the_number_kept_is_within_its_bound_whatever_the_sample_saw(kind, k, tolerance):
    s = select_sampled(vector(kind), k, 0.001, tolerance, seed=1)
    assert (1 - tolerance) * k <= len(s) <= (1 + tolerance) * k


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_is_the_largest_there_is(kind):
    x = vector(kind)
    s = select_sampled(x, 500, 0.01, 0.5, seed=1)
    exact = select_top(x, len(s))
    # Of equal elements the smaller indices, as everywhere; else the very same set.
    assert torch.equal(s.index, exact.index)
    assert torch.equal(s.value, exact.value)


def test_without_tolerance_the_selection_is_exact():
    x = vector("normal")
    s = select_sampled(x, 500, 0.01, 0, seed=1)
    assert torch.equal(s.index, select_top(x, 500).index)


def test_every_call_looks_elsewhere():
    codec, x = sampled_threshold(0.01), vector("normal")
    state = codec.init(x)
    sizes = {codec.encode(x, state).buffers[0].numel() for _ in range(8)}
    assert len(sizes) > 1
    k = num_kept(0.01, NUMEL)
    assert all(0.5 * k <= size <= 1.5 * k for size in sizes)


def test_a_short_vector_is_looked_at_as_a_whole():
    x = torch.arange(100.0)
    kept = SampledThreshold(density=0.1, tolerance=0).encode(x, sampled_threshold(0.1).init(x))
    assert kept.buffers[0].tolist() == list(range(90, 100))
