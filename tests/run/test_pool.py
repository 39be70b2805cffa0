"""Jobs beside this process: each in a part of its own, and what a failure says."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

from thinwire.methods import Method
from thinwire.report import Recorder, read_record
from thinwire.report.record import Header
from thinwire.run.pool import run_jobs
from thinwire.tasks import Task, load_task
from thinwire.testing.toys import Moons


@dataclass(frozen=True, kw_only=True)
class Mistaken(Method):
    """Fails on one rank at one step."""

    def worker(self, w):
        """See `Method`."""
        for batch in w.batches():
            if w.comm.step == 2 and w.rank == 1:
                raise ZeroDivisionError("the mistake of a user")
            w.apply(w.all_reduce(w.gradient(batch)))


@dataclass(frozen=True, kw_only=True)
class Deadly(Moons):
    """Takes its process with it."""

    name: ClassVar[str] = "deadly"

    def loss(self, model, x, y):
        """As `Task.loss`."""
        if not x.is_meta:  # operations are being counted
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(model, x, y)


def folder_with_header(folder: Path) -> Path:
    with Recorder(folder) as recorder:
        recorder.write(
            Header(created="", command=[], settings={}, cluster="", versions={}, machine={})
        )
    return folder


def moons() -> Task:
    return load_task("thinwire.testing.toys:Moons")


@pytest.mark.distributed
def test_each_job_ends_in_the_record_and_one_that_raises_fails_alone(tmp_path, make_job):
    folder = folder_with_header(tmp_path)
    (folder / "record-1.jsonl").write_text("")  # of an earlier try
    looks = []
    bad = replace(make_job(epochs=0.5), run="bad/0", label="bad", method=Mistaken())
    jobs = [make_job(seed=0, epochs=0.2), bad, make_job(seed=1, epochs=0.2)]
    [failure] = run_jobs(jobs, moons, folder, 1, lambda: looks.append(1))
    assert looks

    record = read_record(folder)
    assert record.done() == {("ssgd", 0), ("ssgd", 1)}
    assert [file.name for file in sorted(folder.glob("record-*"))] == [
        "record-1.jsonl",
        "record-2.jsonl",  # a process has a part of its own, never one that was there
    ]
    assert (folder / "record-1.jsonl").stat().st_size == 0

    assert failure.run == "bad/0"
    assert failure.reason.startswith("rank 1, step 2, virtual time 0.")
    assert "ZeroDivisionError: the mistake of a user" in failure.reason
    assert 'raise ZeroDivisionError("the mistake of a user")' in failure.reason  # where it was
    [run] = record.of("bad")
    assert run.status == "failed"
    assert "the mistake of a user" in run.end.error


@pytest.mark.distributed
def test_a_killed_process_is_reported_for_every_job_it_took_along(tmp_path, make_job):
    folder = folder_with_header(tmp_path)
    jobs = [make_job(seed=seed, epochs=0.1) for seed in (0, 1)]
    failures = run_jobs(jobs, Deadly, folder, 1, lambda: None)
    assert [failure.run for failure in failures] == ["ssgd/0", "ssgd/1"]
    assert all("was killed" in failure.reason for failure in failures)
    assert read_record(folder).done() == set()


@pytest.mark.distributed
def test_a_watcher_that_raises_ends_the_processes(tmp_path, make_job):
    folder = folder_with_header(tmp_path)

    def watch() -> None:
        if (folder / "record-1.jsonl").exists():  # it has begun
            raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_jobs([make_job(epochs=1e6)], moons, folder, 1, watch)
    assert time.monotonic() - began < 60  # an epoch of it would take days
    assert read_record(folder).done() == set()
