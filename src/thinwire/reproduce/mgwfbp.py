"""MG-WFBP: iteration times of three schedules, four models, two precisions, two networks."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from thinwire.methods import Paper
from thinwire.models import published_table
from thinwire.reproduce._errors import error_lines, percent_off
from thinwire.reproduce._mgwfbp_published import CASES, NETWORKS, SCHEDULES, WORKERS, Case
from thinwire.reproduce.base import result_of
from thinwire.reproduce.line import Line, Result
from thinwire.schedule import (
    Cost,
    Groups,
    Load,
    finish,
    fused,
    load_of,
    merged,
    optimal,
    per_tensor,
    simulate,
    whole,
)
from thinwire.units import format_rate

__all__ = ["MGWFBPPaper"]

_FITTED = "resnet152"
_WANTED_ERROR = 15.0  # percent, median over the cells that are predicted
_FORWARD = 1 / 3  # of computing; only totals were published
_MERGED = SCHEDULES.index("MG-WFBP")


@dataclass(frozen=True)
class MGWFBPPaper:
    """The authors' start-ups and rates, computing times by our model tables, three schedules.

    Example:
        >>> MGWFBPPaper().name
        'mgwfbp'
    """

    name: ClassVar[str] = "mgwfbp"
    title: ClassVar[str] = "MG-WFBP: merged gradients on 10 GbE and InfiniBand, four models"
    paper: ClassVar[Paper] = Paper(
        authors="Shi, Chu and Li",
        title="MG-WFBP: Efficient Data Communication for Distributed Synchronous SGD Algorithms",
        venue="IEEE INFOCOM",
        year=2019,
        url="https://arxiv.org/abs/1811.11141",
    )

    def run(self) -> Result:
        """See `Reproduction`."""
        host = fit_host(_FITTED)
        cells = list(_cells(host))
        lines = (*cells, *_errors(cells), *_gains(host), *_optima())
        return result_of(self, lines, _notes(host))


@cache
def iteration(case: Case, schedule: str, host: float, workers: int = WORKERS) -> float:
    """Seconds of an iteration: computing, what the schedule leaves exposed, and `host` seconds for
    each byte of the gradient."""
    load, cost = _load(case), _cost(case, workers)
    line = simulate(load, fused(load, _groups(load, cost, schedule)), [cost])
    return line.step + host * sum(load.nbytes)


def fit_host(model: str) -> float:
    """Seconds a byte that a model's four iterations with one message took beside computing and that
    message: their mean."""
    found = []
    for case in CASES:
        if case.model == model:
            exact = iteration(case, "one message", 0.0)
            published = case.seconds[SCHEDULES.index("one message")]
            found.append((published - exact) / sum(_load(case).nbytes))
    return statistics.mean(found)


@cache
def _load(case: Case) -> Load:
    forward = _FORWARD * case.compute
    return load_of(published_table(case.model), forward, case.compute - forward, case.itemsize)


def _cost(case: Case, workers: int = WORKERS) -> Cost:
    startup, per_byte = NETWORKS[case.network][workers]
    return Cost(startup=startup, per_byte=per_byte)


def _groups(load: Load, cost: Cost, schedule: str) -> Groups:
    if schedule == "WFBP":
        return per_tensor(load.order)
    if schedule == "one message":
        return whole(load.order)
    return merged(load.order, load.ready, load.nbytes, cost.startup, cost.per_byte)


def _cells(host: float) -> Iterator[Line]:
    for case in sorted(CASES, key=lambda c: (c.network, -c.itemsize)):
        for schedule, published in zip(SCHEDULES, case.seconds, strict=True):
            yield Line(
                section=f"Iteration on {case.network}, {case.precision}",
                name=f"{case.title}, {schedule}",
                published=published,
                ours=iteration(case, schedule, host),
                unit="s",
                kind="fitted" if case.model == _FITTED else "predicted",
                series=schedule,
            )


def _errors(cells: Sequence[Line]) -> Iterator[Line]:
    section = "How far predicted iterations are from the published"
    yield from error_lines(cells, section, _WANTED_ERROR, lambda line: line.series)
    for title, host, workers in (
        ("nothing fitted", 0.0, WORKERS),
        ("start-ups and rates published for 8 workers, nothing fitted", 0.0, 8),
    ):
        yield Line(section=section, name=f"median of all cells, {title}",
                   ours=_median(host, workers), unit="%", kind="beside")  # fmt: skip
    for case in CASES[4::4]:
        median = _median(fit_host(case.model), WORKERS, case.model)
        yield Line(section=section, name=f"median of the others, fitted on {case.title} instead",
                   ours=median, unit="%", kind="beside")  # fmt: skip


def _median(host: float, workers: int, without: str = "") -> float:
    return statistics.median(
        percent_off(iteration(case, schedule, host, workers), published)
        for case in CASES
        if case.model != without
        for schedule, published in zip(SCHEDULES, case.seconds, strict=True)
    )


def _gains(host: float) -> Iterator[Line]:
    for index, other in enumerate(SCHEDULES[:_MERGED]):
        for case in CASES:
            ours = iteration(case, other, host) / iteration(case, "MG-WFBP", host)
            yield Line(
                section=f"MG-WFBP's gain over {other}",
                name=f"{case.title}, {case.network}, {case.precision}",
                published=case.seconds[index] / case.seconds[_MERGED],
                ours=ours,
                unit="×",
                kind="fitted" if case.model == _FITTED else "predicted",
                series=case.precision,
            )
    yield Line(
        section="Who is fastest",
        name=f"of {len(CASES)} cases, those in which MG-WFBP is no slower than either",
        published=float(sum(case.seconds[_MERGED] == min(case.seconds) for case in CASES)),
        ours=float(sum(_wins(case, host) for case in CASES)),
        kind="claim",
        at_least=float(len(CASES)),
        note="holds by a proof for any times and sizes, see `thinwire.schedule.merged`",
    )


def _wins(case: Case, host: float) -> bool:
    times = [iteration(case, schedule, host) for schedule in SCHEDULES]
    return times[_MERGED] <= min(times) * (1 + 1e-12)


def _optima() -> Iterator[Line]:
    """How far the rule is from the best grouping there is."""
    for case in CASES[::4]:
        load, cost = _load(case), _cost(case)
        ends = [
            finish(groups, load.ready, load.nbytes, cost)
            for groups in (
                _groups(load, cost, "MG-WFBP"),
                optimal(load.order, load.ready, load.nbytes, cost),
            )
        ]
        yield Line(section="End of communication by the rule, over that of the best grouping",
                   name=f"{case.title}, {case.network}, {case.precision}",
                   ours=ends[0] / ends[1], kind="claim", at_most=1.0 + 1e-9)  # fmt: skip


def _notes(host: float) -> tuple[str, ...]:
    _, per_byte = NETWORKS["10 GbE"][WORKERS]
    carried = 2 * (WORKERS - 1) / WORKERS / per_byte
    return (
        f"Fitted: {1e9 * host:.2f} ns for each byte of the gradient beside the network and not "
        "hidden by computing (copies, casts, the update), the mean of ResNet-152's four "
        "iterations with one message. All twelve of its cells count as fitted.",
        "Given, as published: the time of computing, and start-up and seconds a byte of an "
        f"all-reduce of {WORKERS} workers. That there were {WORKERS} isn't said beside the "
        "measurements.",
        "Assumed: a third of computing is forward; backward is divided by operations, as counted "
        "by thinwire's model tables. Half precision halves the bytes and not the start-ups.",
        f"The published {1e9 * per_byte:.2f} ns a byte for 10 GbE mean {format_rate(carried)} on "
        "a ring's line, more than such a line carries: they were measured with small messages. "
        "What the iterations took beyond them is in the fitted constant, the network's part "
        "included.",
    )
