"""The simulator is held to the formulas, exactly, and the formulas to the published table."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from thinwire import collectives as co
from thinwire.collectives import _schedule as schedule
from thinwire.collectives import costs, traffic
from thinwire.collectives.sparse import Sparse
from thinwire.errors import InputError
from thinwire.wire import Packet

SIZES = [*range(1, 18), 32]
NUMELS = [0, 5, 10_007]  # none, fewer than most numbers of workers, no multiple of any


def dense(numel):
    return torch.empty(numel, device="meta")


def sparse(k, numel=1 << 24):
    return Sparse(
        torch.empty(k, dtype=torch.int32, device="meta"), torch.empty(k, device="meta"), numel
    )


DENSE = {
    "all_reduce_ring": lambda c, n: co.all_reduce(c, dense(n), "ring"),
    "all_reduce_segmented_ring": lambda c, n: co.all_reduce(c, dense(n), "segmented_ring"),
    "all_reduce_halving_doubling": lambda c, n: co.all_reduce(c, dense(n), "halving_doubling"),
    "all_reduce_tree": lambda c, n: co.all_reduce(c, dense(n), "tree"),
    "reduce": lambda c, n: co.reduce(c, dense(n)),
    "broadcast": lambda c, n: co.broadcast(c, dense(n)),
    "gather": lambda c, n: co.gather(c, dense(n)),
    "reduce_scatter_ring": lambda c, n: co.reduce_scatter(c, dense(n)),
    "all_gather_ring": lambda c, n: co.all_gather(c, dense(n), "ring"),
    "all_gather_doubling": lambda c, n: co.all_gather(c, dense(n), "doubling"),
    "all_gather_sparse": lambda c, n: co.all_gather_sparse(c, sparse(n)),
}

# Two messages never meet on a link in these, so the two link models must agree.
WITHOUT_CONTENTION = [
    "all_reduce_ring",
    "all_reduce_segmented_ring",
    "broadcast",
    "reduce_scatter_ring",
    "all_gather_ring",
    "all_gather_doubling",
    "all_gather_sparse",
]


def expected(lab, name, num_workers, n, header=True):
    elapsed = getattr(costs, name)(num_workers, n, lab.latency, lab.rate, header=header)
    return elapsed, list(getattr(traffic, name)(num_workers, n, header=header))


@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("num_workers", SIZES)
def test_simulated_time_and_bytes_are_the_formula(lab, name, num_workers):
    for n in NUMELS:
        elapsed, sent, _ = lab.time(num_workers, lambda c, n=n: DENSE[name](c, n))
        assert (elapsed, sent) == expected(lab, name, num_workers, n), n


@pytest.mark.parametrize("name", DENSE)
def test_formula_holds_without_headers(lab, name):
    for num_workers in (2, 5, 8):
        elapsed, sent, _ = lab.time(
            num_workers, lambda c: DENSE[name](c, 1000), charge_headers=False
        )
        assert (elapsed, sent) == expected(lab, name, num_workers, 1000, header=False)


@pytest.mark.parametrize("name", WITHOUT_CONTENTION)
@pytest.mark.parametrize("num_workers", [2, 3, 4, 7, 8, 16])
def test_both_link_models_agree_where_no_messages_meet(lab, name, num_workers):
    for n in (1, 1000):
        elapsed, *_ = lab.time(num_workers, lambda c, n=n: DENSE[name](c, n), link_model="fair")
        assert elapsed == expected(lab, name, num_workers, n)[0]


@pytest.mark.parametrize("name", ["all_reduce_halving_doubling", "all_reduce_tree", "reduce"])
@pytest.mark.parametrize("num_workers", [2, 4, 8, 32])
def test_both_link_models_agree_at_powers_of_two(lab, name, num_workers):
    elapsed, *_ = lab.time(num_workers, lambda c: DENSE[name](c, 1024), link_model="fair")
    assert elapsed == expected(lab, name, num_workers, 1024)[0]


@pytest.mark.parametrize("num_workers", SIZES)
def test_gtopk_time_and_bytes_are_the_formula(lab, num_workers):
    for k in (1, 25_000):
        elapsed, sent, _ = lab.time(
            num_workers, lambda c, k=k: co.gtopk_all_reduce(c, sparse(k), k)
        )
        assert (elapsed, sent) == expected(lab, "gtopk_tree", num_workers, k)


@pytest.mark.parametrize("num_workers", SIZES)
def test_barrier_time_and_bytes_are_the_formula(lab, num_workers):
    elapsed, sent, _ = lab.time(num_workers, co.barrier)
    assert elapsed == costs.barrier(num_workers, lab.latency, lab.rate)
    assert sent == list(traffic.barrier(num_workers))


@pytest.mark.parametrize("num_workers", [1, 2, 5, 8])
def test_parameter_server_is_a_gather_and_its_answers(lab, num_workers):
    numel, packet = 1000, Packet((dense(1000),))

    def worker(comm):
        comm.post(comm.size, packet)
        comm.wait(comm.size)

    def server(comm):
        for rank in range(comm.size):
            comm.wait(rank)
        for rank in range(comm.size):
            comm.post(rank, packet)

    apart = lab.world(
        num_workers + 1, placement=range(num_workers), num_servers=1, server_nodes=[num_workers]
    )
    apart.run(worker, server)
    assert apart.elapsed == costs.parameter_server(num_workers, numel, lab.latency, lab.rate)
    sent = [e.meter.sent for e in apart.endpoints]
    assert sent == list(traffic.parameter_server(num_workers, numel))


def test_sparse_gather_of_many_workers_deals_its_blocks_out_to_packets(lab):
    num_workers = 256
    elapsed, sent, messages = lab.time(num_workers, lambda c: co.all_gather_sparse(c, sparse(3)))
    assert (elapsed, sent) == expected(lab, "all_gather_sparse", num_workers, 3)
    assert max(messages) > schedule.rounds(num_workers)


# Closed forms, written again from the literature.


@pytest.mark.parametrize("num_workers", [2, 4, 8, 32])
def test_formulas_are_the_closed_forms_at_powers_of_two(num_workers):
    latency, beta, numel = 1e-3, 1e-6, 32 * 1000
    log2, n = int(math.log2(num_workers)), 4 * numel
    share = (num_workers - 1) / num_workers
    arguments = num_workers, numel, latency, 1 / beta
    for name, form in {
        "all_reduce_ring": 2 * (num_workers - 1) * latency + 2 * share * n * beta,
        "all_reduce_halving_doubling": 2 * log2 * latency + 2 * share * n * beta,
        "all_reduce_tree": 2 * log2 * (latency + n * beta),
        "reduce": log2 * (latency + n * beta),
        "broadcast": log2 * (latency + n * beta),
        "gather": latency + (num_workers - 1) * n * beta,
        "all_gather_ring": (num_workers - 1) * (latency + n * beta),
        "all_gather_doubling": log2 * latency + (num_workers - 1) * n * beta,
        "gtopk_tree": 2 * log2 * (latency + 2 * n * beta),
        "all_gather_sparse": log2 * latency + 2 * (num_workers - 1) * n * beta,
    }.items():
        assert getattr(costs, name)(*arguments, header=False) == pytest.approx(form, rel=1e-9), name


@pytest.mark.parametrize("num_workers", SIZES)
def test_broadcast_never_takes_more_than_the_rounds_of_the_full_tree(num_workers):
    rounds = schedule.rounds(num_workers)
    for numel in (1, 10_000):
        full = rounds * costs.message_ns(4 * numel + 24, 1e-3, 1e6) / 1e9
        assert costs.broadcast(num_workers, numel, 1e-3, 1e6) <= full


@pytest.mark.parametrize("num_workers", [2, 4, 8, 16, 32])
def test_recurrence_and_closed_form_agree_at_powers_of_two(num_workers):
    net = costs.Network(0.3e-3, 12.5e6, True)
    for numel in (32, 96, 3200):
        plan = schedule.halving_doubling(num_workers, numel, lambda n: net.size(4 * n))
        closed = costs.all_reduce_halving_doubling(num_workers, numel, 0.3e-3, 12.5e6)
        assert net.run(plan) == closed
        down = schedule.broadcast(num_workers, net.size(4 * numel))
        assert net.run(down) == costs.broadcast(num_workers, numel, 0.3e-3, 12.5e6)


@pytest.mark.parametrize("num_workers", [2, 3, 4, 7, 8, 32])
@pytest.mark.parametrize("latency", [0.0, 0.3e-3, 0.5])
def test_segments_take_the_closed_form_where_they_are_equal(lab, num_workers, latency):
    net = costs.Network(latency, 12.5e6, True)
    for per_segment in (1, 1000):
        numel = num_workers * schedule.SEGMENTS * per_segment
        plan = schedule.segmented_ring(num_workers, numel, lambda n: net.size(4 * n))
        closed = costs.all_reduce_segmented_ring(num_workers, numel, latency, 12.5e6)
        assert net.run(plan) == closed
        elapsed, *_ = lab.time(
            num_workers, lambda c, n=numel: DENSE["all_reduce_segmented_ring"](c, n)
        )
        assert elapsed == costs.all_reduce_segmented_ring(num_workers, numel, lab.latency, lab.rate)


ALPHA, BYTE = 0.436e-3, 9e-9
TABLE = [  # elements, workers, milliseconds: dense, top-k, gTop-k; density 0.001, as printed
    (25 * 2**20, 4, "1418.2", "6.53", "9.29"),
    (25 * 2**20, 8, "1657.6", "14.52", "13.94"),
    (25 * 2**20, 16, "1782.6", "30.06", "18.59"),
    (25 * 2**20, 32, "1855.5", "60.69", "23.23"),
    (25_557_032, 32, "1809.6", "59.22", "22.76"),
    (14_728_266, 32, "1054.3", "35.05", "14.96"),
    (269_722, 32, "45.8", "2.78", "4.55"),
    (61_100_840, 32, "4288.8", "138.6", "48.35"),
    (66_034_000, 32, "4632.9", "149.6", "51.90"),
]


@pytest.mark.parametrize(("numel", "num_workers", "ring", "gathered", "merged"), TABLE)
def test_simulated_collectives_give_the_published_table(
    lab_1gbe, numel, num_workers, ring, gathered, merged
):
    k = numel // 1000
    programs = [
        lambda c: co.all_reduce(c, dense(numel), "ring"),
        lambda c: co.all_gather_sparse(c, sparse(k, numel)),
        lambda c: co.gtopk_all_reduce(c, sparse(k, numel), k),
    ]
    for program, printed in zip(programs, (ring, gathered, merged), strict=True):
        for link_model in ("queue", "fair") if num_workers <= 8 else ("queue",):
            elapsed, *_ = lab_1gbe.time(
                num_workers, program, charge_headers=False, link_model=link_model
            )
            decimals = len(printed.split(".")[1])
            assert f"{1e3 * elapsed:.{decimals}f}" == printed


@pytest.fixture
def lab_1gbe(lab):
    """The authors' constants for 1 GbE."""
    own = type(lab)()
    own.latency, own.rate = ALPHA, 1 / BYTE
    return own


def test_gtopk_overtakes_the_gather_at_eight_workers():
    ratio = {
        p: costs.gtopk_tree(p, 10**6, 0, 1e8) / costs.all_gather_sparse(p, 10**6, 0, 1e8)
        for p in (4, 8)
    }
    assert ratio[4] > 1 > ratio[8]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((0, 10, 0.0, 1.0), "num_workers = 0"),
        ((2, -1, 0.0, 1.0), "numel = -1"),
        ((2, 10, -1.0, 1.0), "latency = -1.0"),
        ((2, 10, math.nan, 1.0), "latency = nan"),
        ((2, 10, 0.0, 0.0), "rate = 0.0"),
        ((2, 10, 0.0, math.nan), "rate = nan"),
    ],
)
def test_impossible_networks_are_refused_by_name(arguments, named):
    with pytest.raises(InputError, match=named):
        costs.all_reduce_ring(*arguments)


def test_formulas_hold_on_networks_of_any_latency_and_rate(lab):
    """Where latency is short, messages of ranks that run ahead meet others; nothing may slip."""
    random = np.random.default_rng(0)
    for _ in range(60):
        own = type(lab)()
        own.latency = float(random.choice([0.0, 1e-9, 1e-7, 1e-6, 1e-3]))
        own.rate = float(random.choice([3.3e5, 1e9 / 7, 1e10]))
        name = str(random.choice(list(DENSE)))
        num_workers, n = int(random.integers(2, 20)), int(random.integers(1, 100))
        elapsed, sent, _ = own.time(num_workers, lambda c, f=DENSE[name], n=n: f(c, n))
        assert (elapsed, sent) == expected(own, name, num_workers, n), (name, num_workers, n)
