"""Nothing that a codec leaves out is lost, and nothing bad gets into the memory."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from thinwire.compress import Codec, Traits, feedback, topk
from thinwire.errors import InputError, NonFiniteError
from thinwire.seeds import generator_for
from thinwire.wire import Packet


@dataclass(frozen=True)
class Rounded(Codec):
    """Whole numbers, counting its calls: a second codec, with a state of its own."""

    @property
    def traits(self):
        return Traits(biased=True, shared_support=True)

    def init(self, like):
        return [0]

    def encode(self, x, state):
        state[0] += 1
        return Packet.of(x.round())

    def decode(self, packet):
        return packet.buffers[0].clone()


def gradient(step, numel=100):
    return torch.randn(numel, generator=generator_for(3, step), dtype=torch.float64)


@pytest.mark.parametrize("codec", [topk(0.05), Rounded()])
def test_what_was_sent_and_what_is_remembered_add_up_to_what_came_in(codec):
    codec = feedback(codec)
    state = codec.init(gradient(0))
    sent = torch.zeros(100, dtype=torch.float64)
    for step in range(30):
        before, x = state.memory.clone(), gradient(step)
        kept = x.clone()
        decoded = codec.decode(codec.encode(x, state))
        assert torch.equal(x, kept)
        torch.testing.assert_close(decoded + state.memory, x + before, rtol=0, atol=1e-14)
        sent += decoded
    total = sum(gradient(step) for step in range(30))
    torch.testing.assert_close(sent + state.memory, total, rtol=0, atol=1e-12)


def test_top_k_remembers_exactly_what_it_did_not_send():
    codec = feedback(topk(0.1))
    x = gradient(0).float()
    state = codec.init(x)
    decoded = codec.decode(codec.encode(x, state))
    assert torch.equal(decoded + state.memory, x)
    assert not state.memory[decoded != 0].any()


def test_every_element_is_sent_in_the_end():
    codec = feedback(topk(0.1))
    x = torch.linspace(1, 2, 20)
    state = codec.init(x)
    seen = torch.zeros(20, dtype=torch.bool)
    for _ in range(40):
        seen |= codec.decode(codec.encode(x, state)) != 0
    assert seen.all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_gradient_never_enters_the_memory(bad):
    for inner in (topk(0.1), Rounded()):
        codec = feedback(inner)
        state = codec.init(gradient(0))
        codec.encode(gradient(0), state)
        before, x = state.memory.clone(), gradient(1)
        x[70] = bad
        with pytest.raises(NonFiniteError, match="memory was left as it was"):
            codec.encode(x, state)
        assert torch.equal(state.memory, before)


def test_large_finite_values_whose_sum_overflows_are_not_refused():
    codec = feedback(topk(0.5))
    x = torch.full((4,), 3e38)
    codec.encode(x, codec.init(x))


def test_states_of_two_vectors_are_apart_and_hold_the_inner_state():
    codec = feedback(Rounded())
    a, b = codec.init(gradient(0)), codec.init(gradient(0))
    codec.encode(gradient(0), a)
    assert a.inner == [1]
    assert b.inner == [0]
    assert a.memory.any()
    assert not b.memory.any()


def test_meta_vectors_pass_through():
    codec = feedback(topk(0.1))
    x = torch.empty(100, device="meta")
    assert codec.encode(x, codec.init(x)).nbytes == 16 + 3 * 8 + 10 * 8 + 8


def test_another_size_is_refused():
    codec = feedback(topk(0.1))
    with pytest.raises(InputError, match="101 elements meets a memory of 100"):
        codec.encode(torch.ones(101), codec.init(torch.ones(100)))


def test_feedback_makes_up_for_bias_and_keeps_the_support():
    assert feedback(Rounded()).traits == Traits(shared_support=True)
    assert feedback(topk(0.1)).traits == Traits()
