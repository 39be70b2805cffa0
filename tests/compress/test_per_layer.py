"""Layers are compressed apart: each has its share, its scale and its memory."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from thinwire.compress import (
    feedback,
    num_kept,
    packed,
    per_layer,
    qsgd,
    randk,
    select_top,
    sign,
    topk,
)
from thinwire.errors import InputError
from thinwire.flat import Layer
from thinwire.seeds import generator_for
from thinwire.wire import Packet

SIZES = (500, 7, 300, 20)


def vector(step=0):
    x = torch.randn(sum(SIZES), generator=generator_for(9, step))
    x[:500] *= 1000  # so that one layer would take all entries of the whole
    return x


def test_every_layer_has_its_share_of_entries():
    x = vector()
    codec = per_layer(topk(0.1), SIZES)
    decoded = codec.decode(codec.encode(x, codec.init(x)))
    for sent, layer in zip(decoded.split(SIZES), x.split(SIZES), strict=True):
        k = num_kept(0.1, layer.numel())
        assert torch.equal(sent, select_top(layer, k).to_dense())


def test_every_layer_has_a_scale_of_its_own():
    x = vector()
    codec = per_layer(sign(), SIZES)
    decoded = codec.decode(codec.encode(x, codec.init(x)))
    for sent, layer in zip(decoded.split(SIZES), x.split(SIZES), strict=True):
        torch.testing.assert_close(sent.abs(), layer.abs().mean().expand_as(sent))


@pytest.mark.parametrize("inner", [topk(0.1), sign(), randk(0.1), packed(topk(0.1)), qsgd()])
def test_small_layers_travel_as_they_are(inner):
    x = vector()
    codec = per_layer(inner, SIZES, dense_below=100)
    decoded = codec.decode(codec.encode(x, codec.init(x)))
    parts = list(zip(decoded.split(SIZES), x.split(SIZES), strict=True))
    for sent, layer in (parts[1], parts[3]):
        assert torch.equal(sent, layer)
    assert not torch.equal(*parts[0])


def test_a_layer_of_exactly_the_limit_is_compressed():
    x = vector()
    codec = per_layer(topk(0.1), SIZES, dense_below=20)
    sent = codec.decode(codec.encode(x, codec.init(x))).split(SIZES)
    assert [int((s != 0).sum()) for s in sent] == [50, 7, 30, 2]


def test_states_of_layers_are_apart():
    codec = per_layer(feedback(topk(0.1)), SIZES, dense_below=10)
    state = codec.init(vector())
    assert [None if s is None else s.memory.numel() for s in state] == [500, None, 300, 20]
    codec.encode(vector(), state)
    assert all(s.memory.any() for s in state if s is not None)


def test_layers_may_be_given_as_the_workers_table():
    starts = (0, 500, 507, 807)
    layers = [Layer(f"l{i}", s, s + n) for i, (s, n) in enumerate(zip(starts, SIZES, strict=True))]
    assert per_layer(sign(), layers) == per_layer(sign(), SIZES)


def test_a_vector_of_another_size_is_refused():
    codec = per_layer(sign(), SIZES)
    with pytest.raises(InputError, match="a vector of 826 elements meets layers of 827"):
        codec.encode(torch.ones(826), codec.init(torch.ones(827)))


def test_a_packet_for_other_layers_is_refused():
    x = vector()
    codec = per_layer(sign(), SIZES, dense_below=10)
    packet = codec.encode(x, codec.init(x))
    for other in ((500, 7, 320), (500, 7, 301, 19), (500, 6, 301, 20)):
        with pytest.raises(InputError):
            per_layer(sign(), other, dense_below=10).decode(packet)
    lengths, *rest = packet.buffers
    with pytest.raises(InputError, match="declared"):
        codec.decode(Packet((lengths + 1, *rest), packet.kind))


def test_two_hundred_layers_make_one_packet_of_few_buffers():
    sizes = (50,) * 200
    x = torch.randn(10_000, generator=generator_for(0))
    for inner in (topk(0.1), sign(), randk(0.1), packed(topk(0.1), values="int8")):
        codec = per_layer(inner, sizes)
        packet = codec.encode(x, codec.init(x))
        assert len(packet.buffers) <= 6
        assert packet.header()


@dataclass(frozen=True)
class Moody:
    """Packets whose kind depends on the layer."""

    traits = topk(0.1).traits

    def init(self, like):
        return None

    def encode(self, x, state):
        return Packet.of(x, kind="user" if x.numel() > 100 else "gradient")

    def decode(self, packet):
        return packet.buffers[0]


def test_layers_of_different_kinds_of_packets_are_refused():
    x = vector()
    codec = per_layer(Moody(), SIZES)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="different kinds: user, gradient"):
        codec.encode(x, codec.init(x))
