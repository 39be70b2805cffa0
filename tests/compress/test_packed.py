"""Packing changes the bytes, not the entries; what rounding took comes later."""

from __future__ import annotations

import pytest
import torch

from thinwire.compress import feedback, packed, per_layer, threshold, topk
from thinwire.compress.indices import entropy_bits
from thinwire.errors import InputError
from thinwire.seeds import generator_for
from thinwire.wire import Packet


def vector(step=0, numel=4000):
    return torch.randn(numel, generator=generator_for(6, step))


@pytest.mark.parametrize("values", ["fp32", "fp16", "bf16", "int8"])
@pytest.mark.parametrize("inner", [topk(0.05), threshold(1.5), per_layer(topk(0.05), [1000, 3000])])
def test_the_same_entries_travel_whatever_the_packing(values, inner):
    x = vector()
    plain = inner.decode(inner.encode(x, inner.init(x)))
    for indices in ("coded", "plain"):
        codec = packed(inner, values=values, indices=indices)
        decoded = codec.decode(codec.encode(x, codec.init(x)))
        assert torch.equal(decoded != 0, plain != 0)
        error = (decoded - plain).abs().max()
        assert error <= {"fp32": 0, "fp16": 1e-3, "bf16": 8e-3, "int8": 0.02}[values] * 4


def test_what_rounding_took_stays_in_the_memory_and_is_sent_later():
    codec = feedback(packed(topk(0.05), values="int8"))
    x = vector()
    state = codec.init(x)
    decoded = codec.decode(codec.encode(x, state))
    sent = decoded != 0
    assert state.memory[sent].any()
    assert torch.equal(state.memory[sent], (x - decoded)[sent])
    assert torch.equal(state.memory[~sent], x[~sent])


def test_the_bits_of_an_entry_are_those_of_its_value_and_near_the_entropy_of_its_index():
    x = vector(numel=2_000_000)
    for values, bits in (("fp32", 32), ("bf16", 16), ("int8", 8.1)):
        payload = packed(topk(0.001), values=values).encode(x, None).payload_nbytes
        per_entry = entropy_bits(2000, 2_000_000) / 2000
        assert payload * 8 / 2000 <= bits + 1.05 * per_entry


def test_double_precision_stays_where_values_are_left_as_they_are():
    x = vector().double() + 1e-12
    codec = packed(topk(0.05))
    decoded = codec.decode(codec.encode(x, None))
    assert decoded.dtype == torch.float64
    assert torch.equal(decoded[decoded != 0], x[decoded != 0])


@pytest.mark.parametrize("values", ["fp32", "int8"])
def test_a_packet_that_was_tampered_with_is_refused(values):
    codec = packed(topk(0.05), values=values)
    index, *value, size = codec.encode(vector(), None).buffers
    shorter = codec.encode(vector(numel=400), None).buffers[0]
    cut = [
        (index[:-1], *value, size),
        (shorter, *value, size),
        (index, value[0][:-1], *value[1:], size),
    ]
    for buffers in cut:
        with pytest.raises(InputError):
            codec.decode(Packet(buffers, "gradient"))


def test_traits_say_what_rounding_adds():
    assert packed(topk(0.1)).traits.biased
    assert not packed(feedback(topk(0.1))).traits.biased
    assert packed(feedback(topk(0.1)), values="bf16").traits.biased
