"""Made-up run records for tests of the report: plausible numbers, no training.

Eight machines on a slow switch, as in the preset `office`, computed by a few lines of arithmetic:
every step, all workers compute, then exchange; the two slower ones are waited for.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from thinwire.report.record import End, Eval, Header, Line, Note, Run, Span, Step
from thinwire.report.recorder import Recorder
from thinwire.seeds import seed_for

__all__ = ["EXAMPLE_METHODS", "MadeUpMethod", "example_lines", "write_example_record"]

_RATE = 12.5e6
_NODES = ("desk-0", "desk-1", "desk-2", "desk-3", "desk-4", "desk-5", "old", "in-use")
_SLOWNESS = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 1.6)
_SAMPLES = 28_740
_BATCH = 32


@dataclass(frozen=True, kw_only=True)
class MadeUpMethod:
    """What the arithmetic needs of a method.

    Args:
        label: as in the record; `method` is its part before the first "-".
        workers: 1..8.
        sent: bytes a worker sends in an exchange.
        every: steps between exchanges.
        reach: the test accuracy it tends to, 0..1.
        pace: samples after which about two thirds of the way are done.
        outcomes: per seed "ok", "failed" or "interrupted"; "ok" where not given.
        drops: per seed, subtracted from `reach`.
    """

    label: str
    workers: int = 8
    sent: int = 0
    every: int = 1
    reach: float = 0.985
    pace: float = 2400.0
    outcomes: tuple[str, ...] = ()
    drops: tuple[float, ...] = ()


EXAMPLE_METHODS = (
    MadeUpMethod(label="alone", workers=1, pace=1900.0, reach=0.988),
    MadeUpMethod(label="ssgd", sent=560_000),
    MadeUpMethod(label="ssgd-acc8", sent=560_000, every=8, pace=6500.0, reach=0.981),
    MadeUpMethod(label="topk", sent=45_000, pace=2700.0, reach=0.979, drops=(0.0, 0.031, 0.0)),
    MadeUpMethod(label="gtopk", sent=19_000, pace=2800.0, reach=0.982),
    MadeUpMethod(label="localsgd", sent=560_000, every=8, pace=2900.0, reach=0.984),
)
"""Six methods; `topk` misses the usual target on its second seed."""


def write_example_record(
    folder: str | os.PathLike[str],
    *,
    methods: Sequence[MadeUpMethod] = EXAMPLE_METHODS,
    num_seeds: int = 3,
    target: str = "97%",
    cluster: str = "",
) -> Path:
    """Write a made-up record; returns the folder.

    Args:
        folder: made if missing.
        methods: what is compared.
        num_seeds: runs of each method.
        target: goes into the header's settings.
        cluster: the cluster as TOML text.
    """
    with Recorder(folder) as recorder:
        recorder.write_many(
            example_lines(methods=methods, num_seeds=num_seeds, target=target, cluster=cluster)
        )
    return Path(folder)


def example_lines(
    *,
    methods: Sequence[MadeUpMethod] = EXAMPLE_METHODS,
    num_seeds: int = 3,
    target: str = "97%",
    cluster: str = "",
) -> Iterable[Line]:
    """The lines of a made-up record, in the order in which a comparison would write them."""
    yield Header(
        created="2026-01-05T09:00:00+00:00",
        command=["thinwire", "compare", "--seeds", str(num_seeds)],
        settings={
            "task": "digits",
            "cluster": "office",
            "methods": [method.label for method in methods],
            "seeds": num_seeds,
            "target": target,
            "train": {"batch": _BATCH, "lr": 0.05, "momentum": 0.9},
        },
        cluster=cluster,
        versions={"thinwire": "0.1.0", "torch": "2.14.1", "python": "3.11.2"},
        machine={"cores": 2, "memory": "8 GB", "platform": "Linux x86_64"},
    )
    for seed in range(num_seeds):
        for method in methods:
            yield from _run(method, seed)


def _run(method: MadeUpMethod, seed: int) -> Iterable[Line]:
    run = f"{method.label}-{seed}"
    rng = random.Random(seed_for(seed, method.label))
    count = method.workers
    outcome = method.outcomes[seed] if seed < len(method.outcomes) else "ok"
    reach = method.reach - (method.drops[seed] if seed < len(method.drops) else 0.0)
    reach += rng.gauss(0, 0.0015)
    yield Run(
        run=run,
        label=method.label,
        method=method.label.split("-")[0],
        seed=seed,
        mode="virtual",
        settings={"steps": _SAMPLES // (_BATCH * count)},
        nodes=list(_NODES[:count]),
        num_params=80_000,
        wire_model="fair",
    )
    steps = _SAMPLES // (_BATCH * count)
    stop = steps * 2 // 3 if outcome != "ok" else steps
    clock = [0.0] * count
    waited, computed = [0.0] * count, [0.0] * count
    sent = messages = 0
    for step in range(1, stop + 1):
        exchange = step % method.every == 0 and count > 1
        begin, ends = list(clock), []
        for rank in range(count):
            took = 0.012 * _SLOWNESS[rank] * (1 + 0.04 * abs(rng.gauss(0, 1)))
            clock[rank] += took
            computed[rank] += took
            ends.append(clock[rank])
        if exchange:
            met = max(clock) + method.sent / _RATE + 0.004
            sent, messages = sent + method.sent, messages + 14
            for rank in range(count):
                waited[rank] += met - clock[rank]
                clock[rank] = met
        yield from _spans(run, step, begin, ends, clock, method.sent if exchange else 0, seed)
        done = step * _BATCH * count
        progress = 1 - math.exp(-((done / method.pace) ** 0.9))
        for rank in range(count):
            loss = 2.3 * (1 - progress) + 0.03 + 0.05 * abs(rng.gauss(0, 1)) * (1.2 - progress)
            yield Step(run=run, rank=rank, step=step, time=clock[rank], loss=loss, sent=sent)
        if step % max(1, steps // 24) == 0 or step == stop:
            accuracy = 0.1 + (reach - 0.1) * progress + rng.gauss(0, 0.002 + 0.02 * (1 - progress))
            yield Eval(
                run=run,
                step=step,
                time=max(clock),
                samples=done,
                sent=sent,
                accuracy=min(max(accuracy, 0.0), 1.0),
                loss=2.3 * (1 - progress) + 0.06,
            )
    if outcome == "interrupted":
        return
    if seed == 0 and method.every > 1:
        yield Note(run=run, time=0.0, text="the last round was shorter than the others")
    yield End(
        run=run,
        status=outcome,
        time=max(clock),
        steps=stop,
        samples=stop * _BATCH * count,
        sent=[sent] * count,
        messages=[messages] * count,
        waited=waited,
        computed=computed,
        digest=f"{seed_for(seed, method.label, 'digest'):016x}",
        phases=[_phases(method, *both) for both in zip(computed, waited, strict=True)],
        joules=[35.0 * max(clock) + 30.0 * busy for busy in computed],
        wall=1.5 + 0.4 * rng.random(),
        error="" if outcome == "ok" else f"rank 2, step {stop}: the loss became NaN",
    )


def _phases(method: MadeUpMethod, computed: float, waited: float) -> dict[str, float]:
    sparse = {"select": 0.1 * computed, "merge": 0.02 * computed} if "topk" in method.label else {}
    apply = 0.05 * computed
    compute = computed - apply - sum(sparse.values())
    wait = {"wait": waited} if waited else {}
    return {"compute": compute, **sparse, **wait, "apply": apply}


def _spans(
    run: str,
    step: int,
    begin: list[float],
    ends: list[float],
    clock: list[float],
    nbytes: int,
    seed: int,
) -> Iterable[Line]:
    """Of the first seed and its first steps only, as real runs keep them."""
    if seed or step > 40:
        return
    for rank, (start, end) in enumerate(zip(begin, ends, strict=True)):
        yield Span(run=run, rank=rank, what="compute", start=start, end=end)
        if nbytes:
            peer = (rank + 1) % len(clock)
            leaves = max(ends) if len(ends) > 1 else end
            yield Span(
                run=run,
                rank=rank,
                what="send",
                start=leaves,
                end=leaves + nbytes / _RATE,
                peer=peer,
                nbytes=nbytes,
            )
            yield Span(run=run, rank=rank, what="wait", start=end, end=clock[rank], peer=peer)
