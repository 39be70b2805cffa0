"""One text of a method, virtual and real: the same bits, bytes and messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import pytest
import torch

from thinwire.cluster import Cluster, Node
from thinwire.methods import METHODS, build_method
from thinwire.report.record import End, Eval
from thinwire.run.experiment import Job, Programs, run_virtual
from thinwire.run.settings import TrainSettings
from thinwire.tasks import Task
from thinwire.testing.processes import run_processes
from thinwire.testing.toys import DropoutMoons, Moons
from thinwire.wire.sockets import connect

SPEEDS = (1.0, 1.0, 2.0, 1.6, 1.0)


class Case(NamedTuple):
    """What is run on both sides."""

    method: str
    settings: dict[str, Any]
    task: type[Task] = Moons
    split: str = "equal"

    @property
    def id(self) -> str:
        words = [self.method, *(f"{k}={v}" for k, v in self.settings.items()), self.task.name]
        return "-".join([*words, self.split])


CASES = [
    Case("ssgd", {}),
    Case("ssgd", {"accumulate": 3}),
    Case("ssgd", {}, Moons, "by_speed"),
    Case("ssgd", {}, DropoutMoons),
    Case("topk", {"density": 0.05}),
    Case("gtopk", {"density": 0.05, "losses": "paper"}),
    Case("gtopk", {"density": 0.05, "losses": "kept"}),
    Case("gtopk", {"density": 0.05}, DropoutMoons, "by_speed"),
    Case("gtopk", {"density": 0.05, "warmup": 12}),
    Case("dgc", {"density": 0.05, "dense_below": 33, "warmup": 8, "clip": 0.5}),
    Case("dgc", {"density": 0.05, "dense_below": 0, "scope": "model", "select": "sampled"}),
    Case("dgc", {"density": 0.05}, DropoutMoons, "by_speed"),
    Case("oktopk", {"density": 0.05, "estimate_every": 4, "balance_every": 6}),
    Case("oktopk", {"density": 0.2, "warmup": 8}, DropoutMoons, "by_speed"),
    Case("powersgd", {"rank": 2}),
    Case("powersgd", {"rank": 1, "dense_below": 64}, DropoutMoons, "by_speed"),
    Case("qsgd", {}),
    Case("qsgd", {"bits": 8, "bucket": 100, "errors": "kept"}, DropoutMoons, "by_speed"),
    Case("wfbp", {}),
    Case("wfbp", {"groups": "buckets", "bucket_bytes": 300, "at_once": 2}, DropoutMoons),
    Case("wfbp", {"groups": "one"}, Moons, "by_speed"),
    Case("bytescheduler", {}),
    Case("bytescheduler", {"partition": 100, "credit": 300}, DropoutMoons, "by_speed"),
    Case("lags", {"density": 0.05, "dense_below": 33, "warmup": 8}),
    Case("lags", {"density": 0.05, "dense_below": 0, "merge": 0}, DropoutMoons, "by_speed"),
    Case("localsgd", {"every": 3, "pace": "equal"}),
    Case("localsgd", {"every": 3, "pace": "speed"}, DropoutMoons),
]
ASYNCHRONOUS = Case("asgd", {})


Result: TypeAlias = tuple[str, int, int, list[Any]]
"""Digest, bytes and messages sent, tests. Plain values, which come back from another process."""


def job_of(case: Case, size: int) -> Job:
    nodes = tuple(
        Node(name=f"n{i}", flops=1e7, memory_rate=8e9, egress=12.5e6, ingress=12.5e6, slowdown=s)
        for i, s in enumerate(SPEEDS[:size])
    )
    return Job(
        run="0",
        label=case.id,
        name=case.method,
        method=build_method(case.method, case.settings),
        cluster=Cluster(name="test", nodes=nodes, default_latency=0.0003),
        train=TrainSettings(
            batch=8,
            epochs=1.5,
            evals=3,
            momentum=0.0 if case is ASYNCHRONOUS or case.method == "dgc" else 0.9,
            split=case.split,
            threads=1,
        ),
    )


def real_programs(rank: int, size: int) -> list[Result]:
    """Every case in turn, by this process as one worker; the servers' digests and tests too."""
    torch.set_num_threads(1)
    results = []
    for case in [*CASES, ASYNCHRONOUS]:
        job, task, evals = job_of(case, size), case.task(), []
        with connect(deadline=60, num_servers=job.method.num_servers) as comm:
            programs = Programs(job, task, job.plan(task.num_train), evals.append)
            servers = [comm.serve(programs.server, i) for i in range(comm.num_servers * (not rank))]
            digest = programs.worker(comm)
            tests = [(e.step, e.accuracy, e.loss) for e in evals if isinstance(e, Eval)]
            results.append((digest, comm.meter.sent, comm.meter.messages_sent, tests))
            for server in servers:
                assert len(server.wait()) == 16
    return results


def virtual(case: Case, size: int) -> tuple[End, list[Any]]:
    lines = []
    end = run_virtual(job_of(case, size), case.task(), lines.append)
    return end, [(e.step, e.accuracy, e.loss) for e in lines if isinstance(e, Eval)]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=[4, 5])
def real(request) -> list[list[Result]]:
    """Results of one group of processes, by rank and case."""
    results = run_processes(real_programs, request.param, deadline=150)
    for result in results:
        assert isinstance(result, list), result
    return results


@pytest.mark.distributed
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_real_run_ends_with_the_bits_bytes_and_messages_of_the_virtual_one(real, case):
    digests, sent, messages, tests = zip(*(r[CASES.index(case)] for r in real), strict=True)
    end, expected = virtual(case, len(real))
    assert list(digests) == [end.digest] * len(real)
    assert end.agree
    assert list(sent) == end.sent
    assert list(messages) == end.messages
    assert tests[0] == expected  # every test along the way, too


@pytest.mark.distributed
def test_the_asynchronous_server_runs_for_real_and_sees_every_sample(real):
    tests = real[0][-1][3]  # the server lives in the process of rank 0
    plan = job_of(ASYNCHRONOUS, len(real)).plan(256)
    assert tests[0][0] == 0
    assert tests[-1][0] >= plan.steps
    assert all(loss < 10 for _, _, loss in tests)
    assert all(result[-1][1] > 0 for result in real[1:])


def test_every_synchronous_method_of_the_table_is_compared():
    synchronous = {name for name, cls in METHODS.items() if cls.traits.synchronous}
    assert {case.method for case in CASES} == synchronous - {"alone"}


@pytest.mark.slow
@pytest.mark.parametrize("size", [4, 5])
@pytest.mark.parametrize(
    "case", [CASES[3], CASES[5], CASES[9], ASYNCHRONOUS], ids=lambda case: case.id
)
def test_two_virtual_runs_are_identical(case, size):
    first, second = (virtual(case, size) for _ in range(2))
    assert first[1] == second[1]
    assert (first[0].digest, first[0].time, first[0].sent, first[0].waited) == (
        second[0].digest,
        second[0].time,
        second[0].sent,
        second[0].waited,
    )
