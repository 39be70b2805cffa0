from __future__ import annotations

import pytest

from thinwire.cluster import Cluster, Link, Node, Trace
from thinwire.errors import InputError
from thinwire.planner import Workload, make_workload, quick_cluster
from thinwire.planner.workload import compute_times, mean_of


def node(name: str, **settings) -> Node:
    given = {"flops": 1e12, "memory_rate": 1e11, "egress": 1e8, "ingress": 1e8, **settings}
    return Node(name=name, **given)


def cluster(*nodes: Node) -> Cluster:
    return Cluster(name="c", nodes=nodes, default_latency=1e-4)


def test_compute_follows_from_operations_and_rates():
    job = Workload(name="m", num_params=10, batch=4, flops=5e11)
    nodes = node("one"), node("half", slowdown=2.0), node("two devices", devices=2)
    assert compute_times(job, cluster(*nodes)) == pytest.approx((2.0, 4.0, 1.0))


def test_one_measured_time_is_the_fastest_nodes():
    job = make_workload(params=10, batch=4, step_time=0.5)
    nodes = node("slow", slowdown=3.0), node("fast")
    assert compute_times(job, cluster(*nodes)) == pytest.approx((1.5, 0.5))


def test_a_measured_time_per_node_is_taken_as_it_is():
    job = make_workload("resnet50", batch=4, step_time=(0.7, 0.5))
    assert compute_times(job, cluster(node("a"), node("b"))) == (0.7, 0.5)


def test_devices_of_a_node_add_their_own_all_reduce_unless_the_time_was_measured():
    both = node("pair", devices=2, inner=Link(rate=1e9, latency=0.001))
    job = Workload(name="m", num_params=250_000_000, batch=1, flops=2e12)
    assert compute_times(job, cluster(both)) == pytest.approx((1.0 + 2 * (0.001 + 0.5),))
    measured = make_workload(params=250_000_000, batch=1, step_time=1.5)
    assert compute_times(measured, cluster(both)) == (1.5,)


def test_changing_speed_counts_by_its_average():
    trace = Trace(times=(0.0, 30.0), values=(1.0, 0.5), period=60.0)
    assert mean_of(trace) == pytest.approx(0.75)
    job = Workload(name="m", num_params=10, batch=1, flops=3e12)
    assert compute_times(job, cluster(node("busy", speed=trace))) == pytest.approx((4.0,))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "neither given"),
        ({"model": "resnet50", "params": 3}, "both given"),
        ({"params": 3}, "step_time"),
        ({"params": 0, "step_time": 1.0}, "params = 0.*1 or more"),
        ({"params": 3, "step_time": 0.0}, "step_time = 0.0.*above 0"),
        ({"params": 3, "step_time": float("nan")}, "step_time = nan"),
        ({"params": 3, "step_time": (1.0, float("inf"))}, "step_time = inf"),
        ({"model": "resnet50", "batch": 0}, "batch = 0"),
        ({"model": "resnet50", "batch": 2.5}, "batch = 2.5"),
        ({"model": "resnet50", "samples_per_epoch": -1}, "samples_per_epoch = -1"),
    ],
)
def test_wrong_input_names_key_value_and_range(given, told):
    with pytest.raises(InputError, match=told):
        make_workload(**given)


def test_number_of_step_times_must_fit_the_cluster():
    job = make_workload(params=3, step_time=(1.0, 2.0))
    with pytest.raises(InputError, match="2 values for 3 nodes"):
        compute_times(job, quick_cluster(3, 1e8)[0])


def test_quick_cluster_says_what_it_assumes_and_only_that():
    _, assumed = quick_cluster(4, 125e6)
    assert [word in " ".join(assumed) for word in ("5 TFLOP/s", "200 µs", "300 GB/s")] == [True] * 3
    measured = make_workload(params=3, step_time=1.0)
    _, assumed = quick_cluster(4, 125e6, latency=1e-4, memory_rate=1e10, workload=measured)
    assert assumed == ()


@pytest.mark.parametrize(("nodes", "link"), [(0, 1e8), (2.0, 1e8), (2, 0.0), (2, float("nan"))])
def test_quick_cluster_refuses_what_cannot_be(nodes, link):
    with pytest.raises(InputError):
        quick_cluster(nodes, link)
