"""The training behind `thinwire plan --pilot`: a plan's best methods on a task, for a short while.

Jobs, pool, record and display are those of `thinwire compare`; only what is made of the record
differs, see `thinwire.planner.pilot`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from thinwire.cluster import Cluster, cluster_to_toml
from thinwire.errors import InputError
from thinwire.planner.candidates import Candidate
from thinwire.planner.pilot import BASELINE, Curve, curve_of_points, pilot_steps
from thinwire.report import Follower, LiveView, Recorder, RunRecord, read_record
from thinwire.report.heading import header
from thinwire.run.experiment import Job
from thinwire.run.folders import claim_folder
from thinwire.run.pool import Failure, run_jobs
from thinwire.run.recipes import RECIPES, TARGETS
from thinwire.run.settings import Assigned, MethodSpec, TrainSettings, assign
from thinwire.tasks import Task, load_task

__all__ = ["PATIENCE", "Piloting", "Trained", "check_given", "own_batch", "spec_of", "train_pilot"]

PATIENCE = 300.0
"""Seconds of this machine's time after which a pilot ends, whatever is left to do."""

_SET_BY_PILOT = ("epochs", "batch", "split", "train_limit")
_EVALS = (4, 30)
"""Fewest and most tests of a run; between them, so many that testing takes as long as training."""

_TESTS, _TESTED = 8, 500
"""A task that can do with fewer test samples is given so many that this number of tests takes as
long as training, but no fewer than the second."""


@dataclass(frozen=True, kw_only=True)
class Piloting:
    """What to train, where, how long.

    Args:
        cluster: of the plan.
        task: a key of TASKS or `module:Class`.
        data: where the task's data are, if it needs any.
        candidates: of the plan; of those with the updates of plain S-SGD one is enough.
        batch: samples per worker and step, 1 or more; None: as in the task's tuned settings.
        steps: of each run with all workers, 1 or more; None: about half a minute in all.
        seed: 0 or more.
        given: flat training settings, as `--set` gives them.
        processes: runs at a time; 0 is one per core.
    """

    cluster: Cluster
    task: str
    candidates: tuple[Candidate, ...]
    data: str | None = None
    batch: int | None = None
    steps: int | None = None
    seed: int = 0
    given: Mapping[str, Any] = field(default_factory=dict)
    processes: int = 0

    def __post_init__(self) -> None:
        for key, least in (("steps", 1), ("batch", 1), ("seed", 0)):
            value = getattr(self, key)
            if value is not None and value < least:
                raise InputError(f"pilot {key} = {value}; allowed: a whole number, {least} or more")
        check_given(self.given)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What came of it.

    Args:
        curves: by label, of all runs that began.
        steps: asked for, of each run with all workers.
        batch: samples per worker and step.
        notes: of settings, failures, and what is missing.
        stopped: the user stopped it.
        folder: of the record.
    """

    curves: dict[str, Curve]
    steps: int
    batch: int
    notes: tuple[str, ...]
    stopped: bool
    folder: Path


class _OutOfTimeError(Exception):
    """Patience is at its end."""


def check_given(given: Mapping[str, Any]) -> None:
    """What can be said of flat settings before it is known which methods are trained.

    Args:
        given: as `--set` gives them.

    Raises:
        InputError: what a pilot sets itself; an unknown setting of all methods.
    """
    for key in given:
        if "train." in key and key.rpartition(".")[2] in _SET_BY_PILOT:
            raise InputError(f"{key} has no effect on a pilot: the plan says it")
    common = {key: value for key, value in given.items() if key.startswith(("train.", "wire."))}
    assign([MethodSpec(name=BASELINE)], common, {})


def own_batch(task: str) -> int:
    """Samples per worker and step for which a task's settings are tuned, or the default."""
    return int(RECIPES.get(task, {}).get("*", {}).get("batch", TrainSettings().batch))


def spec_of(candidate: Candidate) -> MethodSpec:
    """The training that stands for a row of a plan."""
    if not candidate.lossy and candidate.method != "alone":
        return MethodSpec(name=BASELINE)
    return MethodSpec(name=candidate.method, settings=candidate.settings)


def train_pilot(
    request: Piloting, folder: Path | None = None, *, patience: float = PATIENCE
) -> Trained:
    """Train each method once. Ctrl-C, or the end of patience, keeps what was measured.

    Args:
        request: what to train.
        folder: for the record, made if missing; None is a new one under `runs`.
        patience: seconds.

    Raises:
        InputError: anything that can be corrected, before the first run begins.
    """
    task = load_task(request.task, request.data)
    task.train_data()  # a missing data set is known now, not in the middle
    specs = list({spec_of(each).label: spec_of(each) for each in request.candidates}.values())
    assigned = assign(specs, request.given, RECIPES.get(request.task, {}))
    batch = request.batch or assigned[0].train.batch
    flops, size = 3.0 * task.flops_per_sample, request.cluster.size
    steps = request.steps or pilot_steps(flops, batch, size, len(specs))
    make_task, tested, shortened = _shortened(request, task, steps * batch * size)
    jobs = _jobs(request, task, tested, specs, assigned, steps, batch)
    folder = claim_folder(folder, "pilot")
    with Recorder(folder) as recorder:
        recorder.write(header(_settings(request, specs), cluster_to_toml(request.cluster)))
    ended, failures = _run_all(request, jobs, make_task, task.num_train, folder, patience)
    curves = {run.start.label: _curve(run, jobs) for run in read_record(folder).runs}
    return Trained(
        curves=curves,
        steps=steps,
        batch=batch,
        notes=(*_notes(request, jobs[0].train), *shortened, *_endings(ended, failures)),
        stopped=ended == "stopped",
        folder=folder,
    )


def _shortened(
    request: Piloting, task: Task, samples: int
) -> tuple[Callable[[], Task], int, list[str]]:
    """What makes the task, in another process, with as many test samples as a run on so many
    samples can afford; how many these are; what is to be said of that."""
    have, enough = len(task.test_data()[1]), max(_TESTED, 3 * samples // _TESTS)
    whole: Callable[[], Task] = partial(load_task, request.task, request.data)
    if have <= enough:
        return whole, have, []
    make = partial(load_task, request.task, request.data, test_limit=enough)
    try:
        make()
    except InputError:  # the task has no such setting
        return whole, have, []
    return make, enough, [f"Tested on the first {enough:,} of {have:,} test samples."]


def _jobs(
    request: Piloting,
    task: Task,
    tested: int,
    specs: Sequence[MethodSpec],
    assigned: Sequence[Assigned],
    steps: int,
    batch: int,
) -> list[Job]:
    """A run of each method on as many samples."""
    samples = steps * batch * request.cluster.size
    epochs, evals = samples / task.num_train, _num_evals(tested, samples)
    return [
        Job(
            run=f"{spec.label}/{request.seed}",
            label=spec.label,
            name=spec.name,
            method=own.method,
            cluster=request.cluster,
            train=replace(own.train, batch=batch, epochs=epochs, evals=evals, split="equal"),
            wire=own.wire,
            seed=request.seed,
        )
        for spec, own in zip(specs, assigned, strict=True)
    ]


def _num_evals(tested: int, samples: int) -> int:
    """A test costs a forward pass of each test sample, a third of what a training sample does."""
    fewest, most = _EVALS
    affordable = 3 * samples // max(1, tested)
    return max(fewest, min(most, affordable))


def _run_all(
    request: Piloting,
    jobs: list[Job],
    make_task: Callable[[], Task],
    num_train: int,
    folder: Path,
    patience: float,
) -> tuple[str, list[Failure]]:
    """How it ended ("", "late" or "stopped"), and the jobs that failed."""
    follower = Follower(folder, from_end=True)
    steps = {job.label: job.plan(num_train).steps for job in jobs}
    until = time.monotonic() + patience
    with LiveView(len(jobs), num_steps=steps, labels=[job.label for job in jobs]) as view:

        def watch() -> None:
            view.feed_all(follower.poll())
            if time.monotonic() > until:
                raise _OutOfTimeError

        try:
            failures = run_jobs(
                jobs, make_task, folder, request.processes or os.cpu_count() or 1, watch
            )
        except KeyboardInterrupt:
            return "stopped", []
        except _OutOfTimeError:
            return "late", []
    return "", failures


def _curve(run: RunRecord, jobs: Sequence[Job]) -> Curve:
    """By steps of one batch per worker: two methods' records count their steps each in its way."""
    job = next(job for job in jobs if job.label == run.start.label)
    each = job.train.batch * len(job.placement)
    points = [(line.samples / each, line.loss, line.accuracy) for line in run.evals]
    return curve_of_points(run.start.label, points, whole=run.status == "ok")


def _notes(request: Piloting, train: TrainSettings) -> list[str]:
    """How well the training is tuned."""
    if request.task not in RECIPES:
        return [
            f"Nothing is tuned for {request.task}: learning rate {train.lr:g}, momentum "
            f"{train.momentum:g}, or what --set says; a method that needs others looks worse."
        ]
    tuned = own_batch(request.task)
    text = f"Learning rates are tuned for {request.task} with each method's usual settings"
    if request.batch not in (None, tuned):
        text += f" and batches of {tuned}, not {request.batch}"
    return [f"{text}: other densities and longer periods take the same."]


def _endings(ended: str, failures: Sequence[Failure]) -> list[str]:
    notes = {
        "stopped": ["Stopped before its end: what is not here was not measured."],
        "late": ["Ended before its end, for time: --pilot-steps takes fewer steps."],
    }.get(ended, [])
    failed = [f"{f.run.rpartition('/')[0]} failed: {_line_of(f.reason)}" for f in failures]
    return [*notes, *failed]


def _line_of(reason: str) -> str:
    """The message: a traceback's last line, or else the first one."""
    lines = reason.strip().splitlines() or [""]
    return lines[-1 if lines[0].startswith("Traceback") else 0]


def _settings(request: Piloting, specs: Sequence[MethodSpec]) -> dict[str, Any]:
    return {
        "verb": "pilot",
        "task": request.task,
        "data": request.data,
        "methods": [spec.label for spec in specs],
        "seeds": [request.seed],
        "target": TARGETS.get(request.task),
        "given": dict(request.given),
    }
