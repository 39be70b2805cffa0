"""Levels of a norm: as many as the bits say, never above, several to a byte."""

from __future__ import annotations

import pytest
import torch

from thinwire.compress import qsgd
from thinwire.compress.qsgd import pack_bits, unpack_bits
from thinwire.errors import InputError
from thinwire.seeds import generator_for


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("count", [0, 1, 3, 8, 1001])
def test_packed_numbers_come_back(bits, count):
    code = torch.randint(0, 2**bits, (count,), generator=generator_for(bits, count)).to(torch.uint8)
    packed = pack_bits(code, bits)
    assert packed.numel() == -(-count * bits // 8)
    assert torch.equal(unpack_bits(packed, bits, count), code)


def test_the_first_number_lies_in_the_lowest_bits():
    assert pack_bits(torch.tensor([1, 2, 15], dtype=torch.uint8), 4).tolist() == [0x21, 0x0F]


def test_bytes_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match=r"2 x torch.uint8 does not hold 3 numbers of 2 bits"):
        unpack_bits(torch.zeros(2, dtype=torch.uint8), 2, 3)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_every_element_is_a_neighbouring_level_of_its_buckets_norm(bits):
    x = torch.randn(1000, generator=generator_for(0))
    codec = qsgd(bits=bits, bucket=300)
    decoded = codec.decode(codec.encode(x, codec.init(x)))
    top = 2 ** (bits - 1) - 1
    for part, sent in zip(x.split(300), decoded.split(300), strict=True):
        level = sent / part.norm() * top
        torch.testing.assert_close(level, level.round(), rtol=0, atol=1e-4)
        assert ((level - part / part.norm() * top).abs() < 1.0001).all()
        assert (sent * part >= 0).all()


def test_two_seeds_and_two_calls_draw_differently():
    x = torch.randn(1000, generator=generator_for(0))
    codec, other = qsgd(seed=0), qsgd(seed=1)
    state = codec.init(x)
    first, second = (codec.encode(x, state).buffers[0] for _ in range(2))
    assert not torch.equal(first, second)
    assert not torch.equal(first, other.encode(x, other.init(x)).buffers[0])


def test_a_norm_above_float32_is_cut_not_infinite():
    x = torch.full((512,), 3e38)
    codec = qsgd()
    assert torch.isfinite(codec.decode(codec.encode(x, codec.init(x)))).all()


def test_norms_that_do_not_fit_the_size_are_refused():
    x = torch.ones(1000)
    packet = qsgd(bucket=100).encode(x, qsgd().init(x))
    with pytest.raises(InputError, match="10 norms do not fit 1000 elements in buckets of 512"):
        qsgd().decode(packet)
