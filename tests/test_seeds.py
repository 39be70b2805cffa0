"""Seeds from labels: apart, alike on every machine, and in torch's range."""

from __future__ import annotations

import itertools

import torch

from thinwire.seeds import generator_for, seed_for


def test_a_seed_is_the_same_on_every_machine():
    # A change of these would change every run ever recorded.
    assert seed_for(0) == 4_761_921_975_702_974_394
    assert seed_for(0, "data", 3) == 3_760_712_154_126_505_243


def test_seeds_differ_in_every_label_and_in_the_run():
    labels = [
        (),
        ("data",),
        ("rng",),
        ("data", 0),
        ("data", 1),
        ("data", "1"),
        ("data1",),
        (1, "data"),
    ]
    seeds = [seed_for(run, *label) for run in (0, 1) for label in labels]
    assert len(set(seeds)) == len(seeds)


def test_labels_are_not_joined_into_each_other():
    assert seed_for(0, "a", "bc") != seed_for(0, "ab", "c")
    assert seed_for(1, 2) != seed_for(12)


def test_seeds_fit_every_generator():
    for run, rank in itertools.product((0, 7, 2**40), range(50)):
        assert 0 <= seed_for(run, "x", rank) < 2**63


def test_generators_of_one_label_draw_alike_and_leave_the_global_one_alone():
    before = torch.get_rng_state()
    first, second = (torch.rand(4, generator=generator_for(0, "rng", 1)) for _ in range(2))
    other = torch.rand(4, generator=generator_for(0, "rng", 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)
