"""`thinwire compare`: every method, every seed, one cluster, one record."""

from __future__ import annotations

import datetime
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console

from thinwire._version import __version__
from thinwire.cluster import cluster_from_toml, cluster_to_toml, load_cluster
from thinwire.errors import InputError
from thinwire.report import Follower, Header, LiveView, Recorder, Rendered, read_record, render
from thinwire.run.experiment import Job
from thinwire.run.pool import Failure, run_jobs
from thinwire.run.recipes import DEFAULT_METHODS, RECIPES, TARGETS
from thinwire.run.settings import MethodSpec, assign
from thinwire.tasks import load_task

__all__ = ["Comparing", "Outcome", "compare", "header", "resume"]


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


def compare(
    request: Comparing,
    folder: Path,
    console: Console,
    *,
    done: frozenset[tuple[str, int]] = frozenset(),
) -> Outcome:
    """Run what is asked for that is not done, then report on all of it.

    Args:
        request: what to compare.
        folder: the run folder; made if missing.
        console: for the results; progress goes to the error stream.
        done: (label, seed) that the record already holds.

    Raises:
        InputError: anything that can be corrected, before the first run begins.
        KeyboardInterrupt: the user stopped it; the record is readable.
    """
    text = request.cluster
    cluster = cluster_from_toml(text, "record") if "\n" in text else load_cluster(text)
    specs = _specs(request.methods)
    seeds = _seeds(request.seeds)
    task_settings = {"train_limit": request.given.get("train.train_limit")}
    make_task = partial(load_task, request.task, request.data, **task_settings)
    task = make_task()
    task.train_data()  # a missing data set is known now, not in the middle
    assigned = assign(specs, request.given, RECIPES.get(request.task, {}))
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
        if (spec.label, seed) not in done
    ]
    target = request.target or TARGETS.get(request.task)
    steps = {j.label: j.plan(task.num_train).steps for j in jobs}
    follower = Follower(folder, from_end=True)
    resolved = replace(request, cluster=cluster_to_toml(cluster), seeds=seeds, target=target)
    with Recorder(folder) as recorder:
        recorder.write(header(_settings(resolved, specs), resolved.cluster))
    failures: list[Failure] = []
    if jobs:
        labels = [spec.label for spec in specs]
        with LiveView(len(jobs), num_steps=steps, labels=labels) as view:
            failures = run_jobs(
                jobs,
                make_task,
                folder,
                request.processes or os.cpu_count() or 1,
                lambda: view.feed_all(follower.poll()),
            )
    rendered = render(folder, target=target, console=console)
    return Outcome(folder=folder, rendered=rendered, failures=tuple(failures))


def resume(folder: Path, console: Console) -> Outcome:
    """Finish a comparison that was stopped: its settings, the runs it lacks.

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
        processes=settings["processes"],
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


def header(settings: dict[str, Any], cluster_toml: str) -> Header:
    """The first line of a record made here and now."""
    return Header(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=["thinwire", *sys.argv[1:]],
        settings=settings,
        cluster=cluster_toml,
        versions=_versions(),
        machine={
            "cores": os.cpu_count(),
            "platform": platform.platform(),
            "processor": platform.machine(),
        },
    )


def _versions() -> dict[str, str]:
    names = ("torch", "numpy", "greenlet", "pyzmq")
    return {
        "thinwire": __version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in names},
    }
