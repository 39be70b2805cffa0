"""Ok-Topk's all-reduce: exact when it estimates, lossless always, bounded in volume."""

from __future__ import annotations

import pytest
import torch

from thinwire import collectives as co
from thinwire.collectives import costs, traffic
from thinwire.collectives.oktopk import adjusted
from thinwire.collectives.sparse import Sparse
from thinwire.compress import select_top
from thinwire.compress.coded import Coded
from thinwire.compress.cost import code_work
from thinwire.errors import InputError, WorkerFailedError
from thinwire.passes import coded_size
from thinwire.seeds import generator_for
from thinwire.wire.packet import header_nbytes

SIZES = [1, 2, 3, 4, 5, 7, 8, 13]
NUMEL, K = 1000, 40


def own_set(rank: int, k: int = K, numel: int = NUMEL, skew: float = 0.0) -> Sparse:
    """A worker's k largest; with a skew, mostly at the beginning of the vector."""
    x = torch.randn(numel, generator=generator_for(0, "oktopk", rank))
    return select_top(x * torch.linspace(1, 0, numel).pow(skew), k)


def even(size: int, numel: int = NUMEL) -> list[int]:
    return co.even_regions(numel, size)


def entries(s: Sparse) -> list[tuple[int, float]]:
    return list(zip(s.index.tolist(), s.value.tolist(), strict=True))


@pytest.mark.parametrize("size", SIZES)
def test_without_a_threshold_it_is_the_exact_top_k_of_the_sum(lab, size):
    found = lab.run(size, lambda c: co.oktopk_all_reduce(c, own_set(c.rank), K, even(size), None))
    expected = co.top(co.sum_sparse([own_set(r) for r in range(size)]), K)
    for chosen, threshold in found:
        assert entries(chosen) == entries(expected)
        assert threshold == float(expected.value.abs().min())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("skew", [0.0, 3.0])
def test_with_a_threshold_it_is_what_passes_and_never_more_than_k(lab, size, skew):
    total = co.sum_sparse([own_set(r, skew=skew) for r in range(size)])
    sums = dict(entries(total))
    magnitudes = total.value.abs().sort(descending=True).values
    for passing in (K // 2, K, min(3 * K, len(total))):
        threshold = float(magnitudes[passing - 1])

        def program(comm, threshold=threshold):
            borders = co.agree_regions(comm, own_set(comm.rank, skew=skew))
            s = own_set(comm.rank, skew=skew)
            return co.oktopk_all_reduce(comm, s, K, borders, threshold)[0]

        results = [entries(chosen) for chosen in lab.run(size, program)]
        assert results == [results[0]] * size
        chosen = dict(results[0])
        assert list(chosen) == sorted(chosen)
        # Whole sums or nothing: what is not in the result is nobody's loss.
        assert all(sums[i] == value and abs(value) >= threshold for i, value in chosen.items())
        assert len(chosen) == passing if passing <= K else K - size < len(chosen) <= K


def test_the_largest_of_a_region_stay_when_too_many_pass(lab):
    chosen, _ = lab.run(1, lambda c: co.oktopk_all_reduce(c, own_set(0), 7, even(1), 0.0))[0]
    assert entries(chosen) == entries(co.top(own_set(0), 7))


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_nothing_passing_is_an_empty_result_and_a_lower_threshold(lab, size):
    for chosen, threshold in lab.run(
        size, lambda c: co.oktopk_all_reduce(c, own_set(c.rank), K, even(size), 1e9)
    ):
        assert len(chosen) == 0
        assert threshold == 0.9e9


@pytest.mark.parametrize("size", [2, 5])
def test_empty_sets_and_empty_regions_are_fine(lab, size):
    nothing = Sparse(torch.empty(0, dtype=torch.int32), torch.empty(0), NUMEL)

    def program(comm, threshold):
        s = own_set(0) if comm.rank == 0 else nothing
        borders = [0, *[NUMEL] * size]  # all of it is rank 0's
        return co.oktopk_all_reduce(comm, s, K, borders, threshold)[0]

    for threshold in (None, 0.0):
        for chosen in lab.run(size, lambda c, t=threshold: program(c, t)):
            assert entries(chosen) == entries(own_set(0))
    for chosen, threshold in lab.run(
        size, lambda c: co.oktopk_all_reduce(c, nothing, K, even(size), None)
    ):
        assert (len(chosen), threshold) == (0, 0.0)


@pytest.mark.parametrize("size", SIZES)
def test_regions_split_the_sets_evenly(lab, size):
    results = lab.run(size, lambda c: co.agree_regions(c, own_set(c.rank, skew=4.0)))
    borders = results[0]
    assert results == [borders] * size
    assert borders[0] == 0
    assert borders[-1] == NUMEL
    assert borders == sorted(borders)
    counts = torch.zeros(size)
    for rank in range(size):
        places = torch.bucketize(own_set(rank, skew=4.0).index, torch.tensor(borders[1:-1]))
        counts += torch.bincount(places, minlength=size)
    assert counts.max() < 2 * counts.mean()


def test_regions_of_empty_sets_are_of_equal_length(lab):
    nothing = Sparse(torch.empty(0, dtype=torch.int32), torch.empty(0), 10)
    assert lab.run(4, lambda c: co.agree_regions(c, nothing)) == [[0, 3, 6, 8, 10]] * 4


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 13, 32])
@pytest.mark.parametrize("skew", [0.0, 4.0])
def test_a_worker_sends_less_than_6k_words_however_many_there_are(lab, size, skew):
    numel, k = 20_000, 640
    sets = [own_set(r, k, numel, skew) for r in range(size)]
    magnitudes = co.sum_sparse(sets).value.abs().sort(descending=True).values

    def program(comm):
        borders = lab_borders[comm.rank]
        return co.oktopk_all_reduce(comm, sets[comm.rank], k, borders, float(magnitudes[k - 1]))

    lab_borders = lab.run(size, lambda c: co.agree_regions(c, sets[c.rank]))
    _, sent, _ = lab.time(size, program, charge_headers=False)
    words = [nbytes / 4 for nbytes in sent]
    numbers = 2 * (size - 1)  # of survivors, 8 bytes each
    assert max(words) - numbers < 6 * k * (size - 1) / size


def test_survivors_of_one_region_are_balanced_before_the_gather(lab):
    size, k = 8, 800

    def program(comm, borders):
        return co.oktopk_all_reduce(comm, own_set(0, k, 10_000), k, borders, 0.0)[0]

    one_owner = [0, *[10_000] * size]
    results = lab.run(size, lambda c: program(c, one_owner))
    assert len(results[0]) == k
    assert all(entries(r) == entries(results[0]) for r in results)
    _, sent, _ = lab.time(size, lambda c: program(c, one_owner))
    # The owner gives (P-1)/P of them away once, and gathers the rest as all do.
    assert sent[0] < 2.1 * 8 * k
    assert max(sent[1:]) < 2.1 * 8 * k


@pytest.mark.parametrize("size", [*range(1, 18), 32])
@pytest.mark.parametrize("k", [1, 5, 480, 10_007])
def test_time_and_bytes_of_even_sets_are_the_formula(lab, size, k):
    meta = Sparse(
        torch.empty(k, dtype=torch.int32, device="meta"), torch.empty(k, device="meta"), 1 << 20
    )
    elapsed, sent, _ = lab.time(
        size, lambda c: co.oktopk_all_reduce(c, meta, k, even(size, 1 << 20), 1.0)
    )
    assert sent == list(traffic.oktopk(size, k))
    assert elapsed == pytest.approx(costs.oktopk(size, k, lab.latency, lab.rate), abs=2e-9)


@pytest.mark.parametrize("size", [2, 4, 8, 32])
def test_the_closed_form_is_the_recurrence(lab, size):
    k = 64 * size
    plan = costs.schedule.oktopk(size, k, lambda n, buffers: n + header_nbytes(buffers))
    ns = costs.schedule.elapsed_ns(plan, 300_000, lambda n: costs.transfer_ns(n, lab.rate))
    assert costs.oktopk(size, k, lab.latency, lab.rate) == pytest.approx(ns / 1e9, abs=1e-12)


@pytest.mark.slow
def test_it_sends_less_than_gtopk_and_top_k_from_some_number_of_workers_on():
    k = 25_600
    for size in (8, 32, 256):
        ours = max(traffic.oktopk(size, k, header=False))
        assert ours < max(traffic.gtopk_tree(size, k, header=False))
        assert ours < traffic.all_gather_sparse(size, k, header=False)[0] / 3


@pytest.mark.parametrize("size", [1, 3, 4])
def test_meta_sets_have_their_nominal_sizes(lab, size):
    meta = Sparse(
        torch.empty(K, dtype=torch.int32, device="meta"), torch.empty(K, device="meta"), NUMEL
    )
    for threshold in (None, 1.0):
        for chosen, _ in lab.run(
            size, lambda c, t=threshold: co.oktopk_all_reduce(c, meta, K, even(size), t)
        ):
            assert (chosen.is_meta, len(chosen)) == (True, K)


@pytest.mark.parametrize("threshold", [None, 0.5])
def test_a_sum_that_is_infinite_is_refused(lab, threshold):
    huge = Sparse(torch.tensor([1, 4]).int(), torch.tensor([3e38, 1.0]), 9)
    with pytest.raises(WorkerFailedError, match="NaN or infinite"):
        lab.run(2, lambda c: co.oktopk_all_reduce(c, huge, 2, even(2, 9), threshold))


def test_a_threshold_moves_by_the_distance_from_k():
    assert [adjusted(1.0, count, 300) for count in (200, 300, 400)] == [1.0] * 3
    assert adjusted(1.0, 401, 300) == pytest.approx((401 / 300) ** 0.25)
    assert adjusted(1.0, 199, 300) == pytest.approx((199 / 300) ** 0.25)
    assert (adjusted(1.0, 0, 300), adjusted(1.0, 10**9, 300)) == (0.9, 1.1)


def test_k_is_at_least_one(lab):
    with pytest.raises(WorkerFailedError) as failed:
        lab.run(1, lambda c: co.oktopk_all_reduce(c, own_set(0), 0, even(1), None))
    assert isinstance(failed.value.__cause__, InputError)


# Coded indices, within the regions that the entries lie in.


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("skew", [0.0, 4.0])
@pytest.mark.parametrize("threshold", [None, 0.3, 1e9])
def test_coded_entries_have_the_same_sum(lab, size, skew, threshold):
    def program(comm, form, borders):
        s = own_set(comm.rank, skew=skew)
        borders = borders or co.agree_regions(comm, s)
        return co.oktopk_all_reduce(comm, s, K, borders, threshold, form=form)

    one_owner = [0, *[NUMEL] * size]
    for borders in (None, even(size), one_owner, [0, *[3] * (size - 1), NUMEL]):
        plain, coded = (
            lab.run(size, lambda c, f=form, b=borders: program(c, f, b))
            for form in (co.Plain(), Coded())
        )
        for (a, at_a), (b, at_b) in zip(plain, coded, strict=True):
            assert entries(a) == entries(b)
            assert at_a == at_b


@pytest.mark.parametrize("size", [2, 5, 8])
def test_empty_coded_sets_are_fine(lab, size):
    nothing = Sparse(torch.empty(0, dtype=torch.int32), torch.empty(0), NUMEL)
    for threshold in (None, 0.5):
        found = lab.run(
            size,
            lambda c, t=threshold: co.oktopk_all_reduce(c, nothing, K, even(size), t, form=Coded()),
        )
        assert [len(chosen) for chosen, _ in found] == [0] * size


@pytest.mark.parametrize("size", [2, 4, 8, 32])
def test_time_and_bytes_of_coded_even_sets_are_the_formula(lab, size):
    numel, k = 1 << 20, 64 * size
    meta = Sparse(
        torch.empty(k, dtype=torch.int32, device="meta"), torch.empty(k, device="meta"), numel
    )
    elapsed, sent, _ = lab.time(
        size, lambda c: co.oktopk_all_reduce(c, meta, k, even(size, numel), 1.0, form=Coded())
    )

    def of(count: int) -> int:
        return 4 * count + coded_size(count, numel // size)

    assert sent == list(traffic.oktopk(size, k, entries=of))
    assert max(sent) < 0.85 * max(traffic.oktopk(size, k))
    least = costs.oktopk(size, k, lab.latency, lab.rate, entries=of)
    # Coding goes on beside the wire in part: no more than all of it comes on top.
    coding = 4 * (size - 1) * code_work(64).memory_bytes / 1e9 + code_work(64).memory_bytes / 1e9
    assert least <= elapsed <= least + coding
