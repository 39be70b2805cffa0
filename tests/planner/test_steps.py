"""Timelines of the best methods add up to the steps they are drawn for."""

from __future__ import annotations

import itertools

import pytest

from thinwire.cluster import Cluster, Node
from thinwire.flat import Layer
from thinwire.planner import Settings, Workload, plan
from thinwire.planner.refine import refine
from thinwire.planner.simulate import Scene
from thinwire.planner.steps import StepTimeline, closed_timelines
from thinwire.planner.timed import Load
from thinwire.planner.traced import traced_timelines

NUMEL = 4_000_000
JOB = Workload(name="job", num_params=NUMEL, batch=8, step_times=(0.2,))
LOAD = Load(
    layers=(Layer("a", 0, NUMEL // 2, (1000, 2000)), Layer("b", NUMEL // 2, NUMEL, (1000, 2000))),
    order=(1, 0),
    forward=(0.5, 0.5),
    backward=(0.5, 0.5),
)


def cluster_of(size: int) -> Cluster:
    """Machines on one switch, the last of several half as fast."""
    nodes = tuple(
        Node(name=f"n{i}", flops=1e10, memory_rate=100e9, egress=12.5e6, ingress=12.5e6,
             slowdown=2.0 if 0 < i == size - 1 else 1.0)
        for i in range(size)
    )  # fmt: skip
    return Cluster(name="test", nodes=nodes, default_latency=1e-4)


def check(timeline: StepTimeline) -> None:
    """Every worker computes or waits, one thing at a time, within what is shown."""
    for rank in range(len(timeline.nodes)):
        mine = sorted(
            (a.start, a.end)
            for a in timeline.activities
            if a.rank == rank and a.what in ("compute", "wait")
        )
        assert mine
        assert mine[0][0] >= 0.0
        assert mine[-1][1] <= timeline.shown + 1e-9
        assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(mine))
    assert all(a.end >= a.start for a in timeline.activities)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_closed_forms_fill_whole_steps(size: int):
    cluster = cluster_of(size)
    found = plan(JOB, cluster, Settings())
    timelines = closed_timelines(found, cluster)
    assert len(timelines) == min(3, 2 * size - 1)
    assert timelines[0].label == found[found.choice].label
    for timeline in timelines:
        check(timeline)
        steps = timeline.shown / timeline.step_time
        assert steps == pytest.approx(round(steps))
        for rank in range(len(timeline.nodes)):
            spent = timeline.seconds(rank, "compute") + timeline.seconds(rank, "wait")
            assert spent == pytest.approx(timeline.shown)


def test_who_is_slow_computes_longer_and_the_others_wait():
    cluster = cluster_of(3)
    found = plan(JOB, cluster, Settings(accumulate=2))
    timelines = closed_timelines(found, cluster)
    alike = [t for t in timelines if len(t.nodes) == 3 and not t.label.startswith("localsgd")]
    assert alike
    for timeline in alike:
        computes = [timeline.seconds(rank, "compute") for rank in range(3)]
        waits = [timeline.seconds(rank, "wait") for rank in range(3)]
        assert computes[2] > 1.5 * computes[0]
        assert waits[0] > waits[2]
        form = next(p for p in found.predictions if p.label == timeline.label)
        assert waits[2] == pytest.approx(form.exposed / form.step_time * timeline.shown)


def test_a_traced_method_waits_as_long_as_its_row_says():
    scene = Scene.of(JOB, cluster_of(3), LOAD)
    refined = refine(JOB, scene, Settings(), budget=100.0)
    told: list[str] = []
    timelines = traced_timelines(refined, scene, lambda label, done, of: told.append(label))
    assert told == [timeline.label for timeline in timelines]
    assert timelines[0].label == refined.choice.label
    assert len(timelines) == 3
    for timeline in timelines:
        check(timeline)
        row = refined[timeline.label]
        assert not row.candidate.longer
        waited = sum(timeline.seconds(rank, "wait") for rank in range(len(timeline.nodes)))
        share = waited / timeline.shown / len(timeline.nodes)
        assert share == pytest.approx(row.simulated.waiting, abs=0.05)
        if len(timeline.nodes) > 1:
            assert any(a.what == "send" for a in timeline.activities)
