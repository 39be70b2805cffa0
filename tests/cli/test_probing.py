"""`thinwire probe` on the command line."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from thinwire.cluster import load_cluster
from thinwire.models import load_layer_times
from thinwire.run import probe as probes


@pytest.fixture(autouse=True)
def quickly(monkeypatch) -> None:
    """Short measurements."""
    whole = probes.probe

    def probe(request: probes.Request, files: probes.Files) -> int:
        return whole(dataclasses.replace(request, compute=0.05, kernels=0.05), files)

    monkeypatch.setattr(probes, "probe", probe)


@pytest.mark.slow
def test_a_machine_alone_is_measured_and_its_files_are_read_back(thinwire, tmp_path):
    words = ("-o", "mine.toml", "--batch", "1", "--threads", "1", "--json", "all.json")
    code, out, err = thinwire("probe", *words, "--name", "my desk")
    assert code == 0, out + err
    assert "probe: 1 of 1: resnet20" in err
    assert "written: mine.toml, mine.layers.toml" in out
    cluster = load_cluster(tmp_path / "mine.toml")
    assert (cluster.name, cluster.size) == ("my desk", 1)
    layers = load_layer_times(tmp_path / "mine.layers.toml")
    assert layers.nodes[0].name == cluster.nodes[0].name
    assert json.loads((tmp_path / "all.json").read_text())["computing"]["0"]["batch"] == 1
    code, out, err = thinwire("plan", "mine.toml", "--model", "resnet20", "--no-simulate")
    assert code == 0, err
    assert "resnet20" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--model", "resnet21"], "resnet20"),
        (["-o", "absent/c.toml"], "-o absent/c.toml: must be a file in a folder that exists"),
        (["--json", "mine.toml"], "--json mine.toml: is there already"),
        (["-o", "mine.toml"], "--force"),
        (["--batch", "0"], "--batch"),
        (["--seconds", "0"], "--seconds"),
    ],
)
def test_bad_input_is_exit_code_2_and_nothing_is_written(thinwire, tmp_path, arguments, says):
    (tmp_path / "mine.toml").write_text("mine")
    code, _, err = thinwire("probe", *arguments)
    assert code == 2
    assert says in err
    assert [file.name for file in tmp_path.iterdir()] == ["mine.toml"]
    assert (tmp_path / "mine.toml").read_text() == "mine"


def test_processes_within_torchrun_are_refused(thinwire, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    code, _, err = thinwire("probe", "--processes", "2")
    assert code == 2
    assert "--processes has no effect" in err


@pytest.mark.distributed
@pytest.mark.slow
def test_an_interrupted_probe_of_two_processes_leaves_what_it_measured(tmp_path):
    command = [sys.executable, "-m", "thinwire", "probe", "--processes", "2", "--batch", "1"]
    process = subprocess.Popen(
        [*command, "--threads", "1", "--seconds", "20"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    seen = ""
    until = time.monotonic() + 200
    while "wire 0-1" not in seen and time.monotonic() < until:
        seen += process.stdout.readline()
    process.send_signal(signal.SIGINT)
    seen += process.communicate(timeout=60)[0]
    assert process.returncode == 130, seen
    assert "what was measured until now is in cluster.toml" in seen
    assert load_cluster(tmp_path / "cluster.toml").size == 2
    assert "NOT COMPLETE" in (tmp_path / "cluster.toml").read_text()
