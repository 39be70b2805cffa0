"""Ok-Topk over many steps: near the best choice, and cheaper than sending to all."""

from __future__ import annotations

import pytest
import torch

from thinwire.methods import OkTopk, TopK
from thinwire.seeds import generator_for

NUMEL = 6000


def drawn(size: int, steps: int) -> torch.Tensor:
    """Gradients with a part that all share, whose elements are of very unlike size."""
    generator = generator_for(0, "oktopk", size)
    scale = torch.linspace(-3, 1, NUMEL).exp()
    common = torch.randn(1, 1, NUMEL, generator=generator)
    return scale * (common + torch.randn(size, steps, NUMEL, generator=generator))


@pytest.mark.slow
def test_it_selects_about_k_at_every_step_and_exactly_where_it_estimates(feed_method):
    k = 60
    method = OkTopk(density=0.01, estimate_every=8)
    directions = feed_method(method, drawn(5, 64), [(NUMEL,)]).directions[0]
    counts = (directions != 0).sum(dim=1)
    assert counts[::8].tolist() == [k] * 8
    assert int(counts.max()) <= k
    assert float(counts.float().mean()) > 0.7 * k


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_what_is_chosen_is_nearly_what_an_exact_choice_would_be(feed_method, size):
    """The exact choice: estimating at every step."""
    gradients = drawn(size, 48)
    found = {}
    for every in (1, 16):
        method = OkTopk(density=0.01, estimate_every=every)
        found[every] = feed_method(method, gradients, [(NUMEL,)]).directions[0]
    applied = {every: float(d.sum(dim=0).norm()) for every, d in found.items()}
    assert applied[16] == pytest.approx(applied[1], rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4, 7, 16])
def test_a_step_sends_less_than_6k_words_however_many_workers_there_are(feed_method, size):
    k, steps = 60, 31
    sent = {}
    for count in (1, 1 + steps):
        method = OkTopk(density=0.01, estimate_every=1000, balance_every=1000)
        world = feed_method(method, drawn(size, count), [(NUMEL,)]).world
        sent[count] = [(e.meter.sent, e.meter.messages_sent) for e in world.endpoints]
    for (before, m0), (after, m1) in zip(sent[1], sent[1 + steps], strict=True):
        headers = 48 * (m1 - m0)  # at most so many, two buffers each and more in the gather
        words = (after - before - headers) / 4 / steps
        assert words < 6 * k * (size - 1) / size


@pytest.mark.slow
def test_with_many_workers_it_sends_a_fraction_of_what_topk_does(feed_method):
    gradients = drawn(16, 32)
    sent = []
    for method in (OkTopk(density=0.05), TopK(density=0.05)):
        meters = [e.meter for e in feed_method(method, gradients, [(NUMEL,)]).world.endpoints]
        sent.append(max(m.sent for m in meters))
    assert sent[0] < sent[1] / 4


def test_a_gradient_that_grows_by_a_thousand_does_not_flood_the_wire(feed_method):
    gradients = drawn(4, 20)
    gradients[:, 10:] *= 1000
    directions = feed_method(OkTopk(density=0.01), gradients, [(NUMEL,)]).directions[0]
    assert int((directions != 0).sum(dim=1).max()) <= 60


def test_gradients_that_vanish_are_survived(feed_method):
    gradients = drawn(3, 12)
    gradients[:, 4:] = 0.0
    directions = feed_method(OkTopk(density=0.01, estimate_every=5), gradients, [(NUMEL,)])
    assert torch.isfinite(directions.directions[0]).all()
    gradients[:] = 0.0
    result = feed_method(OkTopk(density=0.01, estimate_every=5), gradients, [(NUMEL,)])
    assert torch.equal(result.directions[0], torch.zeros(12, NUMEL))
