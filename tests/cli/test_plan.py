"""`thinwire plan` with a simulation."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

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
        (["--target", "energy"], "state no power"),
        (["--target", "price"], "state no price"),
        (["--deadline", "1 h"], "deadline without samples"),
        (["--deadline", "1", "--samples", "1M"], "no unit"),
        (["--no-simulate", "--samples", "1M"], "--samples has no effect with --no-simulate"),
        (["--no-simulate", "--deadline", "1 h"], "--deadline has no effect with --no-simulate"),
        (["--scale", "2,4", "--plot", "x.svg"], "--plot has no effect with --scale"),
        (["--plot", "x.png"], "must end in .svg"),
        (["--plot", "nowhere/x.svg"], "a folder that exists"),
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


RENTED = """
schema = 1
name = "rented"
latency = "0.1 ms"
[defaults]
link = "1 Gbit/s"
flops = "5 TFLOP/s"
memory_rate = "300 GB/s"
price = "2.5 /h"
[[nodes]]
name = "vm"
count = 3
"""


def test_a_price_and_a_deadline_are_shown_and_drawn(thinwire, tmp_path):
    (tmp_path / "rented.toml").write_text(RENTED)
    code, out, err = thinwire(
        "plan", "rented.toml", "--params", "2M", "--step-time", "0.1s", "--target", "price",
        "--samples", "1M", "--deadline", "30 min", "--plot", "steps.svg",
    )  # fmt: skip
    assert code == 0, err
    assert "It meets the deadline of 30 min" in " ".join(out.split())
    assert any(line.startswith("✗ alone") for line in out.splitlines())
    picture = ET.fromstring((tmp_path / "steps.svg").read_text())
    words = "".join(picture.itertext())
    assert "simulated, program by program" in words
    assert words.count("(the advice)") == 1
    assert words.count("a step") == 3
    assert words.count("vm-2") == 3


def test_closed_forms_are_drawn_where_nothing_is_simulated(thinwire, tmp_path):
    code, out, err = thinwire("plan", *QUICK, "--no-simulate", "--plot", "steps.svg", "--json")
    assert code == 0, err
    assert json.loads(out)["simulation"] is None
    picture = ET.fromstring((tmp_path / "steps.svg").read_text())
    assert "closed forms, phase by phase" in "".join(picture.itertext())
    classes = {path.get("class") for path in picture.iter("{http://www.w3.org/2000/svg}path")}
    assert classes == {"compute", "send", "wait"}


def test_a_link_by_name_brings_its_rate_and_latency_and_says_whose_they_are(thinwire):
    asked = ["plan", "--model", "resnet50", "--nodes", "4", "--no-simulate", "--link"]
    code, out, err = thinwire(*asked, "1gbe-tcp")
    assert code == 0, err
    assert "1gbe-tcp: published rate" in " ".join(out.split())
    assert "give a latency" not in " ".join(out.split())
    code, out, _ = thinwire(*asked, "rdma-100g")
    assert code == 0
    assert "give a latency" in " ".join(out.split())  # nobody has published one
    code, _, err = thinwire(*asked, "2gbe-tcp")
    assert code == 2
    assert "10gbe-tcp" in err
