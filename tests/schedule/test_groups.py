"""Groups of gradients: what every grouping keeps, and who is best."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import pytest

from thinwire.errors import InputError
from thinwire.models import published_table
from thinwire.schedule import (
    DDP_FIRST,
    DDP_LIMIT,
    Cost,
    buckets,
    finish,
    load_of,
    merged,
    optimal,
    per_tensor,
    sizes,
    sparse_finish,
    sparse_merged,
    whole,
)


def instances(count: int, longest: int):
    """Random tensors in backward order, with the start-up and seconds a byte of a channel."""
    rng = random.Random(7)
    for _ in range(count):
        length = rng.randint(1, longest)
        ready, now = [], 0.0
        for _ in range(length):
            now += rng.expovariate(1.0)
            ready.append(now)
        nbytes = [1 + int(100 * rng.expovariate(1.0) ** 2) for _ in range(length)]
        order = list(range(length))[::-1]
        yield order, ready, nbytes, rng.expovariate(1.0), 0.02 * rng.random()


def every_grouping(order):
    """All 2^(L-1) cuts into consecutive parts."""
    inner = range(1, len(order))
    for count in range(len(order)):
        for cuts in combinations(inner, count):
            borders = [0, *cuts, len(order)]
            yield tuple(tuple(order[i:j]) for i, j in pairwise(borders))


def test_every_grouping_keeps_each_tensor_once_in_backward_order():
    for order, ready, nbytes, startup, per_byte in instances(50, 12):
        cost = Cost(startup=startup, per_byte=per_byte)
        for groups in (
            per_tensor(order),
            whole(order),
            buckets(order, nbytes, 150),
            merged(order, ready, nbytes, startup, per_byte),
            optimal(order, ready, nbytes, cost),
            sparse_merged(order, ready, nbytes, 0.1, lambda n: 1e-3 * n, cost),
        ):
            assert [tensor for group in groups for tensor in group] == order
            assert all(groups)
            assert sum(sizes(groups, nbytes)) == sum(nbytes)


def test_optimal_ends_as_early_as_the_best_of_all_groupings():
    for order, ready, nbytes, startup, per_byte in instances(60, 10):
        cost = Cost(startup=startup, per_byte=per_byte)
        best = min(finish(groups, ready, nbytes, cost) for groups in every_grouping(order))
        found = finish(optimal(order, ready, nbytes, cost), ready, nbytes, cost)
        assert found == pytest.approx(best, rel=1e-12)


def test_optimal_is_exact_for_a_cost_that_is_no_straight_line():
    for order, ready, nbytes, startup, per_byte in instances(30, 9):

        def cost(n, startup=startup, per_byte=per_byte):
            return (startup if n < 200 else 3 * startup) + per_byte * n

        best = min(finish(groups, ready, nbytes, cost) for groups in every_grouping(order))
        found = finish(optimal(order, ready, nbytes, cost), ready, nbytes, cost)
        assert found == pytest.approx(best, rel=1e-12)


def test_merging_is_never_later_than_one_message_a_tensor_nor_than_one_message():
    for order, ready, nbytes, startup, per_byte in instances(3000, 12):
        cost = Cost(startup=startup, per_byte=per_byte)
        ours = finish(merged(order, ready, nbytes, startup, per_byte), ready, nbytes, cost)
        for extreme in (per_tensor(order), whole(order)):
            assert ours <= finish(extreme, ready, nbytes, cost) * (1 + 1e-12)


def test_merging_is_sometimes_later_than_the_optimum():
    later = 0
    for order, ready, nbytes, startup, per_byte in instances(200, 9):
        cost = Cost(startup=startup, per_byte=per_byte)
        ours = finish(merged(order, ready, nbytes, startup, per_byte), ready, nbytes, cost)
        best = finish(optimal(order, ready, nbytes, cost), ready, nbytes, cost)
        assert ours >= best * (1 - 1e-12)
        later += ours > best * (1 + 1e-9)
    assert later > 0


def test_without_start_up_nothing_is_merged_and_with_a_huge_one_everything():
    for order, ready, nbytes, _, per_byte in instances(20, 12):
        assert merged(order, ready, nbytes, 0.0, per_byte) == per_tensor(order)
        assert merged(order, ready, nbytes, 1e9, per_byte) == whole(order)


@pytest.mark.parametrize("model", ["resnet50", "densenet201", "inception-v4"])
def test_merging_equals_the_optimum_on_real_models(model):
    load = load_of(published_table(model), 0.1, 0.2)
    cost = Cost(startup=1.34764e-3, per_byte=8.6433e-10)  # 10 GbE, 32 workers
    ours = merged(load.order, load.ready, load.nbytes, cost.startup, cost.per_byte)
    best = optimal(load.order, load.ready, load.nbytes, cost)
    ends = [finish(groups, load.ready, load.nbytes, cost) for groups in (ours, best)]
    assert ends[0] == pytest.approx(ends[1], rel=1e-12)
    assert 1 < len(ours) < len(load.order)


def test_buckets_are_closed_when_they_are_full_and_the_first_one_early():
    nbytes = [600_000, 600_000, 20 * 2**20, 4 * 2**20, 2**20, 8]
    groups = buckets(range(6), nbytes, DDP_LIMIT, DDP_FIRST)
    assert groups == ((0, 1), (2, 3, 4), (5,))
    assert buckets(range(6), nbytes, 1) == per_tensor(range(6))


def test_a_tensor_without_bytes_still_leaves_with_somebody():
    assert buckets([1, 0], [10, 0], 10) == ((1,), (0,))


def test_no_tensors_make_no_messages():
    assert whole([]) == per_tensor([]) == merged([], [], [], 1.0, 1.0) == ()
    assert optimal([], [], [], Cost()) == ()
    assert finish((), [], [], Cost()) == 0.0


def test_sparse_merging_folds_where_the_start_up_saved_is_more_than_the_delay():
    ready, numel = [1.0, 1.2, 5.0], [100, 100, 100]

    def gather(kept):
        return 0.5 + 0.001 * kept

    assert sparse_merged([2, 1, 0], ready, numel, 0.1, lambda n: 0.0, gather) == ((2, 1), (0,))
    # Choosing from both at once costs half a second more than apart, as much as is saved.
    assert sparse_merged(
        [2, 1, 0], ready, numel, 0.1, lambda n: 0.5 if n > 100 else 0.0, gather
    ) == per_tensor([2, 1, 0])


def test_selecting_delays_the_gradients_behind_it():
    chosen, end = sparse_finish(
        ((2,), (1, 0)), [1.0, 2.0, 3.0], [10, 10, 20], 0.1, lambda n: 0.1 * n, lambda k: 5.0 * k
    )
    # 1 + 1 = 2, its gather until 7; 2 + 2 + 3 = 7, three entries until 22.
    assert (chosen, end) == (7.0, 22.0)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: buckets([0], [1], 0), "limit = 0"),
        (lambda: buckets([0], [1], 1, 0), "first = 0"),
        (lambda: buckets([0], [1, 2]), "nbytes has 2"),
        (lambda: merged([0], [1.0], [-1], 0.0, 0.0), r"nbytes\[0\] = -1"),
        (lambda: merged([0], [1.0], [1], -1.0, 0.0), "startup = -1.0"),
        (lambda: merged([0], [1.0], [1], 0.0, float("nan")), "per_byte = nan"),
        (lambda: optimal([1, 0], [2.0, 1.0], [1, 1], Cost()), "1.0 after 2.0"),
        (lambda: optimal([0], [], [1], Cost()), "ready has 0"),
        (lambda: finish(((0,), (1,)), [1.0], [1], Cost()), "groups hold 2"),
        (
            lambda: sparse_merged([0], [1.0], [1], 0.0, float, float),
            "density = 0.0",
        ),
    ],
)
def test_bad_input_is_named(call, named):
    with pytest.raises(InputError, match=named):
        call()
