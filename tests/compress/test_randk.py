"""Random elements: the same on all ranks, others at each call, all in the end."""

from __future__ import annotations

import torch

from thinwire.compress import feedback, randk

NUMEL = 1000


def support(codec, state):
    return codec.decode(codec.encode(torch.ones(NUMEL), state)).nonzero().view(-1).tolist()


def test_ranks_with_one_seed_draw_the_same_elements_at_each_call_and_others_at_the_next():
    codec = randk(0.1, seed=5)
    states = [codec.init(torch.ones(NUMEL)) for _ in range(3)]
    draws = [[support(codec, state) for state in states] for _ in range(4)]
    for ranks in draws:
        assert ranks[0] == ranks[1] == ranks[2]
    assert len({tuple(ranks[0]) for ranks in draws}) == 4


def test_another_seed_draws_others():
    codecs = [randk(0.1, seed=s) for s in (1, 2)]
    one, other = (support(codec, codec.init(torch.ones(NUMEL))) for codec in codecs)
    assert one != other


def test_a_restored_state_goes_on_where_it_was():
    codec = randk(0.1)
    state = codec.init(torch.ones(NUMEL))
    support(codec, state)
    restored = type(state)(**vars(state))
    assert support(codec, state) == support(codec, restored)


def test_the_packet_tells_a_rank_without_state_which_elements_they_are():
    codec, x = randk(0.1), torch.arange(float(NUMEL))
    state = codec.init(x)
    for _ in range(3):
        packet = codec.encode(x, state)
    decoded = randk(0.1, seed=99).decode(packet)
    assert torch.equal(decoded[decoded != 0], x[decoded != 0])


def test_with_feedback_every_element_is_sent_in_the_end():
    codec = feedback(randk(0.2))
    x = torch.ones(100)
    state, seen = codec.init(x), torch.zeros(100, dtype=torch.bool)
    for _ in range(60):
        seen |= codec.decode(codec.encode(x, state)) != 0
    assert seen.all()
