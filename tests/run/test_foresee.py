"""A run predicted before it begins."""

from __future__ import annotations

import pytest

from thinwire.cluster import load_cluster
from thinwire.methods import SSGD, Alone, GTopK, LocalSGD, Method
from thinwire.report.record import End
from thinwire.run.experiment import Job, run_virtual
from thinwire.run.foresee import foresee
from thinwire.run.settings import TrainSettings
from thinwire.testing.toys import Moons


def job_of(method: Method, split: str = "equal") -> Job:
    train = TrainSettings(batch=16, split=split, epochs=2.0, evals=1)  # pyright: ignore[reportArgumentType]
    return Job(run="m/0", label="m", name="m", method=method, cluster=load_cluster("gigabit"),
               train=train)  # fmt: skip


@pytest.mark.parametrize(
    "method",
    [SSGD(), GTopK(density=0.1), LocalSGD(every=4), Alone()],
    ids=lambda m: type(m).__name__,
)
def test_the_virtual_run_takes_what_was_foreseen(method: Method):
    job, task, lines = job_of(method), Moons(), []
    told = foresee(job, task)
    run_virtual(job, task, lines.append)
    end = next(line for line in lines if isinstance(line, End))
    assert told["step_time"] == pytest.approx(end.time / end.steps, rel=0.05)
    sent = sum(end.sent) / len(end.sent) / end.steps
    assert told["bytes_per_step"] == pytest.approx(sent, rel=0.05)


def test_batches_by_speed_are_foreseen_too():
    told = foresee(job_of(SSGD(), split="by_speed"), Moons())
    assert told["step_time"] > 0


def test_what_would_take_too_long_is_given_up():
    assert foresee(job_of(SSGD()), Moons(), patience=-1.0) == {}
