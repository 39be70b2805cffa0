"""Prices, energy and deadlines: what the cheapest is, and whether it is in time."""

from __future__ import annotations

import dataclasses

import pytest

from thinwire.cluster import Cluster, Node, Site
from thinwire.errors import InputError
from thinwire.flat import Layer
from thinwire.planner import Settings, Workload
from thinwire.planner.objective import Objective, make_objective
from thinwire.planner.refine import Refined, refine
from thinwire.planner.refined_table import refined_report
from thinwire.planner.simulate import Scene, simulate
from thinwire.planner.timed import Load

BATCH, NUMEL, STEP = 8, 2_000_000, 0.2
LOAD = Load(
    layers=(Layer("a", 0, NUMEL // 2, (1000, 1000)), Layer("b", NUMEL // 2, NUMEL, (1000, 1000))),
    order=(1, 0),
    forward=(0.5, 0.5),
    backward=(0.5, 0.5),
)
HOUR = 3600.0


def cluster_of(*prices: float | None, latency: float = 1e-4, slow: float = 1.0) -> Cluster:
    """Machines on one switch, the last one slower."""
    nodes = tuple(
        Node(name=f"n{i}", flops=1e10, memory_rate=100e9, egress=12.5e6, ingress=12.5e6,
             price=price, slowdown=slow if i == len(prices) - 1 else 1.0)
        for i, price in enumerate(prices)
    )  # fmt: skip
    return Cluster(name="test", nodes=nodes, default_latency=latency)


def scene_of(cluster: Cluster) -> Scene:
    job = Workload(name="job", num_params=NUMEL, batch=BATCH, step_times=(STEP,))
    return Scene.of(job, cluster, LOAD)


def ask(
    cluster: Cluster,
    target: str = "price",
    *,
    samples: int | None = None,
    deadline: float | None = None,
) -> Refined:
    scene = scene_of(cluster)
    job = Workload(name="job", num_params=NUMEL, batch=BATCH, step_times=(STEP,))
    return refine(job, scene, Settings(), target=target, samples=samples, deadline=deadline,
                  budget=100.0)  # fmt: skip


def test_a_training_costs_the_hours_of_the_machines_in_use():
    scene = scene_of(cluster_of(2.0, 3.0))
    alone, both = simulate(scene, "alone"), simulate(scene, "ssgd")
    per_hour = HOUR * alone.samples_per_second
    assert alone.price_per_sample == pytest.approx(2.0 / per_hour)
    assert both.price_of(10) == pytest.approx(10 * 5.0 / HOUR / both.samples_per_second)
    assert both.price_of(None) is None


def test_traffic_is_paid_where_it_leaves_a_site():
    plain = cluster_of(0.0, 0.0)
    nodes = tuple(
        dataclasses.replace(node, site=site)
        for node, site in zip(plain.nodes, ("east", "west"), strict=True)
    )
    sites = (Site(name="east", traffic_price=4.0), Site(name="west"))
    found = simulate(scene_of(dataclasses.replace(plain, nodes=nodes, sites=sites)), "ssgd")
    # Both send as much; only what leaves the east is paid.
    assert found.price_per_sample == pytest.approx(
        4.0 * found.bytes_per_step / 1e9 / (2 * BATCH), rel=1e-6
    )
    within = tuple(dataclasses.replace(node, site="east") for node in nodes)
    inside = dataclasses.replace(plain, nodes=within, sites=sites[:1])
    assert simulate(scene_of(inside), "ssgd").price_per_sample == 0.0


def test_an_unknown_price_is_refused_with_the_names_of_the_machines():
    cluster = cluster_of(1.0, None, None)
    with pytest.raises(InputError, match=r"nodes 'n1' and 'n2' .* state no price; give price"):
        ask(cluster)
    assert simulate(scene_of(cluster), "ssgd").price_per_sample is None
    assert simulate(scene_of(cluster), "alone").price_per_sample is not None


def test_rows_are_ranked_by_money():
    found = ask(cluster_of(1.0, 1.0, 1.0))
    costs = [row.simulated.price_per_sample for row in found.rows]
    assert costs == sorted(costs, key=lambda each: each or 0.0)
    assert found.choice.label == "alone"
    assert "for the least money per sample" in found.verdict


def test_a_cheap_slow_machine_is_named_unless_it_is_late():
    cluster = cluster_of(5.0, 1.0, slow=2.0)
    told = ask(cluster).caveats
    assert any(text.startswith("n1 by itself would need about 13.89") for text in told)
    samples = int(HOUR * BATCH / STEP)  # an hour on n0, two on n1
    late = ask(cluster, samples=samples, deadline=1.5 * HOUR)
    assert late.choice.label == "alone"
    assert not any("by itself" in text for text in late.caveats)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["price", "bytes"])
def test_the_cheapest_that_is_in_time_wins(target: str):
    cluster = cluster_of(1.0, 1.0, 1.0, 1.0)
    samples = int(HOUR * BATCH / STEP)  # a bit over an hour on one machine
    easy = ask(cluster, target, samples=samples, deadline=2 * HOUR)
    assert easy.choice.label == "alone"
    tight = ask(cluster, target, samples=samples, deadline=0.5 * HOUR)
    assert tight.choice.label != "alone"
    assert tight.choice.duration is not None
    assert tight.choice.duration <= 0.5 * HOUR
    in_time = [row for row in tight.rows if not row.late and not row.candidate.longer]
    assert tight.choice.cost <= 1.1 * min(row.cost for row in in_time)
    assert "It meets the deadline of 30 min" in tight.verdict


def test_what_is_late_comes_after_all_that_is_not():
    found = ask(cluster_of(1.0, 1.0, 1.0), samples=int(HOUR * BATCH / STEP), deadline=0.6 * HOUR)
    late = [row.late > 0 for row in found.rows]
    assert late == sorted(late)
    assert 0 < sum(late) < len(late)
    for row in found.rows:
        assert row.duration is not None
        assert row.late == max(0.0, row.duration - 0.6 * HOUR)


def test_where_all_are_late_the_fastest_says_by_how_much():
    found = ask(cluster_of(1.0, 1.0), "time", samples=int(HOUR * BATCH / STEP), deadline=60.0)
    asked = [row for row in found.rows if not row.candidate.longer]
    assert found.choice.duration == min(row.duration or 0.0 for row in asked)
    assert found.verdict.startswith(
        f"No simulated method meets the deadline of 60 s: the fastest, {found.choice.label}, takes "
    )
    assert "too long" in found.verdict


@pytest.mark.slow
def test_a_longer_period_that_would_be_in_time_is_named_and_not_chosen():
    cluster = cluster_of(1.0, 1.0, 1.0, 1.0, latency=0.5)
    samples = int(HOUR * BATCH / STEP)
    rows = ask(cluster, "time", samples=samples).rows
    least = min(row.duration or 0.0 for row in rows if not row.candidate.longer)
    longer = min(row.duration or 0.0 for row in rows if row.candidate.longer)
    assert longer < least  # or this says nothing
    found = ask(cluster, "time", samples=samples, deadline=(longer + least) / 2)
    assert not found.choice.candidate.longer
    assert "with a longer period than asked for" in found.verdict


def test_a_deadline_that_is_only_just_met_is_a_caveat():
    samples = int(HOUR * BATCH / STEP)
    found = ask(cluster_of(1.0), samples=samples, deadline=1.05 * HOUR)
    assert "of it to spare" in found.caveats[0]
    assert ask(cluster_of(1.0), samples=samples, deadline=2 * HOUR).caveats == ()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"deadline": 60.0}, "deadline without samples"),
        ({"samples": 0}, "samples = 0"),
        ({"samples": 1, "deadline": 0.0}, "deadline = 0.0"),
        ({"target": "prise"}, "price"),
    ],
)
def test_objectives_that_mean_nothing_are_refused(given: dict, says: str):
    with pytest.raises(InputError, match=says):
        make_objective(cluster_of(1.0), **given)


def test_json_says_what_it_costs_and_whether_it_is_in_time():
    told = ask(cluster_of(1.0, 1.0), samples=10**6, deadline=10 * HOUR).to_dict()
    assert (told["samples"], told["deadline"], told["target"]) == (10**6, 36000.0, "price")
    for row in told["rows"]:
        assert row["price"] == pytest.approx(1e6 * row["price_per_sample"])
        assert row["meets_deadline"] is (row["duration"] <= 36000.0)
    assert ask(cluster_of(1.0), "time").to_dict()["rows"][0]["meets_deadline"] is None


def test_the_table_marks_what_is_late_and_cuts_nothing(capsys: pytest.CaptureFixture[str]):
    from rich.console import Console

    found = ask(cluster_of(1.0, 1.0, 1.0), samples=int(HOUR * BATCH / STEP), deadline=0.6 * HOUR)
    Console(width=80).print(refined_report(found, ""))
    told = capsys.readouterr().out
    assert "✗ misses the deadline of 36 min" in told
    assert sum(line.startswith("✗ ") for line in told.splitlines()) == sum(
        row.late > 0 for row in found.rows
    )
    assert "price" in told
    assert "…" not in told


def test_without_an_amount_the_price_is_that_of_a_million_samples(
    capsys: pytest.CaptureFixture[str],
):
    from rich.console import Console

    Console(width=80).print(refined_report(ask(cluster_of(3.6)), ""))
    told = capsys.readouterr().out
    assert "price/M" in told
    assert "a million samples" in told
    assert Objective().samples is None
