"""Where the time of real processes goes."""

from __future__ import annotations

import time

import pytest
import torch

from thinwire.cluster import load_cluster
from thinwire.methods import build_method
from thinwire.run.experiment import Job, Programs
from thinwire.run.real import _gather
from thinwire.run.settings import TrainSettings
from thinwire.testing.processes import run_processes
from thinwire.testing.toys import Moons
from thinwire.wire import Comm, Packet
from thinwire.wire.sockets import connect

pytestmark = pytest.mark.distributed


def method_program(rank: int, size: int) -> tuple[list[dict[str, float]], float]:
    torch.set_num_threads(1)
    job = Job(
        run="0",
        label="gtopk",
        name="gtopk",
        method=build_method("gtopk", {"density": 0.05}),
        cluster=load_cluster("gigabit").select(range(size)),
        train=TrainSettings(batch=8, epochs=1.0, evals=3, threads=1),
    )
    task = Moons()
    with connect(deadline=60) as comm:
        programs = Programs(job, task, job.plan(task.num_train), lambda line: None)
        began = time.perf_counter()
        digest = programs.worker(comm)
        whole = time.perf_counter() - began
        return [meter.phases.seconds() for meter, _ in _gather(comm, digest)], whole


def test_the_phases_of_a_real_run_are_named_and_lie_within_its_time():
    (phases, whole), (others, _) = run_processes(method_program, 2, deadline=60)
    assert others == []  # rank 0 has them all
    zero, one = phases
    assert set(zero) == {
        "compute", "select", "send", "wait", "merge", "apply", "evaluate", "other"
    }  # fmt: skip
    assert set(zero) - set(one) == {"evaluate"}  # rank 0's model is tested
    assert 0 < sum(zero.values()) <= whole


def with_a_task(rank: int, size: int) -> tuple[dict[str, float], float]:
    def beside(comm: Comm) -> None:
        with comm.phase("merge"):
            comm.post(1 - rank, Packet((torch.zeros(1),)), "x")
            comm.wait(1 - rank, "x")

    with connect(deadline=20) as comm:
        comm.meter.phases.restart()
        began = time.perf_counter()
        task = comm.start(beside, "t")
        with comm.phase("select"):
            task.wait()
        comm.meter.phases.stop()
        return comm.meter.phases.seconds(), time.perf_counter() - began


def test_a_task_beside_a_real_program_counts_only_where_it_is_waited_for():
    for phases, whole in run_processes(with_a_task, 2, deadline=30):
        assert set(phases) == {"other", "select", "wait"}  # no "send", no "merge"
        assert sum(phases.values()) <= whole
