"""The same tuning budget for every method: a grid of learning rates and momenta, on seeds that no
comparison reports.

    python benchmarks/tune.py --task digits --cluster office

Prints, per method, every setting with the median virtual time to the target and the final accuracy,
best first; the first line of each is what `run/recipes.py` holds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
from functools import partial
from pathlib import Path

from thinwire.cluster import Cluster, load_cluster
from thinwire.report import read_record
from thinwire.run.experiment import Job
from thinwire.run.pool import run_jobs
from thinwire.run.recipes import DEFAULT_METHODS
from thinwire.run.settings import Assigned, MethodSpec, assign, parse_assignments
from thinwire.tasks import load_task

RATES = (0.05, 0.1, 0.2)
MOMENTA = (0.0,)
HEADER = (
    '{"kind":"header","schema":1,"created":"","command":[],"settings":{},"cluster":"",'
    '"versions":{},"machine":{}}\n'
)


def job_of(spec: MethodSpec, settings: Assigned, cluster: Cluster, label: str, seed: int) -> Job:
    """One run of a study: `label` names the settings, and groups the seeds."""
    return Job(
        run=f"{label}/{seed}",
        label=label,
        name=spec.name,
        method=settings.method,
        cluster=cluster,
        train=settings.train,
        wire=settings.wire,
        seed=seed,
    )


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="digits")
    parser.add_argument("--data")
    parser.add_argument("--cluster", default="office")
    parser.add_argument("--methods", default=",".join(DEFAULT_METHODS))
    parser.add_argument("--seeds", default="100,101")
    parser.add_argument("--target", type=float, default=0.95)
    parser.add_argument("--set", action="append", default=[], dest="given")
    parser.add_argument("--json")
    args = parser.parse_args()
    cluster = load_cluster(args.cluster)
    seeds = [int(s) for s in args.seeds.split(",")]
    jobs = []
    for text, lr, momentum in itertools.product(args.methods.split(","), RATES, MOMENTA):
        spec = MethodSpec.parse(text)
        given = {**parse_assignments(args.given), "train.lr": lr, "train.momentum": momentum}
        settings = assign([spec], given, {})[0]
        label = f"{text}|{lr}|{momentum}"
        jobs += [job_of(spec, settings, cluster, label, seed) for seed in seeds]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "record.jsonl").write_text(HEADER)
        make_task = partial(load_task, args.task, args.data)
        failures = run_jobs(jobs, make_task, Path(folder), os.cpu_count() or 1, lambda: None)
        record = read_record(folder)
    failed = {f.run for f in failures}
    rows = []
    for label in record.labels:
        times, finals = [], []
        for run in record.of(label):
            if run.start.run in failed or not run.evals:
                times.append(None)
                finals.append(0.0)
                continue
            hit = [e.time for e in run.evals if e.accuracy >= args.target]
            times.append(hit[0] if hit else None)
            finals.append(run.evals[-1].accuracy)
        kept = min(finals) >= args.target - 0.01
        reached = [t for t in times if t is not None]
        complete = kept and len(reached) == len(times)
        time = statistics.median(reached) if complete else None
        rows.append((label, time, statistics.mean(finals), times))
    rows.sort(key=lambda r: (r[0].split("|")[0], r[1] is None, r[1] or -r[2]))
    for label, time, final, times in rows:
        method, lr, momentum = label.split("|")
        print(
            f"{method:24} lr {lr:5} momentum {momentum:4} time {time}  final {final:.3f}  {times}"
        )
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
