from __future__ import annotations

import dataclasses
import math

import pytest

from thinwire.cluster import Cluster, Node
from thinwire.errors import InputError
from thinwire.passes import (
    CODE_PASSES,
    MERGE_PASSES,
    SCATTER_PASSES,
    SELECT_PASSES,
    SELECT_SAMPLE,
    selection_bytes,
)
from thinwire.planner import METHODS, Prediction, Settings, make_workload, predict, quick_cluster


def by_name(job, cluster, **settings) -> dict[str, Prediction]:
    found = predict(job, cluster, Settings(**settings))
    assert [p.method for p in found] == list(METHODS)
    return {p.method: p for p in found}


def uneven(*slowdowns: float, rate: float = 1e8) -> Cluster:
    nodes = tuple(
        Node(name=f"n{i}", flops=1e12, memory_rate=1e11, egress=rate, ingress=rate, slowdown=s)
        for i, s in enumerate(slowdowns)
    )
    return Cluster(name="uneven", nodes=nodes, default_latency=1e-4)


# 4 workers, 10 M parameters, 100 ms a step, 1 MB/ms, no latency, no headers to speak of.
JOB = make_workload(params=10_000_000, batch=10, step_time=0.1)
FOUR = quick_cluster(4, 1e9, latency=0.0, memory_rate=1e11)[0]


def test_hand_worked_plain_ddp():
    p = by_name(JOB, FOUR)["ssgd"]
    assert p.communication == pytest.approx(0.060, rel=1e-4)  # 2 · 3/4 · 40 MB
    assert p.exposed == 0.0  # 67 ms of backward hide it
    assert p.step_time == pytest.approx(0.1)
    assert p.bsp_step_time == pytest.approx(0.160, rel=1e-4)
    assert p.bytes_per_step == pytest.approx(60e6, rel=1e-4)
    assert p.samples_per_second == pytest.approx(400)
    assert (p.speedup_alone, p.speedup_ssgd) == pytest.approx((4.0, 1.0))
    assert p.limit == "compute"


def test_only_two_thirds_of_compute_hide_communication():
    slow = quick_cluster(4, 0.25e9, latency=0.0)[0]
    p = by_name(JOB, slow)["ssgd"]
    assert p.communication == pytest.approx(0.240, rel=1e-4)
    assert p.exposed == pytest.approx(0.240 - 0.2 / 3, rel=1e-3)
    assert p.step_time == pytest.approx(p.compute + p.exposed)
    assert p.limit == "bandwidth"


def test_hand_worked_accumulation():
    slow = quick_cluster(4, 0.25e9, latency=0.0)[0]
    p = by_name(JOB, slow, accumulate=10)["accumulate"]
    # Ten batches of 100 ms, one exchange of 240 ms behind the last backward pass of 67 ms.
    assert p.step_time == pytest.approx((1.0 + 0.240 - 0.2 / 3) / 10, rel=1e-3)
    assert p.bytes_per_step == pytest.approx(6e6, rel=1e-4)
    assert p.samples_per_step == 40


def test_hand_worked_topk_and_gtopk():
    found = by_name(JOB, FOUR, density=0.001)
    k, select = 10_000, (SELECT_PASSES * 40e6 + SELECT_SAMPLE) / 1e11
    topk, gtopk = found["topk"], found["gtopk"]
    # Ten thousand entries are enough for coded indices: about 11.5 bits each instead of 32.
    entry = 4 + 11.5 / 8
    assert topk.communication == pytest.approx(3 * entry * k / 1e9, rel=5e-3)
    own_and_others = (1 + 3) * CODE_PASSES * 8 * k / 1e11
    scatters = SCATTER_PASSES * 8 * k * 4 / 1e11
    assert topk.overhead == pytest.approx(select + own_and_others + scatters)
    assert gtopk.communication == pytest.approx(4 * entry * k / 1e9, rel=5e-3)
    merges = 2 * MERGE_PASSES * 2 * 8 * k / 1e11
    coding = 2 * 3 * CODE_PASSES * 8 * k / 1e11
    scatter = SCATTER_PASSES * 8 * k / 1e11
    assert gtopk.overhead == pytest.approx(select + merges + coding + scatter)
    assert topk.bytes_per_step == pytest.approx(3 * entry * k, rel=5e-3)
    assert gtopk.bytes_per_step == pytest.approx(6 * entry * k / 4, rel=5e-3)
    for p in (topk, gtopk):
        assert p.exposed == p.communication
        assert p.step_time == pytest.approx(0.1 + p.overhead + p.communication)


def test_few_entries_travel_as_they_are():
    p = by_name(JOB, FOUR, density=0.0004)["topk"]
    assert p.bytes_per_step == pytest.approx(3 * 8 * 4000, rel=5e-3)
    scatters = SCATTER_PASSES * 8 * 4000 * 4 / 1e11
    assert p.overhead == pytest.approx(selection_bytes(10_000_000) / 1e11 + scatters)


def test_hand_worked_localsgd():
    p = by_name(JOB, FOUR, every=4)["localsgd"]
    assert p.step_time == pytest.approx((4 * 0.1 + 0.060) / 4, rel=1e-4)
    assert p.bytes_per_step == pytest.approx(15e6, rel=1e-4)


def test_localsgd_by_speed_gives_slower_nodes_fewer_steps():
    job = make_workload(params=1, batch=1, step_time=(1.0, 2.0, 3.0))
    fixed = by_name(job, uneven(1, 1, 1), every=6, local_steps="equal")["localsgd"]
    adapted = by_name(job, uneven(1, 1, 1), every=6)["localsgd"]
    assert fixed.samples_per_second == pytest.approx(3 * 6 / 18.0, rel=1e-3)
    # 18 steps in all, as the method splits them: 10, 5 and 3.
    assert adapted.samples_per_second == pytest.approx(18 / 10.0, rel=1e-3)


def test_sparse_cost_on_the_laboratory_machines_lies_in_what_was_measured():
    # Four hosts at 100 Mbit/s, 25.6 M parameters: 108 to 154 ms a host beside compute.
    job = make_workload(params=25_600_000, step_time=1.0)
    # The machine moved 35 GB/s; its two cores were four hosts.
    four = quick_cluster(4, 12.5e6, latency=1e-4, memory_rate=35e9 / 2)[0]
    p = by_name(job, four)["gtopk"]
    assert 0.041 < selection_bytes(job.num_params) / (35e9 / 2) < 0.070
    # They sent plain entries, as gtopk did then: 8 bytes each.
    longer = 4 * (8 * 25_600 / 12.5e6 + 1e-4) - p.communication
    assert 0.108 < p.overhead + p.communication + longer < 0.154


def test_dense_exchange_of_the_laboratory_machines_is_near_what_was_measured():
    four = quick_cluster(4, 12.5e6, latency=1e-4)[0]
    for params, measured in ((5_800_000, 3.17), (25_600_000, 13.5)):
        p = by_name(make_workload(params=params, step_time=0.1), four)["ssgd"]
        assert 0.85 * measured < p.communication <= measured


@pytest.mark.parametrize("step_time", [None, 0.25])
def test_one_node_is_alone_whatever_the_method(step_time):
    job = make_workload("resnet50", batch=8, step_time=step_time)
    found = by_name(job, quick_cluster(1, 1e8)[0])
    for p in found.values():
        assert p.step_time == found["alone"].step_time
        assert (p.speedup_alone, p.speedup_ssgd) == (1.0, 1.0)
        assert (p.bytes_per_step, p.communication, p.overhead) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("size", [2, 3, 4, 7, 8, 16])
def test_a_slower_link_never_speeds_anything_up(size: int):
    job = make_workload("resnet50", batch=16)
    rates = [10.0**e for e in range(4, 12)]
    before = None
    for rate in rates:
        found = by_name(job, quick_cluster(size, rate)[0])
        if before is not None:
            for method in METHODS:
                faster, slower = found[method], before[method]
                assert faster.samples_per_second >= slower.samples_per_second * (1 - 1e-12)
        before = found


def test_more_latency_or_a_slower_node_never_speeds_anything_up():
    job = make_workload("resnet50", batch=16)
    calm, slow = (by_name(job, quick_cluster(6, 1e8, latency=a)[0]) for a in (1e-5, 1e-2))
    fit, tired = by_name(job, uneven(1, 1, 1, 1)), by_name(job, uneven(1, 1, 1, 3))
    for method in METHODS:
        assert slow[method].samples_per_second <= calm[method].samples_per_second
        assert tired[method].samples_per_second <= fit[method].samples_per_second


def test_synchronous_methods_wait_for_the_slowest_node():
    p = by_name(make_workload(params=1000, step_time=1.0), uneven(1, 1, 4))["ssgd"]
    assert p.compute == pytest.approx(4.0)
    assert p.limit == "the slowest node"


def test_batches_by_speed_keep_the_sum_and_save_the_waiting():
    job = make_workload(params=1000, batch=30, step_time=1.0)
    equal = by_name(job, uneven(1, 1, 4))["ssgd"]
    adapted = by_name(job, uneven(1, 1, 4), batch="by_speed")["ssgd"]
    assert adapted.samples_per_step == equal.samples_per_step == 90
    assert adapted.compute == pytest.approx(4 / 3)  # 40, 40 and 10 samples
    assert adapted.parts["the slowest node"] == pytest.approx(0.0, abs=1e-9)


def test_batches_by_speed_leave_every_node_a_sample():
    job = make_workload(params=1000, batch=1, step_time=(1.0, 1.0, 1000.0))
    p = by_name(job, uneven(1, 1, 1), batch="by_speed")["ssgd"]
    assert p.samples_per_step == 3
    assert p.compute == pytest.approx(1000.0)


def test_parts_add_up_to_the_step():
    for cluster in (FOUR, uneven(1, 2, 3), quick_cluster(32, 1e6)[0]):
        for p in predict(JOB, cluster):
            assert sum(p.parts.values()) == pytest.approx(p.step_time)
            assert p.limit in p.parts
            assert min(p.parts.values()) >= -1e-12


@pytest.mark.parametrize("params", [1, 7, 10**12])
@pytest.mark.parametrize("rate", [1.0, 1e15])
@pytest.mark.parametrize("size", [2, 5, 300])
def test_extreme_inputs_give_finite_answers(params: int, rate: float, size: int):
    job = make_workload(params=params, batch=1, step_time=1e-9)
    for p in predict(job, quick_cluster(size, rate)[0], Settings(density=1.0)):
        values = [v for v in dataclasses.astuple(p) if isinstance(v, float)]
        assert all(math.isfinite(v) and v >= 0 for v in values)
        assert p.step_time > 0


def test_epoch_follows_from_its_samples():
    job = make_workload(params=10, batch=10, step_time=0.1, samples_per_epoch=4000)
    found = by_name(job, FOUR)
    assert found["alone"].epoch_time == pytest.approx(40.0)
    assert by_name(JOB, FOUR)["alone"].epoch_time is None


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"density": 0.0}, "density = 0.0.*above 0"),
        ({"density": float("nan")}, "density = nan"),
        ({"density": 1.5}, "density = 1.5"),
        ({"accumulate": 1}, "accumulate = 1.*2 or more"),
        ({"every": 0}, "every = 0"),
        ({"every": 1.5}, "every = 1.5"),
        ({"batch": "fair"}, "batch = 'fair'.*equal, by_speed"),
        ({"local_steps": "x"}, "local_steps = 'x'"),
    ],
)
def test_wrong_settings_name_key_value_and_range(given, told):
    with pytest.raises(InputError, match=told):
        Settings(**given)
