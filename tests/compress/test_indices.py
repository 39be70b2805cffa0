"""Indices come back as they were, in hardly more bits than there is information in them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from thinwire.compress import indices as module
from thinwire.compress import num_kept, select_top
from thinwire.compress.indices import (
    BLOCK,
    MAX_NUMEL,
    decode_indices,
    encode_indices,
    entropy_bits,
    nominal_nbytes,
)
from thinwire.errors import InputError


@pytest.fixture(params=["compiled", "numpy"])
def path(request, monkeypatch):
    """Both ways of doing it."""
    if request.param == "numpy":
        monkeypatch.setattr(module, "kernels", lambda: None)
    elif module.kernels() is None:
        pytest.skip("numba does not work here")
    return request.param


def uniform(count, numel, seed=0):
    rng = np.random.default_rng(seed)
    drawn = np.unique(rng.integers(0, numel, 2 * count + 10))
    while drawn.size < count:
        drawn = np.unique(np.concatenate([drawn, rng.integers(0, numel, count)]))
    return torch.from_numpy(np.sort(rng.permutation(drawn)[:count]))


def layered(numel=4_000_000, seed=0):
    """Kept entries of layers whose densities differ by a factor of 4,000."""
    rng, start, parts = np.random.default_rng(seed), 0, []
    for share, density in ((0.7, 0.00025), (0.2, 0.002), (0.06, 0.03), (0.04, 0.15)):
        size = int(share * numel)
        parts.append(start + np.flatnonzero(rng.random(size) < density))
        start += size
    return torch.from_numpy(np.concatenate(parts)), numel


CASES = {
    "none": ([], 1000),
    "none of nothing": ([], 0),
    "the only one": ([0], 1),
    "all": (range(1000), 1000),
    "the first": ([0], 10**6),
    "the last": ([10**6 - 1], 10**6),
    "both ends": ([0, 2**33 - 1], 2**33),
    "the last of the largest": ([MAX_NUMEL - 1], MAX_NUMEL),
    "all but the first": (range(1, 1000), 1000),
    "all but the last": (range(999), 1000),
    "every other": (range(0, 1000, 2), 1000),
    "a run far away": (range(10**9, 10**9 + 300), 2**31),
    "a full block": (range(0, BLOCK * 7, 7), BLOCK * 7),
    "a block and one": (range(0, BLOCK * 7 + 7, 7), BLOCK * 7 + 7),
}


@pytest.mark.parametrize("case", CASES)
def test_what_was_encoded_comes_back(path, case):
    index, numel = torch.tensor(list(CASES[case][0]), dtype=torch.int64), CASES[case][1]
    decoded = decode_indices(encode_indices(index, numel), numel)
    assert decoded.tolist() == index.tolist()
    assert decoded.dtype == (torch.int32 if numel <= 2**31 else torch.int64)


@pytest.mark.parametrize("numel", [10, 130, 5000, 2**20, 2**33])
def test_random_sets_of_any_density_come_back(path, numel):
    for seed in range(6):
        count = [1, 2, 9, 129, 1000, 4000][seed]
        if count < numel:
            index = uniform(count, numel, seed)
            assert torch.equal(decode_indices(encode_indices(index, numel), numel).long(), index)


@pytest.mark.skipif(module.kernels() is None, reason="numba does not work here")
def test_the_code_without_numba_is_the_same_to_the_byte(monkeypatch):
    index, numel = layered()
    sets = [(index, numel), (uniform(3000, 10**6), 10**6), (uniform(500, 1000), 1000)]
    compiled = [encode_indices(*s) for s in sets]
    monkeypatch.setattr(module, "kernels", lambda: None)
    for code, s in zip(compiled, sets, strict=True):
        assert torch.equal(encode_indices(*s), code)


@pytest.mark.parametrize("count", [1000, 10_000, 30_000, 100_000])
@pytest.mark.parametrize("numel", [10**6, 1_400_000, 25_557_032, 2**33])
def test_uniform_sets_take_at_most_five_percent_more_than_their_entropy(count, numel):
    nbytes = encode_indices(uniform(count, numel), numel).numel()
    assert nbytes * 8 <= 1.05 * entropy_bits(count, numel)


def test_layer_skewed_sets_take_less_than_the_entropy_of_uniform_ones():
    index, numel = layered()
    code = encode_indices(index, numel)
    assert int(code[0]) >> 6 == 2  # a parameter per block
    assert code.numel() * 8 < 0.8 * entropy_bits(index.numel(), numel)


def real_gradient():
    """Of a convolutional net of a million parameters, on noise."""

    def block(before, after, stride):
        conv = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(after), nn.ReLU())

    with torch.random.fork_rng():
        torch.manual_seed(0)
        widths = [(3, 32, 1), (32, 64, 2), (64, 128, 2), (128, 256, 2), (256, 256, 1)]
        pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100))
        net = nn.Sequential(*(block(*width) for width in widths), pool)
        out = net(torch.randn(8, 3, 32, 32))
        nn.functional.cross_entropy(out, torch.arange(8)).backward()
    return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])


@pytest.mark.parametrize("density", [0.001, 0.01])
def test_a_real_gradient_takes_less_than_the_entropy_of_uniform_sets(density):
    gradient = real_gradient()
    kept = select_top(gradient, num_kept(density, gradient.numel()))
    nbytes = encode_indices(kept.index, kept.numel).numel()
    assert gradient.numel() > 10**6
    assert nbytes * 8 < 0.8 * entropy_bits(len(kept), kept.numel)


def test_clustered_sets_take_less_than_the_entropy_of_uniform_ones():
    regions = uniform(40, 600, 3)[:, None] * 10_000 + uniform(625, 10_000, 4)
    index, numel = regions.view(-1), 6_000_000
    assert encode_indices(index, numel).numel() * 8 < 0.75 * entropy_bits(index.numel(), numel)


def test_a_layer_kept_whole_costs_hardly_more_than_a_bit_an_entry():
    index = torch.cat([uniform(1000, 10**6), torch.arange(10**6, 10**6 + 50_000)])
    alone = encode_indices(index[:1000], 10**6).numel()
    both = encode_indices(index, 2 * 10**6).numel()
    assert both - alone <= 50_000 * 1.07 / 8


def test_elias_fano_never_would_have_been_smaller():
    for count, numel in ((1000, 10**6), (300, 700), (5000, 2**30)):
        index = uniform(count, numel)
        last = int(index[-1])
        elias_fano = min(
            -(-count * low // 8) + -(-(count + (last >> low)) // 8) for low in range(40)
        )
        head = 1 + len(f"{count:b}") // 7 + 1
        assert encode_indices(index, numel).numel() <= elias_fano + head


def test_the_nominal_size_is_near_the_real_one():
    for count, numel in ((1000, 10**6), (25_557, 25_557_032), (500, 1000), (7, 7), (0, 5)):
        real = encode_indices(uniform(count, numel), numel).numel()
        assert abs(nominal_nbytes(count, numel) - real) <= 0.02 * real + 4
        meta = encode_indices(torch.empty(count, dtype=torch.int32, device="meta"), numel)
        assert (meta.is_meta, meta.numel()) == (True, nominal_nbytes(count, numel))


def test_the_layout_is_as_declared():
    # Gaps 5, 0, 9 with one low bit: 1, 0, 1, and quotients 2, 0, 4 in unary.
    code = encode_indices(torch.tensor([5, 6, 16]), 40)
    assert bytes(code.tolist()).hex() == "41" + "03" + "05" + "0c01"


@pytest.mark.parametrize("index", [[3, 2], [2, 2], [-1, 2], [2, 10]])
def test_indices_that_do_not_rise_or_lie_outside_are_refused(index):
    with pytest.raises(InputError, match=r"must rise strictly and lie in 0\.\.9"):
        encode_indices(torch.tensor(index), 10)


def test_a_vector_too_large_is_refused():
    with pytest.raises(InputError, match="numel = "):
        encode_indices(torch.tensor([0]), MAX_NUMEL + 1)


BROKEN = {
    "nothing": "",
    "a head cut short": "41",
    "a count without end": "41" + "ff" * 8,
    "a count above the vector's size": "41" + "7f" + "00" * 90,
    "an unknown scheme": "c0" + "01" + "00",
    "a parameter above 40": "69" + "01" + "00" * 10,
    "no body": "41" + "05",
    "none, and parameters": "41" + "00",
    "some of them, without a body": "00" + "05",
    "all of them, and something behind": "00" + "64" + "00",
    "a low part cut short": "44" + "05" + "1234",
    "a unary part without enough ones": "40" + "05" + "0f00",
    "too many ones": "40" + "02" + "07",
    "a byte too many": "40" + "02" + "0300",
    "remainder bits behind the last": "41" + "02" + "ff" + "03",
    "an index beyond the vector": "40" + "01" + "00" * 12 + "80",
    "a quotient beyond the vector": "46" + "01" + "00" + "04",
    "a gap beyond the vector": "46" + "02" + "ff0f" + "05",
    "a block without parameter": "80" + "05",
    "a block's parameter above 40": "80" + "05" + "29" + "00" * 30,
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_code_is_refused(path, what):
    code = torch.tensor(list(bytes.fromhex(BROKEN[what])), dtype=torch.uint8)
    with pytest.raises(InputError, match="not a code of indices"):
        decode_indices(code, 100)


def test_whatever_bits_are_changed_the_result_is_valid_or_refused(path):
    rng = np.random.default_rng(5)
    good = {}
    for scheme, (index, numel) in enumerate(((uniform(300, 9000), 9000), layered(40_000))):
        good[scheme] = (encode_indices(index, numel), numel)
    for trial in range(300):
        code, numel = good[trial % 2]
        code = code.clone()
        for _ in range(int(rng.integers(1, 4))):
            code[int(rng.integers(code.numel()))] ^= 1 << int(rng.integers(8))
        code = code[: int(rng.integers(code.numel())) + 1] if trial % 3 == 0 else code
        try:
            index = decode_indices(code, numel)
        except InputError:
            continue
        assert index.numel() <= numel
        assert (torch.diff(index) > 0).all()
        if index.numel():
            assert index[0] >= 0
            assert index[-1] < numel


def test_both_ways_refuse_and_accept_the_same(monkeypatch):
    if module.kernels() is None:
        pytest.skip("numba does not work here")
    rng = np.random.default_rng(6)
    index, numel = layered(40_000)
    good = encode_indices(index, numel)

    def outcome(code):
        try:
            return decode_indices(code, numel).tolist()
        except InputError:
            return None

    broken = []
    for _ in range(200):
        code = good.clone()
        code[int(rng.integers(code.numel()))] ^= 1 << int(rng.integers(8))
        broken.append(code)
    compiled = [outcome(code) for code in broken]
    monkeypatch.setattr(module, "kernels", lambda: None)
    assert [outcome(code) for code in broken] == compiled


@pytest.mark.parametrize(
    "code", [torch.zeros(4), torch.zeros(2, 2, dtype=torch.uint8), torch.zeros(2, device="meta")]
)
def test_what_is_no_code_at_all_is_refused(code):
    with pytest.raises(InputError, match="1-D uint8"):
        decode_indices(code, 10)
