"""`thinwire compare`: every method, every seed, one cluster, one record."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from thinwire.cluster import cluster_from_toml, cluster_to_toml, load_cluster
from thinwire.errors import InputError
from thinwire.report import (
    Follower,
    LiveView,
    Recorder,
    Rendered,
    parse_target,
    read_record,
    render,
)
from thinwire.report.heading import header
from thinwire.run.experiment import Job
from thinwire.run.folders import claim_folder
from thinwire.run.pool import Failure, run_jobs
from thinwire.run.recipes import DEFAULT_METHODS, RECIPES, TARGETS
from thinwire.run.settings import Assigned, MethodSpec, assign
from thinwire.tasks import Task, load_task

__all__ = ["Comparing", "Outcome", "Stopped", "compare", "header", "resume"]


@dataclass(frozen=True, kw_only=True)
class Comparing:
    """What to compare, on what, how often.

    Args:
        cluster: a preset's name or a TOML file; or a cluster's TOML text in a resumed run.
        task: a key of TASKS or `module:Class`.
        data: where the task's data are, if it needs any.
        methods: as `MethodSpec.parse` reads them.
        seeds: each method runs once with each.
        target: the accuracy to which time is measured: "0.95", or "97%" of the baseline's best;
            None is the task's own.
        given: flat settings, as `--set` gives them.
        processes: runs at a time; 0 is one per core.
    """

    cluster: str = "office"
    task: str = "digits"
    data: str | None = None
    methods: tuple[str, ...] = DEFAULT_METHODS
    seeds: tuple[int, ...] = (0, 1, 2)
    target: str | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    processes: int = 0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of it: the report, and the runs that failed."""

    folder: Path
    rendered: Rendered
    failures: tuple[Failure, ...]


class Stopped(KeyboardInterrupt):
    """The user stopped a comparison; its record is readable and can be gone on with.

    Args:
        folder: the run folder.
    """

    def __init__(self, folder: Path):
        super().__init__()
        self.folder = folder


@dataclass(frozen=True, kw_only=True)
class _Ready:
    """A request with everything looked up and checked."""

    request: Comparing
    specs: tuple[MethodSpec, ...]
    jobs: tuple[Job, ...]
    make_task: Callable[[], Task]
    steps: dict[str, int]


def compare(
    request: Comparing,
    folder: Path | None,
    console: Console,
    *,
    done: frozenset[tuple[str, int]] = frozenset(),
) -> Outcome:
    """Run what is asked for that is not done, then report on all of it.

    Args:
        request: what to compare.
        folder: the run folder, made if missing; None is a new one under `runs`.
        console: for the results; progress goes to the error stream.
        done: (label, seed) that the record already holds.

    Raises:
        InputError: anything that can be corrected, before the first run begins.
        Stopped: the user stopped it.
    """
    ready = _prepare(request, done)
    folder = claim_folder(folder, "compare")
    try:
        failures = _run_all(ready, folder)
        rendered = render(folder, target=ready.request.target, console=console)
    except KeyboardInterrupt:
        raise Stopped(folder) from None
    return Outcome(folder=folder, rendered=rendered, failures=tuple(failures))


def _prepare(request: Comparing, done: frozenset[tuple[str, int]]) -> _Ready:
    text = request.cluster
    cluster = cluster_from_toml(text, "record") if "\n" in text else load_cluster(text)
    specs = _specs(request.methods)
    seeds = _seeds(request.seeds)
    target = request.target or TARGETS.get(request.task)
    if target is not None:
        parse_target(target, {spec.label: 1.0 for spec in specs})
    assigned = assign(specs, request.given, RECIPES.get(request.task, {}))
    limit = _train_limit(specs, assigned)
    make_task = partial(load_task, request.task, request.data, train_limit=limit)
    task = make_task()
    task.train_data()  # a missing data set is known now, not in the middle
    jobs = [
        Job(
            run=f"{spec.label}/{seed}",
            label=spec.label,
            name=spec.name,
            method=a.method,
            cluster=cluster,
            train=a.train,
            wire=a.wire,
            seed=seed,
            timeline=seed == seeds[0],
        )
        for seed in seeds
        for spec, a in zip(specs, assigned, strict=True)
    ]
    return _Ready(
        request=replace(request, cluster=cluster_to_toml(cluster), seeds=seeds, target=target),
        specs=tuple(specs),
        jobs=tuple(job for job in jobs if (job.label, job.seed) not in done),
        make_task=make_task,
        steps={j.label: j.plan(task.num_train).steps for j in jobs},
    )


def _run_all(ready: _Ready, folder: Path) -> list[Failure]:
    request, jobs = ready.request, list(ready.jobs)
    follower = Follower(folder, from_end=True)
    with Recorder(folder) as recorder:
        recorder.write(header(_settings(request, ready.specs), request.cluster))
    if not jobs:
        return []
    labels = [spec.label for spec in ready.specs]
    with LiveView(len(jobs), num_steps=ready.steps, labels=labels) as view:
        return run_jobs(
            jobs,
            ready.make_task,
            folder,
            request.processes or os.cpu_count() or 1,
            lambda: view.feed_all(follower.poll()),
        )


def _train_limit(specs: Sequence[MethodSpec], assigned: Sequence[Assigned]) -> int | None:
    """The one of all methods: they are compared on the same data."""
    limits = [a.train.train_limit for a in assigned]
    for spec, limit in zip(specs, limits, strict=True):
        if limit != limits[0]:
            raise InputError(
                f"train_limit = {limit} for {spec.label}, {limits[0]} for {specs[0].label}: all "
                "methods see the same data; give train.train_limit"
            )
    return limits[0]


def resume(folder: Path, console: Console, processes: int = 0) -> Outcome:
    """Finish a comparison that was stopped: its settings, the runs it lacks.

    Args:
        folder: the run folder.
        console: for the results.
        processes: runs at a time; 0 is as before.

    Raises:
        InputError: no record there, or one that is not a comparison's.
    """
    record = read_record(folder)
    settings = record.header.settings
    if settings.get("verb") != "compare":
        raise InputError(f"{folder} holds no comparison to resume")
    request = Comparing(
        cluster=record.header.cluster,
        task=settings["task"],
        data=settings["data"],
        methods=tuple(settings["specs"]),
        seeds=tuple(settings["seeds"]),
        target=settings["target"],
        given=settings["given"],
        processes=processes or settings["processes"],
    )
    return compare(request, folder, console, done=frozenset(record.done()))


def _specs(methods: Sequence[str]) -> list[MethodSpec]:
    specs = [MethodSpec.parse(m) for m in methods]
    labels = [spec.label for spec in specs]
    for label in labels:
        if labels.count(label) > 1:
            raise InputError(f"method {label!r} is asked for twice")
    if not specs:
        raise InputError("no methods: name at least one, as in --methods ssgd,gtopk")
    return specs


def _seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    if not seeds or min(seeds) < 0 or len(set(seeds)) != len(seeds):
        raise InputError(f"seeds = {list(seeds)}: different whole numbers from 0 on are needed")
    return tuple(seeds)


def _settings(request: Comparing, specs: Sequence[MethodSpec]) -> dict[str, Any]:
    return {
        "verb": "compare",
        "task": request.task,
        "data": request.data,
        "methods": [spec.label for spec in specs],
        "specs": list(request.methods),
        "seeds": list(request.seeds),
        "target": request.target,
        "given": dict(request.given),
        "processes": request.processes,
    }
