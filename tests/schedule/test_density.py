"""How many entries of each gradient hide behind the rest of backward."""

from __future__ import annotations

import math
import random

import pytest

from thinwire.errors import InputError
from thinwire.models import published_table
from thinwire.schedule import kept_of, layer_ratios, load_of, next_budgets

WORKERS, LATENCY, BETA = 16, 1e-4, 4e-9


def gather(numel: int, ratio: float) -> float:
    """Doubling all-gather of index and value, 8 bytes an entry."""
    kept = kept_of(numel, ratio)
    return math.log2(WORKERS) * LATENCY + (WORKERS - 1) * 2 * kept * BETA


def select(numel: int) -> float:
    return 1e-10 * numel


def dense_when_whole(numel: int, ratio: float) -> float:
    if ratio > 1:
        return gather(numel, ratio)
    return 2 * (WORKERS - 1) * LATENCY + 2 * (WORKERS - 1) / WORKERS * numel * BETA


def test_the_chosen_number_of_entries_is_the_largest_that_fits():
    rng = random.Random(3)
    numel = [rng.randint(1, 10**6) for _ in range(200)]
    budget = [rng.expovariate(100) for _ in numel]
    for n, left, ratio in zip(
        numel, budget, layer_ratios(numel, budget, gather, select, 1000), strict=True
    ):
        kept = kept_of(n, ratio)
        fits = gather(n, ratio) + select(n) <= left
        assert 1 <= ratio <= min(1000, n)
        if 1 < ratio < min(1000, n) * (1 - 1e-12):
            assert fits
            assert gather(n, n / (kept + 1)) + select(n) > left
        elif ratio > 1:
            assert kept == kept_of(n, min(1000, n))


def test_it_is_the_published_closed_form_where_that_lies_between_its_limits():
    numel, budget = 10**6, 0.02
    density = (budget - 4 * LATENCY) / (2 * (WORKERS - 1) * BETA * numel)
    (ratio,) = layer_ratios([numel], [budget], gather, lambda n: 0.0, 1000)
    assert 1 / ratio == pytest.approx(density, rel=1e-5)


def test_a_tensor_whose_dense_message_hides_is_sent_whole():
    load = load_of(published_table("resnet50"), 0.09, 0.12)
    numel = [size // 4 for size in load.nbytes]
    budget = next_budgets(load.ready)
    ratios = layer_ratios(numel, budget, dense_when_whole, select, 1000)
    hides = [dense_when_whole(n, 1.0) <= left for n, left in zip(numel, budget, strict=True)]
    assert any(hides)
    assert not all(hides)
    assert [ratio == 1.0 for ratio in ratios] == hides


def test_where_nothing_fits_the_limit_is_taken_and_never_less_than_one_entry():
    assert layer_ratios([10_000, 10], [0.0, 0.0], gather, select, 250) == (250.0, 10.0)


def test_a_longer_budget_never_means_fewer_entries():
    budgets = [1e-3 * i for i in range(60)]
    ratios = layer_ratios([10**6] * 60, budgets, gather, select, 1000)
    assert list(ratios) == sorted(ratios, reverse=True)


def test_the_last_gradient_has_nothing_to_hide_behind():
    assert next_budgets([1.0, 3.0]) == (2.0, 0.0)
    assert next_budgets([]) == ()


@pytest.mark.parametrize(
    ("numel", "budget", "limit", "named"),
    [
        ([1], [], 10, "budget has 0"),
        ([0], [1.0], 10, "numel = 0"),
        ([1], [1.0], 0.5, "limit = 0.5"),
        ([1], [1.0], float("inf"), "limit = inf"),
    ],
)
def test_bad_input_is_named(numel, budget, limit, named):
    with pytest.raises(InputError, match=named):
        layer_ratios(numel, budget, gather, select, limit)
