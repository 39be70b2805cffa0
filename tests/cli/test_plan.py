"""`thinwire plan` with a simulation."""

from __future__ import annotations

import json

import pytest

QUICK = ("--params", "2M", "--step-time", "0.1s", "--nodes", "2", "--link", "1gbit")


def test_a_plan_is_simulated_and_written(thinwire, tmp_path):
    code, out, err = thinwire("plan", *QUICK, "--write", "plan.toml")
    assert code == 0, err
    assert "closed" in out
    assert "Run it: thinwire run CLUSTER --method" in out
    assert (tmp_path / "plan.toml").read_text().startswith("# ")


def test_json_holds_the_simulation_or_null(thinwire):
    code, out, _ = thinwire("plan", *QUICK, "--target", "bytes", "--json")
    assert code == 0
    told = json.loads(out)["simulation"]
    assert told["target"] == "bytes"
    assert {"alone", "ssgd", "gtopk density=0.001"} <= {row["label"] for row in told["rows"]}
    code, out, _ = thinwire("plan", *QUICK, "--no-simulate", "--json")
    assert json.loads(out)["simulation"] is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["office", "--cluster", "office"], "--cluster office has no effect"),
        (["--no-simulate", "--target", "bytes"], "--target has no effect with --no-simulate"),
        (["--no-simulate", "--write", "x.toml"], "--write has no effect"),
        (["--scale", "2,4", "--write", "x.toml"], "--write has no effect with --scale"),
        (["--target", "energy"], "states no power"),
        (["--layer-times", "x.toml"], "--layer-times without --model"),
    ],
)
def test_what_has_no_effect_is_refused(thinwire, arguments, says):
    own = () if "office" in arguments else QUICK
    code, _, err = thinwire("plan", *own, *arguments)
    assert code == 2
    assert says in " ".join(err.split())


def test_a_cluster_is_named_without_an_option(thinwire):
    code, out, err = thinwire("plan", "gigabit", "--model", "resnet20", "--no-simulate")
    assert code == 0, err
    assert "on gigabit" in " ".join(out.split())
