"""From measurements to a cluster: known machines and lines, once measured, come out again."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
import torch

from thinwire.cluster import Cluster, Link, Node, Site, cluster_from_toml, load_cluster
from thinwire.errors import ThinwireError
from thinwire.planner import make_workload, plan
from thinwire.run.doctor.report import Facts, Interface, Lookup
from thinwire.run.probe.fit import Fitted, fit
from thinwire.run.probe.report import Computing, Crowd, Flow, Kernel, Survey, Wire
from thinwire.run.probe.sharing import Lines, find_lines, near_and_far, shares
from thinwire.run.probe.stats import Spread, drift_of, spread_of
from thinwire.run.probe.streams import flow_of, ramp_of
from thinwire.run.probe.write import check_target, commented
from thinwire.wire import ANY, Comm, Packet
from thinwire.wire.virtual import World

MBIT = 125_000.0


def about(value: float, part: float = 0.02) -> Spread:
    """Measurements of this value that spread by so much."""
    return Spread(median=value, low=value * (1 - part), high=value * (1 + part), count=9)


def steady(rate: float, head: float = 0.0) -> Flow:
    return Flow(rate=about(rate), nbytes=int(rate), seconds=1.0, head=head)


# Streams.


def arrivals(rate: float, bucket: float, seconds: float = 2.0) -> Flow:
    """A stream through a bucket that was full, seen in pieces of a millisecond."""
    moments = [i / 1000 for i in range(int(seconds * 1000) + 1)]
    return flow_of(moments, [int(bucket + rate * t) for t in moments])


@pytest.mark.parametrize("rate", [2e4, 5.9e6, 1.2e8])
def test_a_stream_has_the_rate_it_was_sent_at(rate):
    flow = arrivals(rate, 0.0)
    assert flow.rate.median == pytest.approx(rate, rel=1e-3)
    assert flow.rate.low == pytest.approx(flow.rate.high, rel=0.1)


def test_a_full_bucket_is_told_apart_from_the_rate():
    flow = arrivals(12.5e6, 125e3)
    assert flow.rate.median == pytest.approx(12.5e6, rel=1e-3)
    assert flow.head == pytest.approx(125e3, rel=0.01)
    slow_start = flow_of([0.0, 0.1, 1.0, 2.0], [0, 1, 900_001, 1_900_001])
    assert slow_start.head == 0.0


def test_a_far_line_is_as_fast_as_it_is_once_tcp_is_up_to_speed():
    """With 40 ms of round trip half of a stream of 0.5 s is slow start."""
    rate, trip, slow = 12.5e6, 0.04, 0.24
    moments = [i / 1000 for i in range(int(1000 * (0.5 + ramp_of(trip))) + 1)]
    counts = [int(rate * (slow / 4 * (t / slow) ** 4 if t < slow else t - 0.75 * slow))
              for t in moments]  # fmt: skip
    assert flow_of(moments[:501], counts[:501]).rate.median < 0.95 * rate
    flow = flow_of(moments, counts, ramp_of(trip))
    assert flow.rate.median == pytest.approx(rate, rel=1e-3)
    assert flow.head == 0.0


def test_a_ramp_has_an_end_and_a_short_stream_is_looked_at_all_the_same():
    assert ramp_of(10.0) == 2.0
    assert flow_of([0.0, 1.0, 2.0], [0, 100, 200], ramp=5.0).rate.median == pytest.approx(100)


def test_a_stall_of_the_processor_is_not_taken_for_the_wires():
    moments = [i / 1000 for i in range(2001) if not 700 < i < 880 and not 1500 < i < 1600]
    flow = flow_of(moments, [int(5e6 * (t - 0.1 * (t > 1.55))) for t in moments])
    assert flow.rate.median == pytest.approx(5e6, rel=0.01)


def test_a_stream_of_which_nothing_is_known_has_no_rate():
    assert flow_of([], []) == Flow()
    assert flow_of([1.0], [100]).rate.count == 0


def test_a_few_disturbed_steps_change_neither_median_nor_spread_much():
    calm = spread_of([1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 1.01, 0.99])
    disturbed = spread_of([1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 1.01, 40.0])
    assert disturbed.median == calm.median
    assert disturbed.relative < 0.02
    assert drift_of([1.0] * 8) is None
    assert drift_of([1.0] * 9) == 0.0


# Lines.


def measured(cluster: Cluster) -> tuple[dict[Any, float], dict[Any, float], dict[Any, float]]:
    """What a perfect probe sees of a virtual cluster: streams alone, all together, latencies."""
    every = list(itertools.permutations(range(cluster.size), 2))
    alone = {pair: _alone(cluster, *pair) for pair in every}
    nbytes = {pair: int(rate / 500) for pair, rate in alone.items()}

    def program(comm: Comm) -> dict[int, float]:
        others = [rank for rank in range(comm.size) if rank != comm.rank]
        for _, dst in itertools.product(range(500), others):
            comm.post(dst, _sized(nbytes[comm.rank, dst]), "x")
        got = dict.fromkeys(others, 0)
        while (arrival := comm.wait(ANY, "x")).time < 0.6:
            if arrival.time > 0.2:
                got[arrival.src] += nbytes[arrival.src, comm.rank]
        return {src: count / 0.4 for src, count in got.items()}

    results = World(cluster, charge_headers=False).run(program)
    together = {(s, d): rate for d, got in enumerate(results) for s, rate in got.items()}
    return alone, together, {p: cluster.latency(*p) for p in every if p[0] < p[1]}


def _sized(nbytes: int) -> Packet:
    return Packet((torch.empty(nbytes, dtype=torch.uint8, device="meta"),))


def _alone(cluster: Cluster, src: int, dst: int) -> float:
    nbytes = 1_000_000

    def program(comm: Comm) -> float:
        if comm.rank == src:
            comm.post(dst, _sized(nbytes), "x")
        return comm.wait(src, "x").time if comm.rank == dst else 0.0

    time = World(cluster, charge_headers=False).run(program)[dst]
    return nbytes / (time - cluster.latency(src, dst))


def made_of(*rates: float, **changes: Any) -> Cluster:
    """Machines with these lines."""
    sites = changes.pop("site_of", [""] * len(rates))
    nodes = tuple(
        Node(name=f"n{i}", flops=1e10, memory_rate=8e9, egress=r, ingress=r, site=site)
        for i, (r, site) in enumerate(zip(rates, sites, strict=True))
    )
    return Cluster(**{"name": "c", "nodes": nodes, "default_latency": 1e-4, **changes})


def lines_of(cluster: Cluster) -> Lines:
    alone, together, latencies = measured(cluster)
    return find_lines(alone, together, latencies, {i: f"h{i}" for i in range(cluster.size)})


def test_like_lines_and_a_slow_one_are_found_and_nothing_else():
    found = lines_of(made_of(*[100 * MBIT] * 3, 50 * MBIT))
    assert [found.egress[i] / MBIT for i in range(4)] == pytest.approx(
        [100, 100, 100, 50], rel=0.01
    )
    assert found.ingress == pytest.approx(found.egress)
    assert (found.own, found.uplink, found.downlink, found.under_load) == ({}, {}, {}, False)
    assert found.passed == pytest.approx(1.0, abs=0.03)


def test_a_bad_cable_between_two_is_a_rate_of_their_own():
    link = Link(rate=10 * MBIT, latency=1e-4)
    found = lines_of(made_of(*[100 * MBIT] * 3, links={(0, 2): link}))
    assert found.own == {(0, 2): pytest.approx(10 * MBIT, rel=0.01)}


def test_a_machine_that_sends_more_to_all_than_to_any_one_has_the_larger_rate():
    alone = dict.fromkeys(itertools.permutations(range(3), 2), 100 * MBIT)
    together = {**alone, (0, 1): 90 * MBIT, (0, 2): 90 * MBIT, (1, 2): 10 * MBIT, (2, 1): 10 * MBIT}
    together |= {(1, 0): 50 * MBIT, (2, 0): 50 * MBIT}
    found = find_lines(alone, together, {}, {i: f"h{i}" for i in range(3)})
    assert found.egress == {0: 180 * MBIT, 1: 100 * MBIT, 2: 100 * MBIT}
    assert not found.under_load


def test_a_shared_uplink_between_far_sites_is_found():
    sites = (Site(name="a", uplink=50 * MBIT, downlink=50 * MBIT), Site(name="b"))
    far = {
        (i, j): Link(rate=None, latency=0.015)
        for i, j in itertools.permutations(range(4), 2)
        if (i < 2) != (j < 2)
    }
    found = lines_of(
        made_of(*[1000 * MBIT] * 4, sites=sites, site_of=["a", "a", "b", "b"], links=far)
    )
    assert found.groups == [[0, 1], [2, 3]]
    assert "latencies" in found.why_groups
    assert found.uplink[0] == pytest.approx(50 * MBIT, rel=0.03)
    assert found.downlink[0] == pytest.approx(50 * MBIT, rel=0.03)
    assert found.egress[0] == pytest.approx(1000 * MBIT, rel=0.05)
    assert found.own == {}, "the sites' lines explain the pairs"


def test_a_slow_uplink_without_latency_is_found_by_its_rate():
    sites = (Site(name="a", uplink=50 * MBIT, downlink=50 * MBIT), Site(name="b"))
    found = lines_of(made_of(*[1000 * MBIT] * 4, sites=sites, site_of=["a", "a", "b", "b"]))
    assert found.groups == [[0, 1], [2, 3]]
    assert "rates" in found.why_groups
    assert found.uplink[0] == pytest.approx(50 * MBIT, rel=0.03)


def test_ranks_of_one_host_share_its_line():
    sites = (Site(name="a", uplink=100 * MBIT, downlink=100 * MBIT), Site(name="b"))
    cluster = made_of(*[1000 * MBIT] * 4, sites=sites, site_of=["a", "a", "b", "b"])
    alone, together, latencies = measured(cluster)
    found = find_lines(alone, together, latencies, {0: "h0", 1: "h0", 2: "h1", 3: "h1"})
    assert found.groups == [[0, 1], [2, 3]]
    assert "host" in found.why_groups
    assert found.uplink[0] == pytest.approx(100 * MBIT, rel=0.03)


def test_a_half_duplex_wire_shows_only_when_both_talk():
    alone = {(0, 1): 50 * MBIT, (1, 0): 50 * MBIT}
    together = {(0, 1): 25 * MBIT, (1, 0): 26 * MBIT}
    found = find_lines(alone, together, {(0, 1): 1e-3}, {0: "a", 1: "b"})
    assert found.under_load
    assert found.egress[0] == pytest.approx(25 * MBIT, rel=0.03)
    assert find_lines(alone, {}, {(0, 1): 1e-3}, {0: "a", 1: "b"}).egress[0] == 50 * MBIT


def test_a_line_carries_what_passes_while_both_directions_are_in_use():
    alone = dict.fromkeys(itertools.permutations(range(3), 2), 100 * MBIT)
    together = {pair: (48 if 0 in pair else 49.5) * MBIT for pair in alone}
    found = find_lines(alone, together, {}, {i: f"h{i}" for i in range(3)})
    passed = (4 * 48 + 2 * 49.5) / 300
    assert found.passed == pytest.approx(passed)
    # Of all alike: which of them had a little less at that moment is chance.
    assert found.egress == pytest.approx(dict.fromkeys(range(3), passed * 100 * MBIT))
    assert found.ingress == pytest.approx(found.egress)
    assert (found.own, found.under_load) == ({}, False)


def test_rates_alone_stand_where_more_is_missing_than_both_directions_explain():
    alone = dict.fromkeys(itertools.permutations(range(3), 2), 100 * MBIT)
    together = dict.fromkeys(alone, 46.5 * MBIT)
    found = find_lines(alone, together, {}, {i: f"h{i}" for i in range(3)})
    assert found.passed == pytest.approx(0.93)
    assert found.egress == found.ingress == dict.fromkeys(range(3), 100 * MBIT)
    assert (found.in_use, found.under_load) == (1.0, False)


def test_near_and_far_needs_a_gap_and_two_real_groups():
    def pairs(distance: Mapping[tuple[int, int], float], other: float) -> dict[Any, float]:
        every = itertools.combinations(range(4), 2)
        return {pair: distance.get(pair, other) for pair in every}

    close = {(0, 1): 1e-4, (2, 3): 1e-4}
    assert near_and_far(range(4), pairs(close, 0.02), 3.0, 5e-4) == [[0, 1], [2, 3]]
    assert near_and_far(range(4), pairs(close, 2e-4), 3.0, 5e-4) == []
    assert near_and_far(range(4), pairs({(0, 1): 1e-4}, 0.02), 3.0, 5e-4) == []


def test_shares_are_those_of_the_virtual_network():
    rates = {0: 10 * MBIT, 1: 100 * MBIT, 2: 100 * MBIT}
    cluster = made_of(*rates.values())
    _, together, _ = measured(cluster)
    expected = shares(together, rates, rates, {})
    for pair, rate in together.items():
        assert rate == pytest.approx(expected[pair], rel=0.05), pair


# Surveys.


def facts(rank: int, size: int, **changes: object) -> Facts:
    healthy = Facts(
        rank=rank, size=size, hostname=f"host{rank}", host=f"id{rank}", pid=1,
        versions={"thinwire": "1", "torch": "2.9"}, byte_order="little",
        interface=Interface(name="eth0", address=f"10.0.0.{rank + 1}", speed=125e6),
        own_name=Lookup(name=f"host{rank}"), master_name=None, cores=4, threads=4, load=0.1,
        ports="", port_problem="", memory_total=1, memory_available=1, shared_memory=1, gpus=[],
        meters=[],
    )  # fmt: skip
    return msgspec.structs.replace(healthy, **changes)


def computing(flops: float = 2e10, memory: float = 8e9, select: float = 2e10) -> Computing:
    work = 1e9
    return Computing(
        model="resnet20", batch=32, threads=4, flops=work, num_params=1000,
        total=about(work / flops), forward=about(0.3 * work / flops),
        backward=about(0.7 * work / flops), update=about(1e-5), drift=0.01,
        names=["w", "b"], sizes=[990, 10], needed=[0.0, None], ready=[0.02, None],
        memory=Kernel(nbytes=1e9, seconds=about(1e9 / memory)),
        kernels={"select": Kernel(nbytes=1e9, seconds=about(1e9 / select))},
    )  # fmt: skip


def surveyed(size: int = 3, rate: float = 100 * MBIT, **changes: Any) -> Survey:
    wires = [
        Wire(low=i, high=j, trip=about(4e-4), packets=about(6e-4), up=steady(rate),
             down=steady(rate))
        for i, j in itertools.combinations(range(size), 2)
    ]  # fmt: skip
    each = rate / max(1, size - 1)
    received = {i: {j: each for j in range(size) if j != i} for i in range(size)}
    fields: dict[str, Any] = {
        "size": size,
        "ranks": [facts(rank, size) for rank in range(size)],
        "computing": {rank: computing() for rank in range(size)},
        "wires": wires,
        "crowd": Crowd(received=received, seconds=3.0) if size > 1 else None,
        "finished": True,
        "began": "2026-01-01",
    }
    return Survey(**{**fields, **changes})


def read_back(fitted: Fitted) -> Cluster:
    return cluster_from_toml(commented(fitted))


def test_known_figures_come_out_of_the_file():
    cluster = read_back(fit(surveyed(), "lab"))
    assert cluster.name == "lab"
    assert [node.name for node in cluster.nodes] == ["host0", "host1", "host2"]
    assert cluster.uniform() == (pytest.approx(3e-4), pytest.approx(100 * MBIT))
    assert cluster.default_latency == pytest.approx(2e-4)
    assert cluster.message_overhead == pytest.approx(1e-4)
    first = cluster.nodes[0]
    assert first.flops == pytest.approx(2e10, rel=1e-3)
    assert first.memory_rate == pytest.approx(8e9, rel=1e-3)
    assert first.kernel_rates["select"] == pytest.approx(2e10, rel=1e-3)
    assert first.kernel_rates["step"] == pytest.approx(20 * 1000 / 1e-5, rel=1e-3)
    assert first.jitter == pytest.approx(0.04 / 1.349, rel=1e-2)


def test_every_measured_value_says_how_it_was_measured():
    text = commented(fit(surveyed()))
    for key in ("latency", "message_overhead", "flops", "memory_rate", "kernel_rates", "egress",
                "ingress", "jitter"):  # fmt: skip
        above = text.partition(f"\n{key} = ")[0].splitlines()[-1]
        assert above.startswith("# "), key
    assert "What could not be seen" in text
    assert all(len(line) <= 100 for line in text.splitlines() if line.startswith("#"))


def test_a_plan_reads_the_file():
    answer = plan(make_workload("resnet20", batch=32), read_back(fit(surveyed())))
    assert answer["ssgd"].samples_per_second > 0


def test_the_layer_times_are_those_measured_and_none_stays_none():
    layers = fit(surveyed()).layers
    assert layers is not None
    assert [tensor.name for tensor in layers.tensors] == ["w", "b"]
    assert layers.of("host1").ready == (0.02, None)


def test_machines_of_one_name_get_their_ranks():
    same = [facts(rank, 3, hostname="node") for rank in range(3)]
    names = [node.name for node in fit(surveyed(ranks=same)).cluster.nodes]
    assert names == ["node.0", "node.1", "node.2"]


def test_a_pair_far_from_the_others_has_a_latency_of_its_own():
    survey = surveyed()
    survey.wires[2] = msgspec.structs.replace(survey.wires[2], trip=about(0.04))
    cluster = read_back(fit(survey))
    assert cluster.links[1, 2].latency == cluster.links[2, 1].latency == pytest.approx(0.02)
    assert (0, 1) not in cluster.links


def test_a_shared_switch_is_written_as_node_rates_and_said():
    survey = surveyed(4)
    assert survey.crowd is not None
    half = {i: {j: r / 2 for j, r in got.items()} for i, got in survey.crowd.received.items()}
    survey.crowd = Crowd(received=half, seconds=3.0)
    fitted = fit(survey)
    assert fitted.cluster.nodes[0].egress == pytest.approx(50 * MBIT, rel=0.01)
    assert "something is shared" in " ".join(commented(fitted).split())
    assert "of that alone" not in commented(fitted)


def test_a_line_in_use_both_ways_is_written_as_what_passes_then_and_said():
    survey = surveyed()
    assert survey.crowd is not None
    less = {i: {j: 0.97 * r for j, r in got.items()} for i, got in survey.crowd.received.items()}
    before = fit(survey)
    survey.crowd = Crowd(received=less, seconds=3.0)
    fitted = fit(survey)
    assert before.lines is not None
    assert fitted.lines is not None
    assert fitted.lines.in_use == pytest.approx(0.97 * before.lines.passed)
    alone = before.cluster.nodes[0].egress / before.lines.in_use
    assert fitted.cluster.nodes[0].egress == pytest.approx(fitted.lines.in_use * alone, rel=1e-3)
    assert f"here: {fitted.lines.in_use:.1%} of that alone" in " ".join(commented(fitted).split())


def test_a_lost_machine_is_left_out_and_named():
    survey = surveyed(lost={2: "came, but fell silent"})
    del survey.computing[2]
    fitted = fit(survey)
    assert [node.name for node in fitted.cluster.nodes] == ["host0", "host1"]
    assert "LEFT OUT: rank 2: came, but fell silent" in commented(fitted)


def test_what_was_interrupted_says_what_is_assumed():
    survey = surveyed(finished=False, crowd=None)
    survey.wires = survey.wires[:1]
    text = commented(fit(survey))
    assert "NOT COMPLETE" in text
    third = text.partition('name = "host2"')[2]
    assert third.count("not measured: eth0's stated speed") == 2
    assert "not measured" not in text.partition('name = "host2"')[0]


def test_one_machine_alone_is_a_cluster_of_one():
    text = commented(fit(surveyed(1)))
    assert cluster_from_toml(text).size == 1
    assert text.count("# not measured") == 3  # latency, egress, ingress


def test_a_busy_machine_is_said_to_have_been_busy():
    survey = surveyed(ranks=[facts(0, 3), facts(1, 3, load=9.0), facts(2, 3)])
    text = " ".join(commented(fit(survey)).replace("#", " ").split())
    assert "BUSY: runnable processes before the probe: rank 1 had 9.0 on 4 cores." in text


def test_nothing_measured_is_an_error_that_says_why():
    survey = surveyed()
    survey.computing = {r: Computing(problem="computing: no memory") for r in range(3)}
    with pytest.raises(ThinwireError, match="rank 0: computing: no memory"):
        fit(survey)


@pytest.mark.slow
def test_the_sites_of_a_preset_are_found_again():
    cluster = load_cluster("two-sites")
    found = lines_of(cluster)
    assert found.groups == [[0, 1, 2, 3], [4, 5, 6, 7]]
    uplink = cluster.sites[0].uplink
    assert uplink is not None
    assert found.uplink[0] == pytest.approx(uplink, rel=0.05)


def test_a_file_that_is_there_is_not_written_over(tmp_path):
    path = tmp_path / "cluster.toml"
    assert check_target("-o", path, force=False) == ""
    path.write_text("mine")
    assert "is there already" in check_target("-o", path, force=False)
    assert check_target("-o", path, force=True) == ""
    assert "folder that exists" in check_target("-o", tmp_path / "absent" / "c.toml", force=True)
