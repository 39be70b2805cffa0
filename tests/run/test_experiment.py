"""A job from its plan to the lines of its record."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from thinwire.errors import (
    DeadlockError,
    InputError,
    NonFiniteError,
    PeerDiedError,
    WorkerFailedError,
)
from thinwire.report.record import End, Eval, Run, Span, Step
from thinwire.run import experiment
from thinwire.run.experiment import run_virtual
from thinwire.run.settings import WireSettings
from thinwire.tasks.timing import Timing
from thinwire.testing.toys import Exploding, Moons
from thinwire.wire.faults import Crash, FaultPlan


class Lines(list):
    """The lines of a run."""

    def of(self, kind: type) -> list[Any]:
        return [line for line in self if isinstance(line, kind)]


def run(job, task=None) -> Lines:
    lines = Lines()
    run_virtual(job, task or Moons(), lines.append)
    return lines


def failing(job, error: type[Exception], match: str, task=None) -> Lines:
    lines = Lines()
    with pytest.raises(error, match=match):
        run_virtual(job, task or Moons(), lines.append)
    return lines


# The plan


def test_the_plan_counts_steps_from_epochs_and_the_global_batch(make_job):
    plan = make_job(size=4, batch=8, epochs=3.0, evals=6).plan(256)
    assert plan.shares == (8, 8, 8, 8)
    assert plan.steps == 3 * 256 // 32
    assert plan.eval_every == 4
    assert plan.samples == 3 * 256


def test_batches_by_speed_follow_the_nodes_and_keep_their_sum(make_job, make_cluster):
    cluster = make_cluster(3, (1.0, 2.0, 4.0))
    by_speed = make_job(cluster=cluster, batch=14, split="by_speed").plan(256)
    equal = make_job(cluster=cluster, batch=14).plan(256)
    assert by_speed.shares == (24, 12, 6)
    assert equal.shares == (14, 14, 14)
    assert by_speed.speeds == equal.speeds == (1.0, 0.5, 0.25)
    assert by_speed.steps == equal.steps


def test_a_short_run_has_a_step_and_an_evaluation(make_job):
    plan = make_job(size=4, batch=64, epochs=0.001, evals=40).plan(256)
    assert (plan.steps, plan.eval_every, plan.log_every) == (1, 1, 1)


def test_a_long_run_logs_a_limited_number_of_losses(make_job):
    plan = make_job(size=2, batch=1, epochs=50.0).plan(256)
    assert plan.steps == 6400
    assert math.ceil(plan.steps / plan.log_every) <= experiment.MAX_STEP_LINES


def test_alone_has_one_worker_on_the_fastest_node_and_sees_as_many_samples(make_job, make_cluster):
    cluster = make_cluster(3, (2.0, 1.0, 4.0))
    job = make_job("alone", cluster=cluster, batch=8)
    assert job.placement == [1]
    assert job.plan(256).shares == (8,)
    assert job.plan(256).samples == make_job(cluster=cluster, batch=8).plan(240).samples + 16


def test_training_settings_reach_the_optimizer(make_job):
    plan = make_job(optimizer="adamw", lr=0.3, momentum=0.0, weight_decay=0.1, warmup=5,
                    decay="cosine").plan(256)  # fmt: skip
    optimizer = plan.optimizer
    assert (optimizer.name, optimizer.lr, optimizer.weight_decay) == ("adamw", 0.3, 0.1)
    assert (optimizer.warmup, optimizer.decay) == (5, "cosine")


def test_the_rate_follows_the_global_batch_where_it_is_told_for_which_one_it_is_meant(make_job):
    def rate(size: int, **train: Any) -> float:
        return make_job(size=size, batch=8, lr=0.1, **train).plan(256).optimizer.lr

    assert rate(4) == rate(4, lr_batch=32) == 0.1
    assert (rate(4, lr_batch=8), rate(1, lr_batch=16)) == (0.4, 0.05)
    with pytest.raises(InputError, match=r"train\.lr_batch = -1"):
        make_job(lr_batch=-1)


# The record


def test_a_run_begins_with_what_it_is_and_ends_with_what_came_of_it(make_job):
    job = make_job("localsgd", 3, seed=4, settings={"every": 2})
    lines = run(job)
    start, end = lines[0], lines[-1]
    assert isinstance(start, Run)
    assert isinstance(end, End)
    assert (start.run, start.label, start.method) == ("localsgd/4", "localsgd", "localsgd")
    assert (start.seed, start.mode, start.wire_model) == (4, "virtual", "fair")
    assert start.nodes == ["n0", "n1", "n2"]
    assert start.num_params == 354
    assert start.settings["method"]["every"] == 2
    assert start.settings["train"]["batch"] == 16
    assert start.settings["wire"]["link_model"] == "fair"
    assert {line.run for line in lines} == {"localsgd/4"}
    msgspec.json.encode(list(lines))


def test_an_end_holds_every_workers_figures(make_job):
    end = run(make_job("ssgd", 3)).of(End)[0]
    assert (end.status, end.error, end.agree) == ("ok", "", True)
    assert (end.steps, end.samples) == (5, 5 * 48)
    assert end.time > 0
    assert end.wall > 0
    for figures in (end.sent, end.messages, end.waited, end.computed):
        assert len(figures) == 3
        assert all(figure > 0 for figure in figures)
    assert end.server_sent == 0
    assert len(end.digest) == 16
    assert end.joules == []  # the nodes state no power


def test_bytes_are_what_the_ring_sends(make_job):
    end = run(make_job("ssgd", 2)).of(End)[0]
    steps, vector = end.steps, 354 * 4
    payload = steps * vector  # each of two sends half the vector twice a step
    assert all(
        payload < sent < payload + 64 * count
        for sent, count in zip(end.sent, end.messages, strict=True)
    )


def test_a_servers_bytes_are_counted_apart_and_its_digest_is_the_runs(make_job):
    lines = run(make_job("asgd", 3, lr=0.1, momentum=0.0))
    end = lines.of(End)[0]
    assert end.server_sent > 0
    assert end.sent[0] == 0  # the server lives beside worker 0
    assert min(end.sent[1:]) > 0
    assert lines.of(Eval)[-1].samples >= end.samples


def test_replicas_that_ended_apart_are_said_to_disagree(make_job, make_cluster):
    lines = Lines()
    job = make_job("ssgd", 2)
    plan = job.plan(256)
    from thinwire.wire.meter import Meter

    lines.append(experiment.summary(job, plan, [Meter(), Meter()], ["a", "b"]))
    assert lines[0]["agree"] is False
    assert experiment.summary(job, plan, [Meter(), Meter()], ["a", "a"])["agree"] is True


def test_losses_and_tests_are_in_order_and_complete(make_job):
    lines = run(make_job("ssgd", 2, epochs=2.0, evals=4))
    steps, evals = lines.of(Step), lines.of(Eval)
    assert [line.step for line in steps] == list(range(1, 17))
    assert [line.rank for line in steps] == [0] * 16
    assert [line.step for line in evals] == [0, 4, 8, 12, 16]
    assert [line.samples for line in evals] == [0, 128, 256, 384, 512]
    for series in (steps, evals):
        times = [line.time for line in series]
        assert times == sorted(times)
        sent = [line.sent for line in series]
        assert sent == sorted(sent)
    assert evals[-1].time == pytest.approx(lines.of(End)[0].time, rel=0.05)


def test_the_last_test_is_of_the_model_that_the_run_leaves(make_job):
    # 8 steps in threes: the last two gradients are applied after the last batch.
    lines = run(make_job("ssgd", 2, settings={"accumulate": 3}, evals=1))
    last = lines.of(Eval)[-1]
    assert last.step == 8
    assert last.time == pytest.approx(lines.of(End)[0].time, abs=1e-4)
    assert [line.step for line in lines.of(Eval)] == [0, 8]


def test_two_runs_are_equal_in_everything_but_the_wall_clock(make_job):
    def comparable(lines: Lines) -> list[Any]:
        return [msgspec.structs.replace(x, wall=0.0) if isinstance(x, End) else x for x in lines]

    for method in ("gtopk", "asgd"):
        first, second = (run(make_job(method, 3, timeline=True)) for _ in range(2))
        assert comparable(first) == comparable(second)


def test_another_seed_is_another_run(make_job):
    digests = {run(make_job(seed=seed)).of(End)[0].digest for seed in (0, 1, 2)}
    assert len(digests) == 3


def test_the_link_model_is_the_one_asked_for(make_job):
    lines = run(make_job("ssgd", 3, wire=WireSettings(link_model="queue")))
    assert lines[0].wire_model == "queue"


def test_spans_are_kept_only_when_asked_for(make_job):
    assert run(make_job()).of(Span) == []
    lines = run(make_job(timeline=True))
    spans = lines.of(Span)
    assert {span.what for span in spans} == {"compute", "wait", "send"}
    assert all(0 <= span.start <= span.end <= lines.of(End)[0].time for span in spans)


def test_a_long_timeline_is_cut_at_a_limit(make_job, monkeypatch):
    whole = run(make_job(timeline=True)).of(Span)
    monkeypatch.setattr(experiment, "MAX_SPANS", 20)
    assert run(make_job(timeline=True)).of(Span) == whole[:20]


def test_timing_alone_needs_no_arithmetic(make_job):
    task = Timing(num_params=1_000_000, flops_per_sample=1e6, num_train=320)
    lines = run(make_job("gtopk", 5), task)
    end = lines.of(End)[0]
    assert end.status == "ok"
    assert end.digest == "meta"
    assert end.time > 0
    assert lines.of(Eval) == []
    assert lines.of(Step) == []


# Failures


def test_a_loss_that_is_not_a_number_ends_the_run_and_says_what_to_try(make_job):
    text = r"rank \d, step 3, .* the loss is nan\. A smaller learning rate .*train\.lr is 0\.05"
    lines = failing(make_job(), WorkerFailedError, text, Exploding(at=3))
    end = lines.of(End)[0]
    assert lines[-1] is end
    assert end.status == "failed"
    assert "the loss is nan" in end.error
    assert end.time > 0
    assert end.error.count("rank") == 1


def test_the_end_of_a_failed_run_holds_what_is_known_by_then(make_job):
    end = failing(make_job(size=2), WorkerFailedError, "nan", Exploding(at=3)).of(End)[0]
    whole = run(make_job(size=2)).of(End)[0]
    assert end.steps == 2
    assert end.failed_rank in (0, 1)
    assert end.wall > 0
    assert end.computed[0] > 0
    assert len(end.sent) == len(end.messages) == len(end.waited) == 2
    per_step = whole.sent[0] / whole.steps
    assert end.sent[0] == 2 * per_step
    assert (whole.failed_rank, whole.error) == (-1, "")


def test_the_cause_of_a_nan_is_kept(make_job):
    with pytest.raises(WorkerFailedError) as failed:
        run(make_job(), Exploding(at=1))
    assert isinstance(failed.value.__cause__, NonFiniteError)


def test_a_crash_ends_a_strict_run_and_names_the_rank(make_job):
    job = make_job("ssgd", 3, faults=FaultPlan([Crash(rank=2, step=4)]))
    end = failing(job, PeerDiedError, "rank 2 died at step 4").of(End)[0]
    assert (end.status, "rank 2" in end.error) == ("failed", True)
    assert (end.failed_rank, end.steps) == (2, 3)


def test_an_exception_in_a_method_names_rank_step_and_time(make_job, monkeypatch):
    from thinwire.methods import SSGD

    def worker(self, w):
        for _ in w.batches():
            if w.rank == 1 and w.comm.step == 2:
                raise KeyError("a mistake")
            w.all_reduce(w.params)

    monkeypatch.setattr(SSGD, "worker", worker)
    text = r"rank 1, step 2, virtual time 0\.\d+ s: KeyError: 'a mistake'"
    lines = failing(make_job("ssgd", 3), WorkerFailedError, text)
    assert lines.of(End)[0].status == "failed"


def test_a_deadlock_ends_the_run_and_says_who_waits_for_whom(make_job, monkeypatch):
    from thinwire.methods import SSGD

    monkeypatch.setattr(SSGD, "worker", lambda self, w: w.receive(1 - w.rank, "never"))
    lines = failing(make_job("ssgd", 2), DeadlockError, "rank 0 waits for rank 1")
    assert "rank 1 waits for rank 0" in lines.of(End)[0].error
    assert lines.of(End)[0].failed_rank == -1


def test_an_interrupted_run_is_not_a_failed_one(make_job, monkeypatch):
    from thinwire.methods import SSGD

    def worker(self, w):
        raise KeyboardInterrupt

    monkeypatch.setattr(SSGD, "worker", worker)
    lines = Lines()
    with pytest.raises(KeyboardInterrupt):
        run_virtual(make_job(), Moons(), lines.append)
    assert lines.of(End)[0].status == "interrupted"


def test_a_job_that_cannot_be_is_refused_before_anything_is_written(make_job, make_cluster):
    lines = Lines()
    job = make_job(cluster=make_cluster(2), lr=-1.0)
    with pytest.raises(InputError, match="lr"):
        run_virtual(job, Moons(), lines.append)
    assert lines == []


# Energy


def test_energy_is_idle_and_busy_time_times_power(make_job, make_cluster):
    # One machine: 16 steps of 16 samples; it is busy all the time and sends nothing.
    cluster = make_cluster(1, power_idle=10.0, power_busy=30.0, power_network=5.0)
    end = run(make_job("alone", cluster=cluster)).of(End)[0]
    assert end.joules == pytest.approx([30.0 * end.time], rel=1e-6)


def test_energy_of_every_node_adds_idle_busy_and_network(make_job, make_cluster):
    # A slow node is busy twice as long; both are on for the whole run, and send what they send.
    cluster = make_cluster(2, (1.0, 2.0), power_idle=10.0, power_busy=30.0, power_network=5.0)
    end = run(make_job("ssgd", cluster=cluster)).of(End)[0]
    expected = [
        10.0 * (end.time - busy) + 30.0 * busy + 5.0 * sent / 12.5e6
        for busy, sent in zip(end.computed, end.sent, strict=True)
    ]
    assert end.joules == pytest.approx(expected, rel=1e-6)
    assert end.joules[1] > end.joules[0]
    assert end.computed[1] == pytest.approx(2 * end.computed[0], rel=1e-3)


def test_a_server_draws_its_power_on_the_node_it_lives_on(make_job, make_cluster):
    power = {"power_idle": 10.0, "power_busy": 30.0, "power_network": 5.0}
    job = make_job("asgd", cluster=make_cluster(3, **power), momentum=0.0)
    end = run(job).of(End)[0]
    idle = 10.0 * end.time
    networks = [
        joules - idle - 20.0 * busy for joules, busy in zip(end.joules, end.computed, strict=True)
    ]
    # What worker 0's node sends is the server's traffic; its processor works for both.
    assert networks[0] > 5.0 * end.server_sent / 12.5e6
    assert networks[1] == pytest.approx(5.0 * end.sent[1] / 12.5e6, rel=0.2)


def test_no_power_no_energy(make_job, make_cluster):
    assert run(make_job(cluster=make_cluster(2))).of(End)[0].joules == []
