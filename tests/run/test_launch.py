"""Real runs as a user starts them: by the command line, well and badly."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from thinwire.cluster import load_cluster
from thinwire.report import End, RunRecord, read_record
from thinwire.run.settings import TrainSettings
from thinwire.testing.toys import Moons

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

MOONS = "thinwire.testing.toys:Moons"
THINWIRE = [sys.executable, "-m", "thinwire"]
TORCHRUN = [
    *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
    *("--local-addr", "127.0.0.1", "--nproc-per-node", "2", "-m", "thinwire"),
]
SHORT = ["--set", "train.epochs=1", "--set", "train.threads=1"]
DEADLINE = 240.0

MISHAPS = """
import os, signal, time
from dataclasses import dataclass
from pathlib import Path
from thinwire import Method

@dataclass(frozen=True, kw_only=True)
class Mishap(Method):
    how: str = "kill"

    def worker(self, w):
        Path(f"pid{w.rank}").write_text(str(os.getpid()))
        for batch in w.batches():
            gradient = w.gradient(batch)
            if w.rank == 2 and w.comm.step == 3:
                Path("moment").write_text(repr(time.time()))
                if self.how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if self.how == "raise":
                    raise ValueError("a bad batch")
                if self.how == "sleep":
                    time.sleep(4)
            w.apply(w.all_reduce(gradient))
"""


@dataclass
class Done:
    """A command that has ended; lines of its error stream with the time at which each came."""

    code: int
    out: str
    lines: list[tuple[float, str]]

    @property
    def err(self) -> str:
        return "".join(line for _, line in self.lines)


class Running:
    """A command, its error stream read as it comes."""

    def __init__(self, folder: Path, command: list[str]):
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._lines: list[tuple[float, str]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines.append((time.time(), line))

    def end(self) -> Done:
        timer = threading.Timer(DEADLINE, os.killpg, (self._process.pid, signal.SIGKILL))
        timer.start()
        assert self._process.stdout is not None
        out = self._process.stdout.read()
        self._reader.join()
        code = self._process.wait()
        timer.cancel()
        return Done(code, out, self._lines)


def launch(folder: Path, *arguments: str, command: list[str] = THINWIRE) -> Done:
    return Running(folder, [*command, "run", *arguments]).end()


def mishap(folder: Path, how: str, *arguments: str) -> Done:
    (folder / "mine.py").write_text(MISHAPS)
    method = f"mine:Mishap:how={how}"
    return launch(
        folder,
        *("--processes", "4", "office", "--task", MOONS, "--method", method),
        *(*SHORT, "--out", "out", *arguments),
    )


def only_run(folder: Path) -> RunRecord:
    [run] = read_record(folder).runs
    return run


def left_over(folder: Path, size: int = 4) -> list[int]:
    pids = [int((folder / f"pid{rank}").read_text()) for rank in range(size)]
    return [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def blamed(err: str) -> int:
    """The rank that the launcher's summary gives as the root cause."""
    match = re.search(r"rank\s*:\s*(\d+)", err[err.index("Root Cause") :])
    assert match is not None
    return int(match.group(1))


def named_within(done: Done, folder: Path, text: str) -> list[float]:
    """Seconds from the mishap to each line with this text."""
    moment = float((folder / "moment").read_text())
    return [when - moment for when, line in done.lines if text in line]


def virtual_end(method: str, size: int) -> End:
    from thinwire.methods import build_method
    from thinwire.run.experiment import Job, run_virtual

    job = Job(
        run="0",
        label=method,
        name=method,
        method=build_method(method, {}),
        cluster=load_cluster("office").select(range(size)),
        train=TrainSettings(epochs=1, threads=1),
    )
    return run_virtual(job, Moons(), lambda line: None)


# Runs that end well


def test_two_processes_end_as_the_virtual_run_does_and_leave_a_report(tmp_path):
    done = launch(
        tmp_path, "--processes", "2", "office", "--task", MOONS, *SHORT, "--out", "out"
    )  # fmt: skip
    assert done.code == 0, done.err
    run = only_run(tmp_path / "out")
    expected = virtual_end("ssgd", 2)
    assert run.end is not None
    assert (run.start.mode, run.start.nodes) == ("real", ["desk-0", "desk-1"])
    assert (run.end.status, run.end.agree) == ("ok", True)
    assert (run.end.digest, run.end.sent) == (expected.digest, expected.sent)
    assert run.end.messages == expected.messages
    assert run.evals[-1].step == run.end.steps == 8
    assert done.out.count("report.html") == 1  # said once, by rank 0
    assert (tmp_path / "out" / "report.html").exists()


def test_native_collectives_end_alike_on_all_ranks_within_rounding(tmp_path):
    native = ["--set", "wire.collectives=native"]
    done = launch(
        tmp_path, "--processes", "2", "office", "--task", MOONS, *SHORT, *native, "--out", "out"
    )  # fmt: skip
    assert done.code == 0, done.err
    run = only_run(tmp_path / "out")
    assert run.end is not None
    assert run.end.agree
    assert run.end.sent == [0, 0]  # nothing went over the packet wire
    assert run.start.settings["wire"]["collectives"] == "native"


def test_the_launchers_own_command_line_is_as_good(tmp_path):
    done = launch(
        tmp_path,
        *("office", "--task", MOONS, "--method", "localsgd", *SHORT, "--out", "out"),
        command=TORCHRUN,
    )
    assert done.code == 0, done.err
    run = only_run(tmp_path / "out")
    assert run.end is not None
    assert run.end.digest == virtual_end("localsgd", 2).digest


def test_a_server_runs_beside_rank_0(tmp_path):
    asynchronous = ["--method", "asgd", "--set", "train.momentum=0"]
    done = launch(
        tmp_path,
        *("--processes", "2", "office", "--task", MOONS, *SHORT, *asynchronous, "--out", "out"),
    )
    assert done.code == 0, done.err
    run = only_run(tmp_path / "out")
    assert run.end is not None
    assert run.end.server_sent > 0
    assert run.evals[-1].samples >= run.end.samples


def test_two_runs_at_once_end_well_in_folders_of_their_own(tmp_path):
    command = [*THINWIRE, "run", "--processes", "2", "office", "--task", MOONS, *SHORT]
    both = [Running(tmp_path, command) for _ in range(2)]
    for done in [running.end() for running in both]:
        assert done.code == 0, done.err
    folders = sorted((tmp_path / "runs").iterdir())
    assert len(folders) == 2
    assert [only_run(folder).status for folder in folders] == ["ok", "ok"]


def test_a_slow_rank_that_is_alive_is_waited_for_and_named(tmp_path):
    done = mishap(tmp_path, "sleep", "--set", "wire.warn_after=1")
    assert done.code == 0, done.err
    assert only_run(tmp_path / "out").status == "ok"
    assert re.search(r"has waited \d+ s for rank \d .*Missing: .*rank 2", done.err), done.err
    assert "4 of 4 ranks connected\n" in done.err
    # Told by the clock, not by the evaluations: the whole run is stuck in its third step.
    told = r"step 2 of 4, loss .* samples/s .*rank 0 sends .*/s, its time: .* wait.*, about"
    assert re.search(told, done.err), done.err


# Runs that end badly


def test_a_killed_rank_is_named_by_every_survivor_and_blamed(tmp_path):
    done = mishap(tmp_path, "kill")
    assert done.code == 1
    pid = (tmp_path / "pid2").read_text()
    told = f"rank 2 (pid {pid} at 127.0.0.1) died"
    assert len([s for s in named_within(done, tmp_path, told) if s < 5]) >= 3, done.err
    waiting = re.findall(rf"error: {re.escape(told)}.*; rank (\d)\b", done.err)
    assert sorted(waiting) == ["0", "1", "3"], done.err
    assert blamed(done.err) == 2
    assert "SIGABRT" not in done.err
    assert left_over(tmp_path) == []
    run = only_run(tmp_path / "out")
    assert run.status == "failed"
    assert run.end is not None
    assert told in run.end.error
    assert (run.end.failed_rank, run.end.steps) == (2, 2)
    [sent] = run.end.sent  # rank 0's: it couldn't ask the others
    assert sent >= 2 * virtual_end("ssgd", 4).sent[0] / 4
    assert run.end.time > 0
    assert run.end.wall > 0


def test_an_exception_on_one_rank_is_told_by_all_in_its_own_words(tmp_path):
    done = mishap(tmp_path, "raise")
    assert done.code == 1
    pid = (tmp_path / "pid2").read_text()
    told = f"rank 2 (pid {pid} at 127.0.0.1) failed at step 3: ValueError: a bad batch"
    assert len([s for s in named_within(done, tmp_path, told) if s < 5]) >= 3, done.err
    assert 'raise ValueError("a bad batch")' in done.err  # where it was, once, by rank 2
    assert blamed(done.err) == 2
    assert left_over(tmp_path) == []
    run = only_run(tmp_path / "out")
    assert run.end is not None
    assert run.end.status == "failed"
    assert "ValueError: a bad batch" in run.end.error


def test_a_loss_that_is_nan_on_one_rank_ends_all_and_names_it(tmp_path):
    # Sample 0 is bad; the order of the data says who meets it when.
    done = launch(
        tmp_path,
        *("--processes", "4", "office", "--task", "thinwire.testing.toys:Poisoned"),
        *(*SHORT, "--set", "train.epochs=2", "--out", "out"),
    )
    assert done.code == 1
    [(rank, step)] = set(re.findall(r"rank (\d), step (\d), [\d.]+ s: the loss is nan", done.err))
    assert f"failed at step {step}: NonFiniteError: rank {rank}," in done.err
    assert "train.lr is 0.05" in done.err
    assert blamed(done.err) == int(rank)
    assert "Traceback" not in done.err[: done.err.index("ChildFailedError")].split("torch/")[0]
    run = only_run(tmp_path / "out")
    assert run.end is not None
    assert "the loss is nan" in run.end.error


def test_ctrl_c_leaves_a_readable_record_and_no_process(tmp_path):
    (tmp_path / "mine.py").write_text(MISHAPS)
    running = Running(
        tmp_path,
        [*THINWIRE, "run", "--processes", "2", "office", "--task", MOONS, "--method",
         "mine:Mishap", "--set", "train.epochs=100000", "--out", "out"],
    )  # fmt: skip
    until = time.monotonic() + DEADLINE / 2
    while not all((tmp_path / f"pid{rank}").exists() for rank in range(2)):
        assert time.monotonic() < until
        threading.Event().wait(0.05)
    threading.Event().wait(0.5)
    os.killpg(running._process.pid, signal.SIGINT)
    done = running.end()
    assert done.code != 0
    assert left_over(tmp_path, 2) == []
    run = only_run(tmp_path / "out")
    assert run.status in ("interrupted", "failed")
