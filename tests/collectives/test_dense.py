"""Sums and copies arrive on every rank, in place, with equal bits, at any number of workers."""

from __future__ import annotations

import pytest
import torch

from thinwire import collectives as co
from thinwire.collectives import costs
from thinwire.collectives.dense import ALL_GATHERS, ALL_REDUCES
from thinwire.errors import InputError, PeerFinishedError, WorkerFailedError
from thinwire.seeds import generator_for
from thinwire.wire import Work
from thinwire.wire.faults import Crash, FaultPlan

SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 16, 17]
NUMELS = [1, 3, 16, 257]


def data(rank, numel, dtype=torch.float32):
    x = torch.randn(numel, generator=generator_for(0, "collective", rank), dtype=torch.float64)
    return (100 * x).to(dtype)


def scribbled(x, result):
    """A copy of the result; then the caller goes on with its tensor, packets in flight or not."""
    kept = result.clone()
    x.fill_(-1e9)
    return kept


@pytest.mark.parametrize("algorithm", [*ALL_REDUCES, "auto"])
@pytest.mark.parametrize("num_workers", SIZES)
def test_all_ranks_hold_the_same_bits_of_the_sum(lab, algorithm, num_workers):
    for numel in NUMELS:

        def program(comm, numel=numel):
            x = data(comm.rank, numel)
            result = co.all_reduce(comm, x, algorithm)
            assert result is x
            return scribbled(x, x)

        sums = lab.run(num_workers, program)
        exact = sum(data(r, numel, torch.float64) for r in range(num_workers))
        torch.testing.assert_close(sums[0].double(), exact, rtol=1e-5, atol=1e-3)
        assert all(torch.equal(s, sums[0]) for s in sums)


@pytest.mark.parametrize("algorithm", ALL_REDUCES)
def test_integers_are_summed_exactly(lab, algorithm):
    for num_workers in SIZES:
        sums = lab.run(
            num_workers, lambda c: co.all_reduce(c, torch.arange(40) * (c.rank + 1), algorithm)
        )
        total = torch.arange(40) * (num_workers * (num_workers + 1) // 2)
        assert all(torch.equal(s, total) for s in sums)


@pytest.mark.parametrize("algorithm", ALL_REDUCES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int8])
def test_sums_keep_their_dtype_and_agree(lab, algorithm, dtype):
    sums = lab.run(5, lambda c: co.all_reduce(c, torch.ones(11, dtype=dtype) * c.rank, algorithm))
    assert all(torch.equal(s, torch.full((11,), 10, dtype=dtype)) for s in sums)


@pytest.mark.parametrize("algorithm", ALL_REDUCES)
def test_half_precision_sums_agree_to_the_bit_where_they_round(lab, algorithm):
    for num_workers in (3, 4, 7):
        sums = lab.run(
            num_workers, lambda c: co.all_reduce(c, data(c.rank, 50, torch.bfloat16), algorithm)
        )
        assert all(torch.equal(s, sums[0]) for s in sums)


@pytest.mark.parametrize("algorithm", ALL_REDUCES)
def test_strided_and_shaped_tensors_are_summed_in_place(lab, algorithm):
    def program(comm):
        whole = torch.zeros(6, 8)
        x = whole[:, ::2].t()
        x += comm.rank + torch.arange(24.0).view(4, 6)
        co.all_reduce(comm, x, algorithm)
        return whole

    for whole in lab.run(3, program):
        assert torch.equal(whole[:, ::2].t(), 3 + 3 * torch.arange(24.0).view(4, 6))
        assert not whole[:, 1::2].any()


def test_a_leaf_that_requires_gradients_is_summed_without_graph(lab):
    def program(comm):
        x = torch.ones(5, requires_grad=True)
        return co.all_reduce(comm, x)

    for x in lab.run(2, program):
        assert x.is_leaf
        assert torch.equal(x.detach(), torch.full((5,), 2.0))


def test_signed_zeros_infinities_and_nan_survive(lab):
    special = torch.tensor([-0.0, torch.inf, torch.nan, -torch.inf])
    for algorithm in ALL_REDUCES:
        for s in lab.run(4, lambda c, a=algorithm: co.all_reduce(c, special.clone(), a)):
            assert torch.equal(s[1::2], special[1::2])
            assert s[2].isnan()
            assert torch.signbit(s[0])


@pytest.mark.parametrize("num_workers", SIZES)
def test_reduce_sums_at_any_root_and_leaves_the_others_alone(lab, num_workers):
    for root in sorted({0, num_workers // 2, num_workers - 1}):

        def program(comm, root=root):
            x = torch.full((7,), float(comm.rank + 1))
            return scribbled(x, co.reduce(comm, x, root))

        total = num_workers * (num_workers + 1) / 2
        for rank, x in enumerate(lab.run(num_workers, program)):
            assert torch.equal(x, torch.full((7,), total if rank == root else rank + 1.0))


@pytest.mark.parametrize("num_workers", SIZES)
def test_broadcast_copies_from_any_root(lab, num_workers):
    for root in sorted({0, num_workers // 2, num_workers - 1}):

        def program(comm, root=root):
            x = data(comm.rank, 9)
            return scribbled(x, co.broadcast(comm, x, root))

        for x in lab.run(num_workers, program):
            assert torch.equal(x, data(root, 9))


def test_broadcast_sends_the_far_half_first(lab):
    order = []

    def program(comm):
        post = comm.post
        comm.post = lambda dst, *a, **o: (order.append((comm.rank, dst)), post(dst, *a, **o))[1]
        co.broadcast(comm, torch.zeros(10))

    lab.run(8, program)
    assert [dst for src, dst in order if src == 0] == [4, 2, 1]
    assert [dst for src, dst in order if src == 4] == [6, 5]


@pytest.mark.parametrize("num_workers", SIZES)
def test_gather_collects_by_rank_at_the_root_only(lab, num_workers):
    root = num_workers - 1

    def program(comm):
        x = data(comm.rank, 6).view(2, 3)
        gathered = co.gather(comm, x, root)
        x.fill_(-1e9)
        return gathered

    *others, gathered = lab.run(num_workers, program)
    assert others == [None] * root
    for rank, x in enumerate(gathered):
        assert torch.equal(x, data(rank, 6).view(2, 3))


@pytest.mark.parametrize("algorithm", ALL_GATHERS)
@pytest.mark.parametrize("num_workers", SIZES)
def test_all_gather_collects_by_rank_everywhere(lab, algorithm, num_workers):
    def program(comm):
        x = data(comm.rank, 6).view(2, 3)
        gathered = co.all_gather(comm, x, algorithm)
        x.fill_(-1e9)
        kept = [g.clone() for g in gathered]
        for g in gathered:
            g.fill_(1e9)  # the results are the caller's own
        return kept

    for gathered in lab.run(num_workers, program):
        assert len(gathered) == num_workers
        for rank, x in enumerate(gathered):
            assert torch.equal(x, data(rank, 6).view(2, 3))


@pytest.mark.parametrize("num_workers", SIZES)
def test_reduce_scatter_deals_out_the_sum_in_runs(lab, num_workers):
    for numel in NUMELS:

        def program(comm, numel=numel):
            x = torch.arange(numel) * (comm.rank + 1)
            run = co.reduce_scatter(comm, x)
            x.fill_(-1)
            kept = run.clone()
            run.fill_(-1)
            return kept

        runs = lab.run(num_workers, program)
        total = torch.arange(numel) * (num_workers * (num_workers + 1) // 2)
        assert torch.equal(torch.cat(runs), total)
        lengths = [len(r) for r in runs]
        assert lengths == sorted(lengths, reverse=True)
        assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("num_workers", SIZES)
def test_nobody_leaves_a_barrier_before_the_last_has_come(lab, num_workers):
    def program(comm):
        comm.spend(Work(elapsed=0.1 * comm.rank))
        came = comm.now()
        co.barrier(comm)
        return came, comm.now()

    times = lab.run(num_workers, program)
    last = max(came for came, _ in times)
    assert all(left >= last for _, left in times)
    took = max(left for _, left in times) - last
    assert took <= costs.barrier(num_workers, lab.latency, lab.rate) + 1e-9


def test_collectives_may_follow_each_other_under_one_tag(lab):
    def program(comm):
        x = torch.ones(10)
        for algorithm in [*ALL_REDUCES, *ALL_REDUCES]:
            co.all_reduce(comm, x, algorithm, tag="t")
            co.broadcast(comm, x, root=1, tag="t")
        return x

    for x in lab.run(3, program):
        assert torch.equal(x, torch.full((10,), 3.0 ** (2 * len(ALL_REDUCES))))


def test_collectives_run_side_by_side_in_tasks_begun_in_different_order(lab):
    def program(comm):
        keys = ["a", "b", "c"] if comm.rank % 2 else ["c", "b", "a"]
        tasks = {
            key: comm.start(lambda c, k=key: co.all_reduce(c, torch.full((4,), float(ord(k)))), key)
            for key in keys
        }
        return [float(tasks[key].wait()[0]) for key in ("a", "b", "c")]

    assert lab.run(4, program) == [[4 * 97.0, 4 * 98.0, 4 * 99.0]] * 4


@pytest.mark.parametrize("algorithm", ALL_REDUCES)
def test_meta_tensors_take_the_time_of_real_ones(lab, algorithm):
    for num_workers in (4, 7):
        times = [
            lab.time(num_workers, lambda c, d=device: co.all_reduce(c, torch.zeros(99, device=d)))
            for device in ("cpu", "meta")
        ]
        assert times[0] == times[1]


def test_empty_tensors_send_nothing(lab):
    def program(comm):
        co.all_reduce(comm, torch.empty(0))
        co.reduce(comm, torch.empty(0))
        co.broadcast(comm, torch.empty(0))
        assert [len(x) for x in co.all_gather(comm, torch.empty(0))] == [0] * comm.size
        assert len(co.reduce_scatter(comm, torch.empty(0))) == 0
        co.gather(comm, torch.empty(0))

    _, sent, _ = lab.time(4, program)
    assert sent == [0] * 4


def test_a_broadcast_may_carry_booleans_but_a_sum_may_not(lab):
    for x in lab.run(2, lambda c: co.broadcast(c, torch.tensor([c.rank == 0]))):
        assert x.all()
    with pytest.raises(WorkerFailedError, match=r"torch\.bool cannot be summed"):
        lab.run(2, lambda c: co.all_reduce(c, torch.tensor([True])))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c: co.all_reduce(c, torch.zeros(2), "rnig"), "did you mean 'ring'"),
        (lambda c: co.all_gather(c, torch.zeros(2), "bruck"), "algorithm = 'bruck'; valid: doubl"),
        (lambda c: co.broadcast(c, torch.zeros(2), 2), r"root = 2; valid: 0\.\.1"),
        (lambda c: co.reduce(c, torch.zeros(2), -1), r"root = -1; valid: 0\.\.1"),
        (lambda c: co.gather(c, torch.zeros(2), 5), r"root = 5; valid: 0\.\.1"),
        (lambda c: co.all_reduce(c, torch.zeros(2, dtype=torch.complex64)), "complex64 cannot"),
        (
            lambda c: co.all_reduce(c, torch.zeros(2 + c.rank), "tree"),
            "rank 1 sent 3 x torch",
        ),
        (
            lambda c: co.broadcast(c, torch.zeros(2, dtype=[torch.int8, torch.int16][c.rank])),
            "rank 0 sent 2 x torch.int8 where 2 x torch.int16 were due",
        ),
    ],
)
def test_wrong_calls_are_refused_by_name(lab, call, text):
    with pytest.raises(WorkerFailedError, match=text) as caught:
        lab.run(2, call)
    assert isinstance(caught.value.__cause__, InputError)


def test_a_rank_that_left_ends_the_collective_by_name(lab):
    def program(comm):
        comm.step = 1
        if comm.rank == 0:
            with pytest.raises(PeerFinishedError, match="rank 2 has left"):
                co.all_reduce(comm, torch.ones(8), "tree")

    world = lab.world(3, losses="elastic", faults=FaultPlan((Crash(rank=2, step=1),)))

    def second(comm):
        co.reduce(comm, torch.ones(8), tag="all_reduce")

    world.run(lambda c: second(c) if c.rank == 1 else program(c))


def test_the_rule_for_auto_is_as_documented():
    ring = co.choose_all_reduce(4, 4 * 64 * 1024)
    below = co.choose_all_reduce(4, 4 * 64 * 1024 - 1)
    assert (ring, below, co.choose_all_reduce(6, 8)) == ("ring", "halving_doubling", "tree")
    assert co.choose_all_reduce(4, 4 * 256 * 1024 - 1) == "ring"
    assert co.choose_all_reduce(4, 4 * 256 * 1024) == "segmented_ring"
