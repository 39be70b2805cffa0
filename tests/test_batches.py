from __future__ import annotations

import pytest
import torch

from thinwire.batches import SampleStream, batch_slice, split_batch
from thinwire.errors import InputError


def test_each_epoch_holds_every_sample_once():
    stream = SampleStream(37, seed=3)
    for epoch in range(3):
        assert sorted(stream.take(37 * epoch, 37).tolist()) == list(range(37))


def test_epochs_are_shuffled_differently():
    stream = SampleStream(50, seed=0)
    assert stream.take(0, 50).tolist() != stream.take(50, 50).tolist()
    assert stream.take(0, 50).tolist() != list(range(50))


def test_the_stream_follows_the_seed_alone():
    first, again, other = (
        SampleStream(40, seed=5),
        SampleStream(40, seed=5),
        SampleStream(40, seed=6),
    )
    torch.manual_seed(1)
    expected = first.take(0, 100)
    torch.manual_seed(2)
    assert torch.equal(again.take(0, 100), expected)
    assert not torch.equal(other.take(0, 100), expected)


def test_taking_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    SampleStream(40, seed=5).take(0, 100)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_pieces_in_any_order_are_parts_of_one_stream():
    whole = SampleStream(11, seed=1).take(0, 300)
    stream = SampleStream(11, seed=1)
    for start, count in [
        (280, 20),
        (0, 7),
        (100, 25),
        (5, 33),
        (150, 150),
        (0, 1),
        (299, 1),
        (3, 0),
    ]:
        assert torch.equal(stream.take(start, count), whole[start : start + count])


def test_what_a_caller_writes_into_a_batch_stays_out_of_the_stream():
    stream = SampleStream(8, seed=0)
    expected = stream.take(0, 8).clone()
    stream.take(0, 8).fill_(-1)
    assert torch.equal(stream.take(0, 8), expected)


def test_few_permutations_are_kept():
    stream = SampleStream(5, seed=0)
    stream.take(0, 5 * 100)
    assert len(stream._epochs) <= 8


def test_an_epoch_in_use_is_not_shuffled_again():
    stream = SampleStream(5, seed=0)
    slow = stream._epoch(0)
    for epoch in range(1, 40):
        stream.take(5 * epoch, 5)
        assert stream._epoch(0) is slow


def test_indices_are_int64():
    stream = SampleStream(5, seed=0)
    assert stream.take(2, 9).dtype == torch.int64
    assert stream.take(0, 0).dtype == torch.int64


@pytest.mark.parametrize("shares", [(4, 4, 4), (1, 6, 5), (12,), (1,) * 12])
def test_the_union_over_ranks_is_the_batch_of_one_process(shares: tuple[int, ...]):
    stream = SampleStream(31, seed=9)  # 12 does not divide 31: steps reach over epochs
    for step in range(20):
        union = [stream.take(*batch_slice(step, rank, shares)) for rank in range(len(shares))]
        assert torch.equal(torch.cat(union), SampleStream(31, seed=9).take(12 * step, 12))


def test_a_batch_may_exceed_the_training_set():
    counts = torch.bincount(SampleStream(4, seed=0).take(0, 14), minlength=4)
    assert counts.sum() == 14
    assert counts.min() >= 3


@pytest.mark.parametrize("num_samples", [0, -1])
def test_an_empty_training_set_is_refused(num_samples: int):
    with pytest.raises(InputError, match="num_samples"):
        SampleStream(num_samples, seed=0)


@pytest.mark.parametrize(("start", "count"), [(-1, 3), (0, -1)])
def test_a_negative_place_is_refused(start: int, count: int):
    with pytest.raises(InputError, match="0 or more"):
        SampleStream(5, seed=0).take(start, count)


@pytest.mark.parametrize(
    ("global_batch", "weights", "size", "expected"),
    [
        (12, None, 4, (3, 3, 3, 3)),
        (10, None, 4, (3, 3, 2, 2)),
        (4, None, 4, (1, 1, 1, 1)),
        (16, [1.0, 2.0, 5.0], 3, (2, 4, 10)),
        (10, [1.0, 1.0, 1.0], 3, (4, 3, 3)),  # equal remainders: the lower rank
        (10, [0.15, 0.35, 0.5], 3, (2, 3, 5)),  # the float 0.15 is just below 0.15, 0.35 too
        (8, [1e-9, 1.0, 1.0], 3, (1, 4, 3)),  # least of one, the rest by weight
        (5, [1e-9, 1e-9, 1.0], 3, (1, 1, 3)),
        (4, [1.0, 1.25, 8.0, 8.0], 4, (1, 1, 1, 1)),
        (7, [3], 1, (7,)),
    ],
)
def test_shares_are_proportional(global_batch, weights, size, expected):
    assert split_batch(global_batch, weights, size) == expected


def test_shares_are_within_one_of_the_exact_proportion():
    generator = torch.Generator().manual_seed(0)
    for size in (2, 3, 7, 20):
        weights = (torch.rand(size, generator=generator) + 0.2).tolist()
        shares = split_batch(50 * size, weights, size)
        assert sum(shares) == 50 * size
        for share, weight in zip(shares, weights, strict=True):
            assert abs(share - 50 * size * weight / sum(weights)) < 1


def test_shares_are_one_or_more_and_sum_exactly():
    generator = torch.Generator().manual_seed(0)
    for size in (1, 2, 5, 9):
        for global_batch in range(size, size + 12):
            weights = torch.rand(size, generator=generator).pow(6).add(1e-12).tolist()
            shares = split_batch(global_batch, weights, size)
            assert sum(shares) == global_batch
            assert min(shares) >= 1
            by_weight = sorted(range(size), key=lambda r: weights[r])
            assert [shares[r] for r in by_weight] == sorted(shares)


@pytest.mark.parametrize(
    ("global_batch", "weights", "size", "match"),
    [
        (3, None, 4, "global_batch = 3 for 4 workers; allowed: 4 or more"),
        (3, None, 0, "size = 0"),
        (8, [1.0, 2.0], 3, "one per worker"),
        (8, [1.0, 0.0], 2, r"weights\[1\] = 0.0"),
        (8, [-1.0, 1.0], 2, r"weights\[0\] = -1.0"),
        (8, [1.0, float("nan")], 2, r"weights\[1\] = nan"),
        (8, [1.0, float("inf")], 2, r"weights\[1\] = inf"),
    ],
)
def test_bad_shares_are_refused(global_batch, weights, size, match):
    with pytest.raises(InputError, match=match):
        split_batch(global_batch, weights, size)
