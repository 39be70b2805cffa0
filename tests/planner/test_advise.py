from __future__ import annotations

import json

import pytest

from thinwire.cluster import Cluster, Node, Trace, load_cluster
from thinwire.planner import Plan, Settings, make_workload, plan, quick_cluster


def planned(job, nodes: int, link: float, **given) -> Plan:
    cluster, assumed = quick_cluster(nodes, link, workload=job, **given)
    return plan(job, cluster, assumptions=assumed)


def test_small_model_on_a_fast_lan_keeps_plain_ddp_and_says_why():
    job = make_workload("resnet20", batch=128, step_time=0.05)
    found = planned(job, nodes=4, link=1250e6)
    assert found.choice == "ssgd"
    assert found.verdict.startswith("Plain DDP is fine here: it is 4.0× faster than one machine")
    assert "hides" in found.why[0]
    assert "nothing remains" in found.why[0]
    assert "compute" in found.why[1]


def two_boxes() -> Cluster:
    nodes = tuple(
        Node(name=name, flops=1e13, memory_rate=300e9, egress=625e6 / 8, ingress=625e6 / 8)
        for name in ("four-gpus", "two-gpus")
    )
    return Cluster(name="two boxes", nodes=nodes, default_latency=3e-4)


def test_second_box_on_a_thin_link_is_warned_of_and_a_way_out_proposed():
    # 9 hours per epoch on the first box; half as fast a second one behind 625 Mbit/s.
    job = make_workload(
        params=95_000_000, batch=32, step_time=(0.5, 1.0), samples_per_epoch=32 * 2 * 9 * 3600
    )
    found = plan(job, two_boxes())
    assert found["ssgd"].speedup_alone < 1
    assert found.choice == "alone"
    assert found.verdict.startswith("Use one machine (four-gpus) with these settings")
    slowed = next(text for text in found.warnings if "slows plain DDP down" in text)
    assert "the second machine" in slowed
    assert "instead of 9 h 0 min" in slowed
    assert found.proposal is not None
    assert found.proposal.prediction.method not in ("alone", "ssgd")
    assert found.proposal.prediction.speedup_alone >= 1.1
    assert found.proposal.text in found.verdict


def test_equal_boxes_on_a_thin_link_are_given_a_method_that_pays():
    job = make_workload(params=95_000_000, batch=32, step_time=(0.5, 0.5))
    found = plan(job, two_boxes())
    assert found["ssgd"].speedup_alone < 1
    assert found[found.choice].speedup_alone > 1.1
    assert "than plain DDP and" in found.verdict


def test_thin_wire_picks_a_sparse_method_and_names_its_limits():
    found = planned(make_workload("resnet50", batch=32), nodes=64, link=125e6)
    assert found.choice == "gtopk"
    assert found.verdict.startswith("gtopk: ")
    assert found.verdict.endswith("than one machine.")
    host = next(text for text in found.warnings if "published gTop-k implementation" in text)
    assert "1.56 s" in host  # 61 ns for each of 25.6 M parameters


def test_samples_per_second_are_never_sold_as_accuracy():
    for nodes in (2, 8):
        found = planned(make_workload("resnet50", batch=32), nodes=nodes, link=1e7)
        assert any("not accuracy" in text for text in found.warnings)


def test_hopeless_wire_says_use_one_machine():
    job = make_workload(params=10**9, batch=1, step_time=0.001)
    found = planned(job, nodes=2, link=1e4)
    assert found.choice == "alone"
    assert found.proposal is None
    assert found.verdict.startswith("Use one machine (node-0): it is ")


def test_single_node_has_nothing_to_exchange():
    found = planned(make_workload("resnet50"), nodes=1, link=1e8)
    assert found.verdict == (
        "Use one machine: node-0 is the only node, there is nothing to exchange."
    )
    assert (found.why, found.warnings, found.proposal) == ((), (), None)


def test_simplest_method_wins_when_they_are_about_equally_fast():
    job = make_workload(params=1000, batch=32, step_time=1.0)
    found = planned(job, nodes=4, link=125e6)
    best = max(found.predictions, key=lambda p: p.samples_per_second)
    assert found["ssgd"].samples_per_second * 1.1 >= best.samples_per_second
    assert found.choice == "ssgd"


def test_straggler_is_named_and_batches_by_speed_proposed():
    nodes = tuple(
        Node(name=f"n{i}", flops=1e12, memory_rate=1e11, egress=1e9, ingress=1e9, slowdown=s)
        for i, s in enumerate((1.0, 1.0, 1.0, 4.0))
    )
    cluster = Cluster(name="straggler", nodes=nodes, default_latency=1e-4)
    job = make_workload(params=1000, batch=32, step_time=1.0)
    found = plan(job, cluster, Settings(local_steps="equal"))
    assert any("waits for n3" in text for text in found.warnings)
    assert found.proposal is not None
    assert "with batches by speed" in found.proposal.text
    assert found.proposal.settings.batch == "by_speed"


def test_leaving_out_a_hopeless_straggler_is_proposed_when_batches_do_not_help():
    nodes = tuple(
        Node(name=f"n{i}", flops=1e12, memory_rate=1e11, egress=1e9, ingress=1e9, slowdown=s)
        for i, s in enumerate((1.0, 1.0, 1.0, 50.0))
    )
    cluster = Cluster(name="straggler", nodes=nodes, default_latency=1e-4)
    job = make_workload(params=1000, batch=1, step_time=(1.0, 1.0, 1.0, 50.0))
    found = plan(job, cluster, Settings(local_steps="equal"))
    assert found.choice == "alone"
    assert found.proposal is not None
    assert found.proposal.nodes == ("n0", "n1", "n2")
    assert "without n3" in found.proposal.text


def test_assumptions_are_told():
    busy = Trace(times=(0.0, 30.0), values=(1.0, 0.5), period=60.0)
    nodes = (
        Node(name="a", flops=1e12, memory_rate=1e11, egress=1e8, ingress=1e8, speed=busy),
        Node(name="b", flops=1e12, memory_rate=1e11, egress=1e8, ingress=1e8, jitter=0.1),
    )
    job = make_workload(params=1000, step_time=1.0)
    found = plan(job, Cluster(name="c", nodes=nodes, default_latency=0.0), assumptions=("mine",))
    text = " ".join(found.assumptions)
    assert found.assumptions[0] == "mine"
    assert all(word in text for word in ("average: a.", "Jitter", "fastest node's"))


@pytest.mark.parametrize("name", ["office", "gigabit", "two-sites", "one-straggler", "cities14"])
def test_every_preset_can_be_planned_and_written_as_json(name: str):
    found = plan(make_workload("resnet50", batch=32), load_cluster(name))
    read = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert read["schema"] == 1
    assert [p["method"] for p in read["predictions"]] == [p.method for p in found.predictions]
    assert read["choice"] == found.choice
    assert len(read["nodes"]) == len(found.nodes)


def test_two_plans_are_equal():
    job, cluster = make_workload("bert-base", batch=8), load_cluster("two-sites")
    assert plan(job, cluster) == plan(job, cluster)
