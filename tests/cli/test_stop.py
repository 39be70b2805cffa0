"""Comparisons that are stopped in the middle, and finished later."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from thinwire.report import read_record

pytestmark = [pytest.mark.slow, pytest.mark.distributed]

COMMAND = [sys.executable, "-m", "thinwire", "compare"]
ASKED = [
    *("--task", "thinwire.testing.toys:Moons", "--methods", "alone,ssgd", "--seeds", "2"),
    *("--set", "train.epochs=30", "--processes", "1", "--out", "out"),
]
DEADLINE = 120.0


def lines(folder: Path) -> list[dict[str, Any]]:
    """The whole lines of the runs so far."""
    found = []
    for part in sorted(folder.glob("record-*.jsonl")):
        whole = part.read_bytes().rpartition(b"\n")[0]
        found += [json.loads(line) for line in whole.splitlines()]
    return found


def begin(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *ASKED],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,  # a terminal sends its signals to the whole group
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def stop_in_the_middle(folder: Path, number: signal.Signals) -> tuple[int, str]:
    """Signal the group while its second run is on: exit code and what it said."""
    process = begin(folder)
    until = time.monotonic() + DEADLINE
    while sum(line["kind"] == "run" for line in lines(folder / "out")) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        threading.Event().wait(0.02)
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=DEADLINE)
    return process.returncode, err


def resume(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "--resume", "out"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda n: n.name)
def test_a_stopped_comparison_is_readable_and_goes_on_where_it_was(tmp_path, number):
    code, err = stop_in_the_middle(tmp_path, number)
    assert "Traceback" not in err, err
    if number == signal.SIGINT:
        assert code == 130
        assert "thinwire compare --resume out" in err
    else:
        assert code == -signal.SIGKILL

    first = read_record(tmp_path / "out")
    done = {run.start.run: run.end for run in first.runs if run.status == "ok"}
    assert "alone/0" in done
    assert 1 <= len(done) < 4
    assert [run.status for run in first.runs].count("failed") == 0

    finished = resume(tmp_path)
    assert finished.returncode == 0, finished.stderr
    record = read_record(tmp_path / "out")
    assert record.done() == {(label, seed) for label in ("alone", "ssgd") for seed in (0, 1)}
    assert record.warnings == [] or number == signal.SIGKILL  # a torn line, at most
    begun = [line["run"] for line in lines(tmp_path / "out") if line["kind"] == "run"]
    for run, end in done.items():
        assert begun.count(run) == 1  # not repeated
        assert next(r.end for r in record.runs if r.start.run == run) == end
    assert "alone" in finished.stdout
    assert "ssgd" in finished.stdout
    assert (tmp_path / "out" / "report.html").exists()


def of_session(session: int) -> list[int]:
    """Processes of a session that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, *rest = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(rest[2]) == session and state != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_when_only_the_main_process_is_killed_all_others_end_by_themselves(tmp_path):
    process = begin(tmp_path)
    until = time.monotonic() + DEADLINE
    while not lines(tmp_path / "out"):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        threading.Event().wait(0.02)
    assert len(of_session(process.pid)) > 1
    process.kill()
    process.communicate(timeout=DEADLINE)  # until nobody holds its streams any more
    while left := of_session(process.pid):
        assert time.monotonic() < until, left
        threading.Event().wait(0.02)
