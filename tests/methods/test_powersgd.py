"""PowerSGD: what it applies is the published rule's, and its memory stays bounded."""

from __future__ import annotations

import pytest
import torch

from thinwire.collectives import traffic
from thinwire.compress.powersgd import first_right, matrix_parts, orthogonalise
from thinwire.methods import PowerSGD
from thinwire.seeds import generator_for

SHAPES = [(24, 30), (24,), (10, 6, 3, 3), (5, 4)]
NUMEL = 720 + 24 + 540 + 20


def drawn(size: int, steps: int = 8, spread: float = 1.0) -> torch.Tensor:
    """Gradients (N, T, P) that agree up to a spread."""
    generator = generator_for(0, "powersgd", size)
    common = torch.randn(1, steps, NUMEL, generator=generator)
    return common + spread * torch.randn(size, steps, NUMEL, generator=generator)


def published(gradients: torch.Tensor, weights: list[float], rank: int) -> torch.Tensor:
    """The authors' rule: every worker's memory lacks the average that all apply."""
    size, steps, _ = gradients.shape
    parts = matrix_parts(SHAPES, rank)
    rights = [first_right(part, 0) if part.rank else None for part in parts]
    memory = torch.zeros(size, NUMEL)
    directions = torch.zeros(steps, NUMEL)
    for t in range(steps):
        m = [memory[r] + weights[r] * gradients[r, t] for r in range(size)]
        for i, part in enumerate(parts):
            q = rights[i]
            if q is None:
                part.of(directions[t]).copy_(torch.stack([part.of(x) for x in m]).sum(0))
                continue
            p = orthogonalise(torch.stack([part.of(x) @ q for x in m]).sum(0))
            q = rights[i] = torch.stack([part.of(x).t() @ p for x in m]).sum(0)
            part.of(directions[t]).copy_(p @ q.t())
        for r in range(size):
            memory[r] = m[r] - weights[r] * directions[t]
    return directions


@pytest.mark.parametrize("shares", [(1,), (1, 1, 1), (1, 3)])
@pytest.mark.parametrize("rank", [1, 3])
def test_it_applies_what_the_published_rule_does(feed_method, shares, rank):
    gradients = drawn(len(shares))
    weights = [share / sum(shares) for share in shares]
    found = feed_method(PowerSGD(rank=rank), gradients, SHAPES, shares).directions[0]
    torch.testing.assert_close(found, published(gradients, weights, rank), rtol=1e-3, atol=1e-4)


def test_workers_that_never_agree_do_not_fill_their_memories(feed_method):
    """With the average subtracted, what each differs by would be added up forever."""
    gradients = drawn(2, 1).repeat(1, 200, 1)
    difference = gradients[0] - gradients[1]
    gradients[0] += 10 * difference
    gradients[1] -= 10 * difference
    states = feed_method(PowerSGD(rank=3), gradients, SHAPES).states
    assert float(states[0].memory.norm()) < 25 * float(gradients[0, 0].norm())


def test_repeated_gradients_are_applied_in_full_in_the_end(feed_method):
    gradients = drawn(3, 1).repeat(1, 60, 1)
    directions = feed_method(PowerSGD(rank=2), gradients, SHAPES).directions[0]
    mean = gradients[:, 0].mean(dim=0)
    lacking = float((directions.mean(dim=0) - mean).norm() / mean.norm())
    first = float((directions[0] - mean).norm() / mean.norm())
    assert lacking < 0.25 < 0.7 < first


def test_an_equal_gradient_of_low_rank_is_applied_exactly_at_once(feed_method):
    generator = generator_for(0, "low")
    m = torch.randn(24, 2, generator=generator) @ torch.randn(2, 30, generator=generator)
    gradients = m.reshape(1, 1, -1).repeat(3, 2, 1)
    directions = feed_method(PowerSGD(rank=2), gradients, [(24, 30)]).directions[0]
    torch.testing.assert_close(directions[0].view(24, 30), m, rtol=0, atol=1e-4)


@pytest.mark.parametrize("size", [2, 4, 5])
def test_two_all_reduces_a_step_carry_the_factors_and_no_more(feed_method, size):
    gradients = drawn(size, 3)
    result = feed_method(PowerSGD(rank=2), gradients, SHAPES)
    low, whole = [p for p in matrix_parts(SHAPES, 2) if p.rank], 24 + 20
    first = sum(2 * p.rows for p in low) + whole
    second = sum(2 * p.cols for p in low)
    algorithm = traffic.all_reduce_halving_doubling if size in (2, 4) else traffic.all_reduce_tree
    each = zip(algorithm(size, first), algorithm(size, second), strict=True)
    sent = [e.meter.sent for e in result.world.endpoints]
    assert sent == [3 * (a + b) for a, b in each]


def test_zero_gradients_do_not_end_the_warm_start(feed_method):
    gradients = drawn(2, 6)
    gradients[:, :3] = 0.0
    directions = feed_method(PowerSGD(rank=2), gradients, SHAPES).directions[0]
    assert torch.equal(directions[:3], torch.zeros(3, NUMEL))
    assert float(directions[3:].norm()) > 0.1 * float(gradients.mean(dim=0).norm())
