"""`thinwire plan --pilot`: a plan's best methods, trained on the virtual cluster."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from thinwire.cli import piloting
from thinwire.report import read_record
from thinwire.run import pilot as training

NODES = ("--nodes", "2", "--link", "100 Mbit/s", "--device-flops", "2 GFLOP/s")
SHORT = ("--pilot", "--pilot-steps", "16", "--pilot-best", "1")


@pytest.mark.distributed
def test_step_and_loss_of_a_task_are_of_one_model_and_as_long_as_its_own_runs(thinwire, tmp_path):
    code, out, err = thinwire("plan", *NODES, "--task", "digits", *SHORT, "--json",
                              "--plot", "steps.svg")  # fmt: skip
    assert code == 0, err
    told = json.loads(out)
    pilot, simulated = told["pilot"], told["simulation"]["rows"]
    assert (pilot["task"], pilot["steps"], pilot["batch"], pilot["seed"]) == ("digits", 16, 8, 0)
    assert not any("time per step that of" in note for note in pilot["notes"])
    step_times = {row["label"]: row["step_time"] for row in simulated}
    runs = {run.start.label: run for run in read_record(tmp_path / pilot["folder"]).runs}
    assert len(runs) == len(pilot["rows"]) == 3
    for row in pilot["rows"]:
        assert row["step_time"] == step_times[row["label"]]
        assert row["curve"]["losses"][-1] < row["curve"]["losses"][0]
        run = runs[row["trained_as"]]
        if row["label"] == row["trained_as"]:  # the run's own clock agrees with the plan's
            assert row["curve"]["times"][-1] == pytest.approx(run.time, rel=0.1)
        assert [line.loss for line in run.evals] == row["curve"]["losses"]
    words = "".join(ET.fromstring((tmp_path / "steps.svg").read_text()).itertext())
    assert "Test loss of digits by virtual time" in words
    assert all(row["label"] in words for row in pilot["rows"])


@pytest.mark.distributed
def test_the_loss_of_one_model_by_the_steps_of_another_is_told(thinwire):
    code, out, err = thinwire(
        "plan", "--params", "2M", "--step-time", "0.1s", "--nodes", "2", "--link", "100 Mbit/s",
        "--pilot", "--pilot-steps", "8", "--pilot-best", "1", "--pilot-seed", "3",
        "--set", "train.lr=0.03",
    )  # fmt: skip
    assert code == 0, err
    words = " ".join(out.split())
    assert "Loss by step is that of the model of digits (20.1k parameters, batch 8)" in words
    assert "time per step that of model (2M, batch 32)" in words
    assert "8 steps of 8 samples a worker" in words
    assert "seed 3" in words


@pytest.mark.distributed
def test_ctrl_c_leaves_what_was_measured_and_the_plan(thinwire, monkeypatch):
    def stopped(jobs, make_task, folder, processes, watch):
        original(jobs[:1], make_task, folder, processes, watch)
        raise KeyboardInterrupt

    original = training.run_jobs
    monkeypatch.setattr(training, "run_jobs", stopped)
    code, out, _ = thinwire("plan", *NODES, "--task", "digits", *SHORT, "--json")
    assert code == 130
    told = json.loads(out)
    assert told["simulation"]["choice"]
    assert [row["trained_as"] for row in told["pilot"]["rows"]] == ["ssgd"]
    assert "Stopped before its end: what is not here was not measured." in told["pilot"]["notes"]
    assert told["pilot"]["verdict"].startswith("By loss per second so far ")


@pytest.mark.distributed
def test_a_pilot_out_of_patience_ends_and_says_how_to_shorten_it(thinwire, monkeypatch):
    train = training.train_pilot
    monkeypatch.setattr(training, "train_pilot", lambda request: train(request, patience=0.0))
    code, out, err = thinwire("plan", *NODES, "--task", "digits", *SHORT, "--json")
    assert code == 0, err
    assert any("--pilot-steps takes fewer" in note for note in json.loads(out)["pilot"]["notes"])


def test_a_task_alone_is_planned_for_with_its_own_batch(thinwire):
    code, out, err = thinwire("plan", *NODES, "--task", "digits", "--no-simulate", "--json")
    assert code == 0, err
    assert json.loads(out)["workload"]["num_params"] == 20_122
    assert json.loads(out)["workload"]["batch"] == 8


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--task", "digit", "--pilot"], "task = 'digit'"),
        (["--task", "cifar10", "--pilot", "--data", "nowhere"], "nowhere"),
        (["--task", "digits", "--data", "here", "--pilot"], "no effect on task digits"),
        (["--task", "digits", "--pilot", "--no-simulate"], "--pilot has no effect"),
        (["--task", "digits", "--pilot", "--scale", "2,4"], "--pilot has no effect with --scale"),
        (["--task", "digits", "--pilot-steps", "8"], "--pilot-steps has no effect without --pilot"),
        (["--task", "digits", "--pilot-best", "2"], "--pilot-best has no effect without --pilot"),
        (["--task", "digits", "--pilot-seed", "0"], "--pilot-seed has no effect without --pilot"),
        (["--task", "digits", "--set", "train.lr=1"], "--set has no effect without --pilot"),
        (["--task", "digits", "--model", "resnet20"], "beside --model or --params without --pilot"),
        (["--model", "resnet20", "--data", "here"], "--data here has no effect"),
        (["--task", "digits", "--pilot", "--pilot-steps", "0"], "pilot-steps"),
        (["--task", "digits", "--pilot", "--set", "lr"], "the form is key=value"),
        (["--task", "digits", "--pilot", "--set", "train.epochs=3"], "the plan says it"),
        (["--task", "digits", "--pilot", "--set", "train.lrr=1"], "train.lr"),
    ],
)
def test_what_a_pilot_cannot_do_is_refused_before_anything_runs(
    thinwire, monkeypatch, arguments, says
):
    monkeypatch.setattr(piloting.Course, "run", lambda *_: pytest.fail("it ran"))
    monkeypatch.delenv("THINWIRE_DATA", raising=False)
    code, _, err = thinwire("plan", *NODES, *arguments)
    assert code == 2
    assert says in " ".join(err.split())


def test_one_machine_is_refused_and_named(thinwire, tmp_path):
    (tmp_path / "one.toml").write_text(
        'schema = 1\nname = "one"\nlatency = "1 ms"\n[defaults]\nlink = "1 Gbit/s"\n'
        'flops = "2 GFLOP/s"\nmemory_rate = "8 GB/s"\n[[nodes]]\nname = "a"\n'
    )
    code, _, err = thinwire("plan", "one.toml", "--task", "digits", "--pilot")
    assert code == 2
    assert "--pilot has no effect on cluster 'one'" in err
