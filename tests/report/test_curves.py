from __future__ import annotations

import pytest

from thinwire.report import Step
from thinwire.report.curves import AXES, METRICS, curve_of, run_points


def _step(run, rank, step, sent, loss=1.0):
    return Step(run=run, rank=rank, step=step, time=0.1 * step, loss=loss, sent=sent)


def test_mean_and_band_over_seeds(make_run):
    runs = [make_run("ssgd", seed, accuracies=[0.1 * seed, 0.5]) for seed in range(3)]
    curve = curve_of("ssgd", runs, "accuracy", "time")
    assert curve is not None
    assert curve.x == (1.0, 2.0)
    assert curve.mean == pytest.approx((0.1, 0.5))
    assert curve.low == pytest.approx((0.0, 0.5))
    assert curve.high == pytest.approx((0.2, 0.5))


def test_seeds_with_other_times_are_laid_on_the_stretch_they_share(make_run):
    runs = [
        make_run("ssgd", 0, accuracies=[0.0, 1.0]),
        make_run("ssgd", 1, accuracies=[0.0, 1.0], every=1.5),
    ]
    curve = curve_of("ssgd", runs, "accuracy", "time")
    assert curve is not None
    assert (curve.x[0], curve.x[-1]) == (1.5, 2.0)
    assert curve.mean[0] == pytest.approx(0.25)


def test_a_failed_seed_does_not_cut_the_others_short(make_run):
    runs = [make_run("ssgd", 0), make_run("ssgd", 1, accuracies=[0.1], status="failed")]
    curve = curve_of("ssgd", runs, "accuracy", "time")
    assert curve is not None
    assert (curve.x[-1], curve.num_seeds, curve.partial) == (2.0, 1, False)


def test_a_method_whose_every_run_failed_is_still_drawn_and_marked(make_run):
    curve = curve_of("ssgd", [make_run("ssgd", status="failed")], "accuracy", "steps")
    assert curve is not None
    assert curve.partial


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("axis", AXES)
def test_a_run_without_lines_has_no_curve(make_run, metric, axis):
    assert curve_of("ssgd", [make_run("ssgd", accuracies=[])], metric, axis) is None


def test_bytes_are_those_of_an_average_worker_though_one_alone_logs(make_run):
    run = make_run("gtopk", sent=[100, 300], accuracies=[0.5, 0.9])
    run.steps = [_step("gtopk/0", 0, 10, 50), _step("gtopk/0", 0, 20, 100)]
    x, _ = run_points(run, "accuracy", "bytes")
    assert x.tolist() == [100.0, 200.0]


def test_servers_bytes_are_on_the_axis_too(make_run):
    run = make_run("asgd", sent=[100, 100], server_sent=200, accuracies=[0.5])
    run.steps = [_step("asgd/0", rank, 5, 100) for rank in range(2)]
    assert run_points(run, "accuracy", "bytes")[0].tolist() == [200.0]
    assert run_points(run, "loss", "bytes")[0].tolist() == [200.0]


def test_without_steps_the_evaluations_bytes_are_stretched_to_the_total(make_run):
    run = make_run("gtopk", sent=[1000, 3000], accuracies=[0.5, 0.9])
    assert run_points(run, "accuracy", "bytes")[0].tolist() == [1000.0, 2000.0]


def test_loss_is_averaged_over_workers(make_run):
    run = make_run("ssgd")
    run.steps = [_step("ssgd/0", rank, 1, 0, loss) for rank, loss in enumerate((1.0, 3.0))]
    _, y = run_points(run, "loss", "bytes")
    assert y.mean() == pytest.approx(3.0)  # both stand at 0 bytes: the last stands for them
    run.steps += [_step("ssgd/0", rank, 2, 8, 5.0) for rank in range(2)]
    x, y = run_points(run, "loss", "time")
    assert (len(x), y.mean()) == (4, pytest.approx(3.5))


def test_a_nan_loss_leaves_a_gap_only(make_run):
    run = make_run("ssgd")
    run.steps = [
        _step("ssgd/0", 0, step, 8 * step, loss)
        for step, loss in enumerate((2.0, float("nan"), 1.0))
    ]
    _, y = run_points(run, "loss", "steps")
    assert y.tolist() == [2.0, 1.0]


def test_long_runs_are_thinned(make_run):
    run = make_run("ssgd", accuracies=[i / 1000 for i in range(1000)])
    run.steps = [_step("ssgd/0", 0, step, step) for step in range(5000)]
    for metric, most in (("accuracy", 120), ("loss", 40)):
        curve = curve_of("ssgd", [run], metric, "time")
        assert curve is not None
        assert len(curve.x) <= most
