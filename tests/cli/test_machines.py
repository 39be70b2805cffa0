"""The verbs for machines on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from thinwire.run import doctor
from thinwire.run.doctor import Examination, Finding
from thinwire.run.doctor.start import start_processes

MOONS = "thinwire.testing.toys:Moons"
HOSTS = '[[hosts]]\nname = "alice"\n[[hosts]]\nname = "bob"\naddress = "10.0.0.2"\n'


def test_a_machine_alone_is_examined_and_written(thinwire, tmp_path):
    code, out, err = thinwire("doctor", "--task", MOONS, "--json", "seen.json")
    kept = json.loads((tmp_path / "seen.json").read_text())
    assert code == kept["exit_code"], out + err
    assert out.startswith("versions: thinwire ")
    assert f"rank 0: {kept['ranks'][0]['hostname']}, " in out


def test_what_must_be_fixed_is_exit_code_1(thinwire, monkeypatch):
    bad = Finding(level="fix", topic="t", what="a thing")
    found = doctor.examine(doctor.Request(task=MOONS, seconds=0.0))
    assert found is not None
    examination = Examination(ranks=found.ranks, findings=[bad])
    monkeypatch.setattr(doctor, "examine", lambda request: examination)
    code, out, _ = thinwire("doctor")
    assert code == 1
    assert "fix: a thing" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["doctor", "--task", "digts"], "did you mean 'digits'"),
        (["doctor", "--model", "no_such_module:f"], "no_such_module"),
        (["doctor", "--model", "a:b", "--task", MOONS], "--task has no effect"),
        (["doctor", "--json", "absent/seen.json"], "--json"),
        (["doctor", "--batch", "0"], "--batch"),
        (["launch", "absent.toml", "train.py"], "absent.toml: cannot be read"),
        (["launch", "hosts.toml"], "Missing argument 'SCRIPT'"),
        (["launch", "hosts.toml", "-m"], "Missing argument 'SCRIPT'"),
        (["launch", "hosts.toml", "--ssh", "train.py"], "--ssh must come before hosts.toml"),
    ],
)
def test_bad_input_is_exit_code_2(thinwire, tmp_path, arguments, says):
    (tmp_path / "hosts.toml").write_text(HOSTS)
    code, _, err = thinwire(*arguments)
    assert code == 2
    assert says in err


def test_processes_within_torchrun_are_refused(thinwire, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    code, _, err = thinwire("doctor", "--processes", "2")
    assert code == 2
    assert "--processes has no effect" in err


def test_the_lines_are_printed_and_the_scripts_options_left_alone(thinwire, tmp_path):
    (tmp_path / "hosts.toml").write_text(HOSTS)
    code, out, _ = thinwire("launch", "hosts.toml", "train.py", "--help", "--ssh")
    assert code == 0
    lines = out.splitlines()
    assert lines[::2] == ["# on alice (alice)", "# on bob (10.0.0.2)"]
    assert all(line.endswith("train.py --help --ssh") for line in lines[1::2])


@pytest.mark.distributed
@pytest.mark.slow
def test_several_processes_are_started_and_rank_0_speaks(tmp_path):
    command = [sys.executable, "-m", "thinwire", "doctor", "--processes", "2", "--task", MOONS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--json", "seen.json"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("versions: ") == 1
    assert len(json.loads((tmp_path / "seen.json").read_text())["pairs"]) == 1


@pytest.mark.distributed
@pytest.mark.slow
def test_bad_input_to_several_processes_keeps_its_exit_code(capfd):
    assert start_processes(2, ["doctor", "--task", "digts"]) == 2
    assert capfd.readouterr().err.count("did you mean 'digits'") == 1
