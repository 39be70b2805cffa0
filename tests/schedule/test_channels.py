"""Closed forms of a message's cost, against each other and against thinwire's own collectives."""

from __future__ import annotations

import pytest

from thinwire.collectives import costs
from thinwire.errors import InputError
from thinwire.schedule import (
    Cost,
    colocated_servers,
    double_binary_tree,
    fit_cost,
    halving_doubling,
    hierarchical,
    pipelined_tree,
    recursive_doubling,
    ring,
    separate_servers,
    torus,
    tree,
)

LATENCY, RATE, NUMEL = 1e-4, 1.25e8, 2**20


@pytest.mark.parametrize(
    ("ours", "exact"),
    [
        (ring, costs.all_reduce_ring),
        (halving_doubling, costs.all_reduce_halving_doubling),
        (tree, costs.all_reduce_tree),
    ],
)
@pytest.mark.parametrize("workers", [1, 2, 8, 32])
def test_a_closed_form_is_what_the_collective_takes(ours, exact, workers):
    took = exact(workers, NUMEL, LATENCY, RATE, header=False)
    assert ours(workers, LATENCY, RATE)(4 * NUMEL) == pytest.approx(took, rel=1e-6)


def test_two_trees_have_a_rings_rate_and_a_trees_latency():
    two, one = double_binary_tree(64, LATENCY, RATE, 2**14), ring(64, LATENCY, RATE)
    assert two.per_byte == pytest.approx(one.per_byte, rel=0.02)
    assert two.startup < 0.3 * one.startup


def test_one_pipelined_tree_is_the_tree_when_a_message_is_one_chunk():
    whole = pipelined_tree(16, LATENCY, RATE, 10_000)(10_000)
    assert whole == pytest.approx(tree(16, LATENCY, RATE)(10_000))


def test_a_torus_of_one_row_or_one_column_is_a_ring():
    a_ring = ring(12, LATENCY, RATE)(10**6)
    assert torus(1, 12, LATENCY, RATE)(10**6) == pytest.approx(a_ring)
    assert torus(12, 1, LATENCY, RATE)(10**6) == pytest.approx(a_ring)
    assert torus(3, 4, LATENCY, RATE).startup == pytest.approx(10 * LATENCY)


def test_a_hierarchy_of_one_device_a_node_is_the_ring_across():
    across = ring(8, LATENCY, RATE)
    assert hierarchical(ring(1, LATENCY, RATE), across, 1)(10**6) == across(10**6)


def test_devices_that_share_a_line_gain_nothing_across():
    inside, across = ring(4, 0.0, 1e10), ring(8, 0.0, RATE)
    own, shared = (hierarchical(inside, across, 4, n).per_byte for n in (1, 4))
    assert own - inside.per_byte == pytest.approx(across.per_byte / 4)
    assert shared - inside.per_byte == pytest.approx(across.per_byte)


def test_every_byte_crosses_the_busiest_line_of_parameter_servers():
    # One server beside worker 0 of 4: three push to it, three pull from it by the other direction.
    assert colocated_servers(4, 1, 0.0, 1.0)[0].per_byte == 3.0
    exact = costs.parameter_server(3, NUMEL, LATENCY, RATE, header=False)
    push, pull = separate_servers(3, 1, LATENCY, RATE)
    assert push(4 * NUMEL) + pull(4 * NUMEL) + 2 * LATENCY == pytest.approx(exact)


def test_more_servers_than_workers_leave_the_workers_line_as_the_limit():
    assert separate_servers(4, 8, 0.0, 1.0)[0].per_byte == 1.0
    assert colocated_servers(1, 1, 0.0, 1.0) == (Cost(),)


def test_one_worker_pays_nothing():
    for cost in (ring, halving_doubling, tree, recursive_doubling):
        assert cost(1, LATENCY, RATE)(10**6) == 0.0
    assert pipelined_tree(1, LATENCY, RATE, 100)(10**6) == 0.0
    assert double_binary_tree(1, LATENCY, RATE, 100)(10**6) == 0.0


def test_a_fit_gives_back_the_line_it_was_measured_on():
    cost = Cost(startup=2e-3, per_byte=3e-9)
    sizes = [8192 * 4 * i for i in range(1, 64)]
    fitted = fit_cost(sizes, [cost(n) for n in sizes])
    assert fitted.startup == pytest.approx(2e-3)
    assert fitted.per_byte == pytest.approx(3e-9)


def test_a_fit_never_gives_a_start_up_below_zero():
    assert fit_cost([10, 20], [0.0, 5.0]).startup == 0.0


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: ring(0, LATENCY, RATE), "num_workers = 0"),
        (lambda: tree(2, -1.0, RATE), "latency = -1.0"),
        (lambda: torus(2, 2, LATENCY, 0.0), "rate = 0.0"),
        (lambda: pipelined_tree(2, LATENCY, RATE, 0), "chunk = 0"),
        (lambda: hierarchical(Cost(), Cost(), 2, 3), "sharing = 3"),
        (lambda: hierarchical(Cost(), Cost(), 0), "per_node = 0"),
        (lambda: separate_servers(2, 0, LATENCY, RATE), "num_servers = 0"),
        (lambda: colocated_servers(2, 3, LATENCY, RATE), "num_servers = 3"),
        (lambda: Cost(startup=-1.0), "startup = -1.0"),
        (lambda: Cost(beside=0.0), "beside = 0.0"),
        (lambda: fit_cost([1, 1], [1.0, 1.0]), "two different sizes"),
    ],
)
def test_bad_input_is_named(call, named):
    with pytest.raises(InputError, match=named):
        call()
