"""The k largest: exactly, repeatably, and not from NaN."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from thinwire.compress import num_kept, select_top, topk
from thinwire.compress.topk import SAMPLE, SAMPLE_FROM, STRIDE, TopK, _select_on_device
from thinwire.errors import InputError, NonFiniteError
from thinwire.seeds import generator_for


def by_sorting(x, k):
    """Larger magnitude first, then smaller index; by a stable sort."""
    order = np.argsort(-np.abs(x.flatten().double().numpy()), kind="stable")[:k]
    return np.sort(order).tolist()


@pytest.mark.parametrize("density", [0, -1, 1.0001, math.nan, math.inf, -0.5, 2])
def test_densities_outside_their_range_are_refused(density):
    for call in (lambda: num_kept(density, 10), lambda: topk(density)):
        with pytest.raises(InputError, match=r"density = .*; it must be above 0 and at most 1"):
            call()


def test_at_least_one_and_at_most_all_are_kept():
    assert [num_kept(d, 10) for d in (1e-9, 0.19, 0.5, 1, 1.0)] == [1, 1, 5, 10, 10]
    with pytest.raises(InputError, match="numel = 0"):
        num_kept(0.5, 0)


@pytest.mark.parametrize("numel", [1, 2, 50, 1000])
@pytest.mark.parametrize("coarse", [False, True])
def test_selection_is_that_of_a_full_sort(numel, coarse):
    for case in range(20):
        x = torch.randn(numel, generator=generator_for(case, numel))
        if coarse:
            x = x.round()  # many ties, many zeros
        for k in sorted({1, numel // 3 or 1, numel}):
            s = select_top(x, k)
            assert s.index.tolist() == by_sorting(x, k)
            assert torch.equal(s.value, x[s.index])


def large(kind, numel=143_417):
    x = torch.randn(numel, generator=generator_for(0, "large"))
    stride = max(STRIDE, numel // SAMPLE)
    if kind == "ties":
        x = x.mul(4).round()
    elif kind == "mostly zero":
        x[x.abs() < 3.5] = 0
    elif kind == "the sample sees only small ones":
        x[::stride] = 0
    elif kind == "the sample sees only large ones":
        x.mul_(1e-6)
        x[::stride] += 10
    elif kind == "constant":
        x.fill_(-2)
    elif kind == "zero":
        x.zero_()
    elif kind == "rising":
        x = torch.arange(float(numel))
    return x


@pytest.mark.parametrize(
    "kind",
    [
        "normal",
        "ties",
        "mostly zero",
        "the sample sees only small ones",
        "the sample sees only large ones",
        "constant",
        "zero",
        "rising",
    ],
)
@pytest.mark.parametrize("numel", [SAMPLE_FROM + 3, 143_417, 17 * SAMPLE + 5])
def test_selection_from_large_vectors_is_exact_whatever_the_sample_saw(kind, numel):
    x = large(kind, numel)
    for k in (1, 150, numel // 7):
        assert select_top(x, k).index.tolist() == by_sorting(x, k), k


def test_the_path_of_accelerators_selects_the_same():
    # It is made of torch operations only, so that it can be tried on the CPU.
    for kind in ("normal", "ties", "mostly zero", "constant"):
        x = large(kind)[:5000]
        for k in (1, 150, 5000):
            ours, theirs = select_top(x, k), _select_on_device(x, k)
            assert torch.equal(ours.index, theirs.index)
            assert torch.equal(ours.value, theirs.value)
    with pytest.raises(NonFiniteError, match="element 1 of the vector"):
        _select_on_device(torch.tensor([1.0, math.nan, 2.0]), 1)


@pytest.mark.parametrize("numel", [100, SAMPLE_FROM + 7])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_vector_with_a_bad_element_is_refused_by_its_place(numel, bad):
    for place in (0, 57, numel - 1):
        x = torch.ones(numel)
        x[place] = bad
        with pytest.raises(NonFiniteError, match=f"element {place} of the vector"):
            select_top(x, 5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_values_of_half_precision_travel_as_float32_unchanged(dtype):
    x = torch.randn(300, generator=generator_for(0)).to(dtype)
    s = select_top(x, 30)
    assert s.index.tolist() == by_sorting(x, 30)
    assert s.value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.equal(s.value.to(dtype), x[s.index])


def test_shape_counts_as_flat_and_the_input_is_left_alone():
    x = torch.randn(6, 10, generator=generator_for(0)).t()
    before = x.clone()
    s = select_top(x, 7)
    assert s.index.tolist() == by_sorting(x, 7)
    s.value.fill_(0)
    assert torch.equal(x, before)


@pytest.mark.parametrize("k", [0, -1, 11])
def test_an_impossible_k_is_refused(k):
    with pytest.raises(InputError, match=rf"k = {k}; valid: 1\.\.10"):
        select_top(torch.ones(10), k)


def test_meta_vectors_give_nominal_sizes():
    s = select_top(torch.empty(25_000_000, device="meta"), 25_000)
    assert (len(s), s.is_meta, s.numel) == (25_000, True, 25_000_000)


# The codec.


def test_decoding_gives_the_kept_elements_and_zeros():
    x = torch.randn(200, generator=generator_for(0))
    codec = topk(0.1)
    packet = codec.encode(x, codec.init(x))
    decoded = codec.decode(packet)
    kept = by_sorting(x, 20)
    assert decoded.nonzero().view(-1).tolist() == kept
    assert torch.equal(decoded[kept], x[kept])


def test_the_packet_holds_eight_bytes_an_entry_and_the_size():
    packet = topk(0.1).encode(torch.randn(200), None)
    assert packet.payload_nbytes == 8 * 20 + 8
    assert [b.dtype for b in packet.buffers] == [torch.int32, torch.float32, torch.int64]
    travelled = type(packet).from_frames([bytearray(f) for f in packet.frames()])
    assert torch.equal(topk(0.1).decode(travelled), topk(0.1).decode(packet))


def test_meta_packets_have_the_size_of_real_ones():
    codec = topk(0.1)
    real, meta = (codec.encode(torch.ones(200, device=d), None) for d in ("cpu", "meta"))
    assert (meta.is_meta, meta.nbytes) == (True, real.nbytes)
    assert codec.decode(meta).shape == codec.decode(real).shape


def test_traits_say_that_top_k_is_biased_and_no_more():
    traits = TopK(density=0.5).traits
    assert (traits.linear, traits.biased, traits.shared_support) == (False, True, False)
