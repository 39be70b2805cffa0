"""Loss per second: curves with known answers laid on a plan's times."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from rich.console import Console

from thinwire.cluster import Cluster, Node
from thinwire.errors import InputError
from thinwire.flat import Layer
from thinwire.planner import Settings, Workload
from thinwire.planner.pilot import (
    Curve,
    Pilot,
    curve_of_points,
    judge,
    pilot_rows,
    pilot_steps,
    trained_as,
)
from thinwire.planner.pilot_table import pilot_report, pilot_table
from thinwire.planner.refine import Refined, refine
from thinwire.planner.simulate import Scene
from thinwire.planner.timed import Load

START = 2.0


def planned(size: int = 4) -> Refined:
    """A thin wire, on which dense methods wait and sparse ones do not."""
    nodes = tuple(
        Node(name=f"n{i}", flops=1e10, memory_rate=100e9, egress=12.5e6, ingress=12.5e6)
        for i in range(size)
    )
    cluster = Cluster(name="thin", nodes=nodes, default_latency=1e-4)
    load = Load(layers=(Layer("a", 0, 2_000_000, (2000, 1000)),), order=(0,), forward=(1.0,),
                backward=(1.0,))  # fmt: skip
    job = Workload(name="job", num_params=2_000_000, batch=8, step_times=(0.05,))
    return refine(job, Scene.of(job, cluster, load), Settings(density=0.001), budget=100.0)


@pytest.fixture(scope="module")
def plan() -> Refined:
    return planned()


def falling(
    label: str, per_step: float, steps: int = 100, floor: float = 0.1, **more: Any
) -> Curve:
    """A loss that falls by so much in each step, down to the floor; a point every ten."""
    at = tuple(float(s) for s in range(0, steps + 1, 10))
    losses = tuple(max(floor, START - per_step * s) for s in at)
    return Curve(label=label, steps=at, losses=losses, accuracies=tuple(1 - x / 2 for x in losses),
                 **more)  # fmt: skip


def judged(plan: Refined, curves: dict[str, Curve], **more: Any) -> Pilot:
    return judge(plan, pilot_rows(plan), curves, task="toy", steps=100, batch=8, **more)


def alike(plan: Refined, per_step: float = 0.05) -> dict[str, Curve]:
    """All methods learn the same by steps; one machine by four times as many."""
    curves = {trained_as(row): falling(trained_as(row), per_step) for row in pilot_rows(plan)}
    return {**curves, "alone": falling("alone", per_step / 4, steps=400)}


def test_the_dense_baseline_the_best_lossy_rows_and_one_machine_are_trained(plan):
    rows = pilot_rows(plan, best=2)
    assert trained_as(rows[0]) == "ssgd"
    assert rows[-1].label == "alone"
    assert [row.candidate.lossy for row in rows] == [False, True, True, False]
    assert rows[1] is next(row for row in plan.rows if row.candidate.lossy)


def test_the_advice_is_always_among_them(plan):
    for best in (1, 2, 4):
        assert plan.choice in pilot_rows(plan, best)


def test_rows_with_the_updates_of_ssgd_share_its_curve(plan):
    assert {trained_as(plan[label]) for label in ("ssgd", "wfbp groups=buckets")} == {"ssgd"}
    assert trained_as(plan["gtopk density=0.001"]) == "gtopk density=0.001"


def test_one_machine_has_nothing_to_pilot():
    with pytest.raises(InputError, match="nothing to exchange"):
        pilot_rows(planned(1))


def test_fewer_than_one_method_is_refused(plan):
    with pytest.raises(InputError, match="pilot best = 0; allowed: a whole number, 1 or more"):
        pilot_rows(plan, 0)


def test_methods_that_learn_alike_by_steps_are_ranked_by_their_step_times(plan):
    pilot = judged(plan, alike(plan))
    lossy = [row for row in pilot.rows if row.row.candidate.lossy]
    times = [each.row.simulated.step_time for each in lossy]
    assert times == sorted(times)
    steps = (START - 0.1) / 0.05
    for each in lossy:
        assert each.reached == pytest.approx(steps * each.row.simulated.step_time, rel=0.06)
    assert "it leads, too" in pilot.verdict or plan.rows[0].label in pilot.verdict


def test_a_method_that_learns_less_by_step_loses_what_it_won_by_step_time(plan):
    curves, fastest = alike(plan), pilot_rows(plan)[1]
    curves[trained_as(fastest)] = falling(trained_as(fastest), 0.019)
    pilot = judged(plan, curves)
    assert pilot.rows[0].label != fastest.label
    assert f"by samples per second {plan.rows[0].label} leads" in pilot.verdict
    behind = pilot[fastest.label].reached
    assert behind is not None
    assert behind > (pilot.rows[0].reached or math.inf)


def test_the_common_loss_is_reached_by_all_that_learn_and_by_none_that_hardly_does(plan):
    curves = alike(plan)
    lame = trained_as(pilot_rows(plan)[2])
    curves[lame] = falling(lame, 0.001)
    pilot = judged(plan, curves)
    assert pilot.common_loss == pytest.approx(0.1)
    assert [each.label for each in pilot.rows if each.reached is None] == [lame]
    assert pilot.rows[-1].label == lame
    assert f"{lame}: did not reach that loss; its least was 1.9." in pilot.notes


def test_losses_are_compared_when_the_first_has_done_its_samples(plan):
    pilot = judged(plan, alike(plan, per_step=0.01))
    assert pilot.common_time == min(each.times[-1] for each in pilot.rows)
    dense = pilot[pilot.dense]
    done = (pilot.common_time or 0.0) / dense.row.simulated.step_time
    assert dense.loss == pytest.approx(START - 0.01 * done)
    assert dense.accuracy == pytest.approx(1 - (START - 0.01 * done) / 2)


def test_the_advice_that_falls_behind_is_named(plan):
    curves = alike(plan)
    curves[plan.choice.label] = falling(plan.choice.label, 0.001)
    pilot = judged(plan, curves)
    assert f"The advice above, {plan.choice.label}, did not reach that loss." in pilot.verdict


def test_a_curve_ends_where_its_loss_is_no_number_and_comes_last(plan):
    points = [(0.0, START, 0.0), (10.0, 0.05, 0.9), (20.0, math.nan, 0.1), (30.0, 0.1, 0.9)]
    label = trained_as(pilot_rows(plan)[1])
    curve = curve_of_points(label, points, whole=True)
    assert (curve.steps, curve.diverged) == ((0.0, 10.0), True)
    pilot = judged(plan, {**alike(plan), label: curve})
    assert pilot.rows[-1].label == label
    assert any("smaller learning rate" in note for note in pilot.notes)


def test_a_pilot_that_was_stopped_says_so_far(plan):
    curves = alike(plan)
    rows = pilot_rows(plan)
    cut = trained_as(rows[2])
    curves[cut] = falling(cut, 0.05, steps=20, whole=False)
    del curves[trained_as(rows[3])]
    pilot = judged(plan, curves)
    assert pilot.verdict.startswith("By loss per second so far ")
    assert pilot[cut].reached is None
    assert any(f"{cut}: was stopped before it reached" in note for note in pilot.notes)
    assert f"{rows[3].label}: not trained, or not to its first test." in pilot.notes
    whole = [each.times[-1] for each in pilot.rows if each.curve.whole]
    assert pilot.common_time == min(whole)


@pytest.mark.parametrize("curves", [{}, {"ssgd": Curve(label="ssgd", steps=(0.0,), losses=(2.0,),
                                                       accuracies=(0.1,))}])  # fmt: skip
def test_without_a_tested_method_there_is_no_verdict(plan, curves):
    pilot = judged(plan, curves)
    assert pilot.verdict.startswith("No second verdict: the pilot ended")
    assert pilot.rows == ()


def test_where_nobody_learned_there_is_no_verdict(plan):
    curves = {label: falling(label, 0.0) for label in alike(plan)}
    pilot = judged(plan, curves)
    assert pilot.common_loss is None
    assert "no method learned anything" in pilot.verdict


def test_default_steps_get_fewer_with_workers_methods_and_operations():
    base = pilot_steps(1e7, 8, 8, 6)
    assert pilot_steps(1e7, 8, 16, 6) < base
    assert pilot_steps(1e7, 8, 8, 12) < base
    assert pilot_steps(2e7, 8, 8, 6) < base
    assert pilot_steps(1e15, 8, 8, 6) == 20
    assert pilot_steps(1.0, 1, 1, 1) == 300


def test_the_report_fits_a_terminal_and_json_is_plain(plan):
    pilot = judged(plan, alike(plan), notes=("a note",), folder="runs/x")
    console = Console(width=80)
    with console.capture() as capture:
        console.print(pilot_report(pilot))
    lines = capture.get().splitlines()
    assert max(len(line) for line in lines) <= 80
    assert any(line.startswith("›") for line in lines)
    assert "- a note" in capture.get()
    assert pilot_table(pilot).row_count == len(pilot.rows)
    told = json.loads(json.dumps(pilot.to_dict()))
    assert told["rows"][0]["label"] == pilot.rows[0].label
    assert told["rows"][0]["time_to_common_loss"] == pilot.rows[0].reached
    assert told["folder"] == "runs/x"
