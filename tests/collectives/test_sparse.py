"""Sparse sums, their collectives, and what gTop-k promises and does not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from thinwire import collectives as co
from thinwire.collectives.sparse import Sparse, index_dtype, keep_largest
from thinwire.compress import select_top
from thinwire.errors import InputError, NonFiniteError, WorkerFailedError
from thinwire.seeds import generator_for
from thinwire.wire.base import Work

SIZES = [1, 2, 3, 4, 5, 7, 8, 13, 16]


def random_set(k, numel, *labels, coarse=False, dtype=torch.float32):
    """k entries at random; `coarse` values tie and cancel often."""
    generator = generator_for(0, "sparse", *labels)
    index = torch.randperm(numel, generator=generator)[:k].sort().values.int()
    value = torch.randn(k, generator=generator, dtype=torch.float64)
    if coarse:
        value = value.mul(2).round() + 0.5 * (value == 0)
    return Sparse(index, value.to(dtype), numel)


def entries(s):
    return list(zip(s.index.tolist(), s.value.tolist(), strict=True))


def same(a, b):
    return a.numel == b.numel and torch.equal(a.index, b.index) and torch.equal(a.value, b.value)


def reference_merge(a, b, k):
    """The paper's dictionary, with the tie order: larger magnitude, then smaller index."""
    s = dict(entries(a))
    for i, v in entries(b):
        s[i] = float(np.float32(s.get(i, 0.0)) + np.float32(v))
    return sorted(sorted(s.items(), key=lambda e: (-abs(e[1]), e[0]))[:k])


# Sums and the largest entries.


@pytest.mark.parametrize("coarse", [False, True])
def test_merge_is_dense_addition_then_top_k(coarse):
    for case in range(60):
        numel = 5 + 7 * case
        k = 1 + case % min(5, numel)
        a = random_set(k, numel, case, "a", coarse=coarse)
        b = random_set(k, numel, case, "b", coarse=coarse)
        merged = co.top(co.merge(a, b), k)
        assert entries(merged) == reference_merge(a, b, k)
        dense = a.to_dense() + b.to_dense()
        assert torch.equal(co.merge(a, b).to_dense(), dense)
        if int((dense != 0).sum()) >= k and not (merged.value == 0).any():
            assert same(merged, select_top(dense, k))


def test_merge_is_commutative_to_the_bit():
    for case in range(30):
        a, b = (random_set(40, 100, case, name) for name in "ab")
        assert same(co.merge(a, b), co.merge(b, a))


def test_merge_keeps_indices_whose_values_cancel():
    a = Sparse(torch.tensor([1, 4]).int(), torch.tensor([2.0, 1.0]), 9)
    b = Sparse(torch.tensor([4, 8]).int(), torch.tensor([-1.0, 3.0]), 9)
    assert entries(co.merge(a, b)) == [(1, 2.0), (4, 0.0), (8, 3.0)]
    assert entries(co.top(co.merge(a, b), 2)) == [(1, 2.0), (8, 3.0)]


def test_merge_with_nothing_is_the_other():
    s, nothing = random_set(5, 20), random_set(0, 20)
    assert same(co.merge(s, nothing), s)
    assert same(co.merge(nothing, s), s)
    assert len(co.merge(nothing, nothing)) == 0


def test_merge_reaches_the_ends_of_large_vectors():
    numel = 2**31
    a = Sparse(torch.tensor([0, numel - 1]).int(), torch.tensor([1.0, 2.0]), numel)
    merged = co.merge(a, a)
    assert entries(merged) == [(0, 2.0), (numel - 1, 4.0)]
    assert (index_dtype(numel), index_dtype(numel + 1)) == (torch.int32, torch.int64)
    wide = Sparse(torch.tensor([5, numel]), torch.tensor([1.0, 2.0]), numel + 1)
    assert entries(co.merge(wide, wide))[1] == (numel, 4.0)


def test_ties_go_to_the_smaller_index():
    s = Sparse(torch.arange(6).int(), torch.tensor([1.0, -2.0, 2.0, 3.0, -2.0, 2.0]), 6)
    assert co.top(s, 3).index.tolist() == [1, 2, 3]
    assert co.top(s, 4).index.tolist() == [1, 2, 3, 4]
    assert keep_largest(np.zeros(4), 2).tolist() == [True, True, False, False]


def test_split_top_divides_without_loss():
    for k in (1, 7, 39, 40, 50):
        s = random_set(40, 90, k, coarse=True)
        kept, rest = co.split_top(s, k)
        assert same(kept, co.top(s, k))
        assert len(kept) + len(rest) == 40
        assert torch.equal(kept.to_dense() + rest.to_dense(), s.to_dense())


def test_sum_of_many_sets_is_the_dense_sum():
    for count in (1, 2, 3, 5, 8, 9):
        sets = [random_set(20, 50, r, coarse=True) for r in range(count)]
        dense = torch.stack([s.to_dense() for s in sets]).sum(0)
        assert torch.equal(co.sum_sparse(sets).to_dense(), dense)


def test_an_overflowing_sum_is_refused_not_selected_from():
    big = Sparse(torch.arange(3).int(), torch.full((3,), 3e38), 3)
    with pytest.raises(NonFiniteError, match="NaN or infinite"):
        co.top(co.merge(big, big), 2)


def test_entries_are_added_into_dense_tensors_of_any_float_dtype_and_shape():
    s = Sparse(torch.tensor([1, 5]).int(), torch.tensor([2.0, -3.0]), 6)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        dense = torch.ones(2, 3, dtype=dtype)
        assert s.add_into(dense) is dense
        assert dense.flatten().tolist() == [1, 3, 1, 1, 1, -2]
        assert s.zero_in(dense).flatten().tolist() == [1, 0, 1, 1, 1, 0]


def test_scaling_and_taking_leave_the_original_alone():
    s = Sparse(torch.tensor([1, 5]).int(), torch.tensor([2.0, -3.0]), 6)
    assert entries(s.scaled(0.5)) == [(1, 1.0), (5, -1.5)]
    assert entries(s.take(torch.tensor([False, True]))) == [(5, -3.0)]
    assert entries(s) == [(1, 2.0), (5, -3.0)]


INDEX, VALUE = torch.tensor([1, 2]).int(), torch.tensor([1.0, 2.0])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Sparse(INDEX, VALUE[:1], 9), r"shape \(2,\), value of shape \(1,\)"),
        (lambda: Sparse(INDEX.long(), VALUE, 9), "for 9 elements it is torch.int32"),
        (lambda: Sparse(INDEX, VALUE.half(), 9), "valid: torch.float32, torch.float64"),
        (lambda: Sparse(INDEX, VALUE.to("meta"), 9), "both must be on cpu"),
        (lambda: co.merge(Sparse(INDEX, VALUE, 9), Sparse(INDEX, VALUE, 8)), "of 9 x .* and 8 x"),
        (lambda: co.merge(Sparse(INDEX, VALUE, 9), Sparse(INDEX, VALUE.double(), 9)), "float64"),
        (lambda: co.top(Sparse(INDEX, VALUE, 9), 0), "k = 0; it must be >= 1"),
        (lambda: co.split_top(Sparse(INDEX, VALUE, 9), -1), "k = -1"),
        (lambda: co.sum_sparse([]), "at least one"),
        (lambda: Sparse(INDEX, VALUE, 9).add_into(torch.zeros(8)), "9 elements meets a dense .* 8"),
    ],
)
def test_impossible_sets_are_refused_by_name(call, text):
    with pytest.raises(InputError, match=text):
        call()


def test_meta_sets_stand_for_their_nominal_sizes():
    def meta(k):
        return select_top(torch.empty(100, device="meta"), k)

    merged = co.merge(meta(30), meta(40))
    assert (len(merged), len(co.top(merged, 30)), len(co.merge(merged, meta(40)))) == (70, 30, 100)
    assert [len(s) for s in co.split_top(merged, 30)] == [30, 40]
    assert merged.is_meta
    assert merged.to_dense().is_meta
    assert len(merged.scaled(2.0)) == 70
    dense = torch.ones(100)
    assert torch.equal(merged.zero_in(merged.add_into(dense)), torch.ones(100))


# The gather.


@pytest.mark.parametrize("num_workers", SIZES)
def test_sparse_gather_collects_sets_of_different_sizes_by_rank(lab, num_workers):
    def own(rank):
        return random_set(rank % 4 * 3, 50, rank)  # rank 0's and others' are empty

    for gathered in lab.run(num_workers, lambda c: co.all_gather_sparse(c, own(c.rank))):
        assert len(gathered) == num_workers
        assert all(same(s, own(r)) for r, s in enumerate(gathered))


# gTop-k.


def gtopk(lab, num_workers, k, own, conserving=False):
    run = co.gtopk_all_reduce_conserving if conserving else co.gtopk_all_reduce
    return lab.run(num_workers, lambda c: run(c, own(c.rank), k))


def reference_gtopk(sets, k):
    """The paper's rounds, written with lists."""
    sets, step = [list(map(tuple, entries(s))) for s in sets], 1
    numel = 10**6
    while step < len(sets):
        for rank in range(0, len(sets) - step, 2 * step):
            a, b = sets[rank], sets[rank + step]
            sets[rank] = reference_merge(as_sparse(a, numel), as_sparse(b, numel), k)
        step *= 2
    return sets[0]


def as_sparse(pairs, numel):
    index = torch.tensor([i for i, _ in pairs]).int()
    return Sparse(index, torch.tensor([v for _, v in pairs]), numel)


@pytest.mark.parametrize("num_workers", SIZES)
def test_gtopk_is_the_papers_tree_and_equal_on_all_ranks(lab, num_workers):
    for case, (k, numel) in enumerate([(1, 3), (5, 12), (10, 1000)]):

        def own(rank, k=k, numel=numel, case=case):
            return random_set(k, numel, case, rank, coarse=True)

        results = gtopk(lab, num_workers, k, own)
        expected = reference_gtopk([own(r) for r in range(num_workers)], k)
        for rank, (result, hit) in enumerate(results):
            assert entries(result) == expected
            assert same(result, results[0][0])
            assert hit.tolist() == [i in dict(expected) for i, _ in entries(own(rank))]


def test_gtopk_of_two_is_the_exact_top_k_of_the_sum(lab):
    for case in range(20):
        a, b = (random_set(8, 40, case, r) for r in range(2))
        (result, _), _ = gtopk(lab, 2, 8, lambda r, a=a, b=b: (a, b)[r])
        assert same(result, select_top(a.to_dense() + b.to_dense(), 8))


def test_gtopk_of_more_need_not_be_the_exact_top_k(lab):
    # Index 5 has the largest sum, but both first merges drop it.
    sets = [
        [(0, 5.0), (5, 4.0)],
        [(1, 5.0), (2, 1.0)],
        [(3, 5.0), (5, 4.0)],
        [(4, 5.0), (6, 1.0)],
    ]
    (result, _), *_ = gtopk(lab, 4, 2, lambda r: as_sparse(sets[r], 9))
    exact = co.top(co.sum_sparse([as_sparse(s, 9) for s in sets]), 2)
    assert 5 in exact.index
    assert 5 not in result.index


@pytest.mark.parametrize("num_workers", SIZES)
def test_gtopk_of_equal_sets_is_the_set_times_the_workers(lab, num_workers):
    own = random_set(6, 30, "common", coarse=True)
    for result, hit in gtopk(lab, num_workers, 6, lambda r: own):
        assert torch.equal(result.index, own.index)
        assert torch.equal(result.value, own.value * num_workers)
        assert hit.all()


@pytest.mark.parametrize("num_workers", [2, 3, 4, 8, 11, 16])
def test_gtopk_sends_two_sets_a_rank_beyond_the_first(lab, num_workers):
    k = 25
    _, sent, messages = lab.time(
        num_workers,
        lambda c: co.gtopk_all_reduce(c, random_set(k, 1000, c.rank), k),
        charge_headers=False,
    )
    assert sum(messages) == 2 * (num_workers - 1)
    assert sum(sent) == 2 * (num_workers - 1) * 8 * k


@pytest.mark.parametrize("num_workers", SIZES)
def test_put_back_returns_rejected_values_and_clears_used_ones(lab, num_workers):
    k, numel = 6, 60

    def accumulated(rank):
        return torch.randn(numel, generator=generator_for(1, "gradient", rank))

    def program(comm):
        memory = accumulated(comm.rank)
        own = select_top(memory, k)
        own.zero_in(memory)
        result, hit = co.gtopk_all_reduce(comm, own, k)
        own.take(~hit).add_into(memory)
        return memory, own, result

    for rank, (memory, own, result) in enumerate(lab.run(num_workers, program)):
        before = accumulated(rank)
        chosen, won = own.index.tolist(), result.index.tolist()
        used = [i for i in chosen if i in won]
        assert not memory[used].any()
        rest = [i for i in range(numel) if i not in used]
        assert torch.equal(memory[rest], before[rest])


LOSS = [  # index 0: dropped by ranks 0 and 1, won through ranks 2 and 3
    [(0, 1.0), (1, 5.0)],
    [(2, 5.0), (3, 4.0)],
    [(0, 9.0), (1, 1.0)],
    [(0, 9.0), (2, 1.0)],
]


def left_over(lab, conserving):
    """Inputs minus what was applied and what every worker got back."""
    sets = [as_sparse(s, 4) for s in LOSS]
    outcomes = gtopk(lab, 4, 2, sets.__getitem__, conserving)
    total = sum(s.to_dense() for s in sets) - outcomes[0][0].to_dense()
    for own, (_, second) in zip(sets, outcomes, strict=True):
        total -= (second if conserving else own.take(~second)).to_dense()
    return total


def test_the_papers_gtopk_loses_mass_that_was_merged_away(lab):
    lost = left_over(lab, conserving=False)
    assert lost[0] == 1.0  # rank 0's share of a winning index, truncated at its first merge


def test_the_conserving_variant_loses_nothing(lab):
    assert not left_over(lab, conserving=True).any()


@pytest.mark.parametrize("num_workers", SIZES)
def test_inputs_are_applied_or_remembered_over_many_rounds(lab, num_workers):
    numel, k, rounds = 40, 4, 12

    def gradient(rank, step):
        generator = generator_for(2, "gradient", rank, step)
        return torch.randn(numel, generator=generator, dtype=torch.float64)

    def program(comm):
        memory, applied = (torch.zeros(numel, dtype=torch.float64) for _ in range(2))
        for step in range(rounds):
            memory += gradient(comm.rank, step)
            own = select_top(memory, k)
            own.zero_in(memory)
            result, dropped = co.gtopk_all_reduce_conserving(comm, own, k)
            dropped.add_into(memory)
            result.add_into(applied)
        return memory, applied

    outcomes = lab.run(num_workers, program)
    inputs = sum(gradient(r, s) for r in range(num_workers) for s in range(rounds))
    kept = outcomes[0][1] + sum(memory for memory, _ in outcomes)
    torch.testing.assert_close(kept, inputs, rtol=0, atol=1e-12)
    assert all(torch.equal(applied, outcomes[0][1]) for _, applied in outcomes)


def test_both_variants_give_the_same_result(lab):
    for num_workers in SIZES:
        faithful, conserving = (
            gtopk(lab, num_workers, 5, lambda r: random_set(5, 30, r, coarse=True), flag)
            for flag in (False, True)
        )
        assert same(faithful[0][0], conserving[0][0])


def test_meta_sets_take_the_time_of_real_ones(lab):
    k = 7

    def own(rank, device):
        s = random_set(k, 60, rank)
        return Sparse(s.index.to(device), s.value.to(device), s.numel)

    for run in (co.gtopk_all_reduce, co.gtopk_all_reduce_conserving):
        real, meta = (
            lab.time(6, lambda c, d=device, f=run: f(c, own(c.rank, d), k))
            for device in ("cpu", "meta")
        )
        assert real == meta


def test_a_set_of_more_than_k_is_refused(lab):
    with pytest.raises(WorkerFailedError, match="k = 3 with a set of 4 entries"):
        gtopk(lab, 2, 3, lambda r: random_set(4, 10, r))


@pytest.mark.parametrize("num_workers", SIZES)
def test_what_is_to_be_done_meanwhile_is_done_once_on_every_rank(lab, num_workers):
    def program(comm):
        done = []
        own = random_set(4, 30, comm.rank)
        for i, call in enumerate((co.gtopk_all_reduce, co.gtopk_all_reduce_conserving)):
            call(comm, own, 4, tag=f"tree {i}", meanwhile=lambda i=i: done.append(i))
        co.all_gather_sparse(comm, own, meanwhile=lambda: done.append(2))
        return done

    assert lab.run(num_workers, program) == [[0, 1, 2]] * num_workers


def test_work_done_meanwhile_hides_behind_the_wire(lab):
    k, numel = 1000, 100_000
    sets = [random_set(k, numel, rank) for rank in range(4)]
    seconds = 8 * k / lab.rate / 2

    def program(comm, before):
        work = Work(elapsed=seconds)
        if before:
            comm.spend(work)
        co.gtopk_all_reduce(
            comm, sets[comm.rank], k, meanwhile=None if before else lambda: comm.spend(work)
        )

    idle, hidden, shown = (
        lab.time(4, call)[0]
        for call in (
            lambda c: co.gtopk_all_reduce(c, sets[c.rank], k),
            lambda c: program(c, False),
            lambda c: program(c, True),
        )
    )
    assert hidden == idle
    assert shown == pytest.approx(idle + seconds)
