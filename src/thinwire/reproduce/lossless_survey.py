"""The lossless survey: seven methods, three models, three networks, 4 to 32 GPUs."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import ClassVar, TypeAlias

from thinwire.methods import Paper
from thinwire.reproduce._errors import error_lines, percent_off
from thinwire.reproduce._lossless_bed import (
    FITTED_MODEL,
    FITTED_ROWS,
    Constants,
    fit,
    throughput,
)
from thinwire.reproduce._lossless_published import (
    METHODS,
    MODELS,
    NETWORKS,
    RDMA,
    SPREAD,
    STARTUPS_TEN,
    TCP,
    TEN,
    THROUGHPUT,
    WORKERS,
    Model,
)
from thinwire.reproduce.base import result_of
from thinwire.reproduce.line import Kind, Line, Result
from thinwire.units import format_rate, format_time

__all__ = ["LosslessSurvey"]

Cells: TypeAlias = Mapping[tuple[str, str, str, int], float]
"""Samples per second by model, network, method and number of GPUs."""

_MOST = WORKERS[-1]
_WANTED_ERROR = 15.0  # percent, median over the cells that are predicted
_WANTED_PAIRS = 0.8
_WALL = 0.26
_EQUAL = 0.02
_RESNET, _BASE, _LARGE = MODELS
_ON_TEN = tuple((m.title, x) for m in (_RESNET, _LARGE) for x in ("BSP-PS", "WFBP-PS"))


@dataclass(frozen=True)
class LosslessSurvey:
    """One description of the authors' test bed, seven schedules on it.

    Example:
        >>> LosslessSurvey().name
        'lossless-survey'
    """

    name: ClassVar[str] = "lossless-survey"
    title: ClassVar[str] = "Seven lossless methods, three models, three networks, up to 32 GPUs"
    paper: ClassVar[Paper] = Paper(
        authors="Shi, Tang, Chu, Liu, Wang and Li",
        title="A Quantitative Survey of Communication Optimizations in Distributed Deep Learning",
        venue="IEEE Network",
        year=2021,
        url="https://arxiv.org/abs/2005.13247",
    )

    def run(self) -> Result:
        """See `Reproduction`."""
        constants = fit()
        ours = _simulated(constants)
        published = {
            (*key, n): value
            for key, row in THROUGHPUT.items()
            for n, value in zip(WORKERS, row, strict=True)
        }
        cells = list(_cells(ours, published))
        lines = (
            *cells,
            *_errors(cells, constants),
            *_order(ours, published),
            *_fusion(ours, published),
            *_faster_network(ours, published),
            *_wall(ours, published),
        )
        return result_of(self, lines, _notes(constants))


def _simulated(constants: Constants, networks: Sequence[str] = NETWORKS) -> Cells:
    return {
        (model.title, network, method, n): throughput(model, network, method, n, constants)
        for model in MODELS
        for network in networks
        for method in METHODS
        for n in WORKERS
    }


def _kind(model: str, network: str, method: str) -> Kind:
    fitted = model == FITTED_MODEL.title and (network, method) in FITTED_ROWS
    return "fitted" if fitted else "predicted"


def _cells(ours: Cells, published: Cells) -> Iterator[Line]:
    for model in MODELS:
        for network in NETWORKS:
            for method in METHODS:
                for n in WORKERS:
                    key = model.title, network, method, n
                    yield Line(
                        section=f"{model.title} on {network}",
                        name=f"{method}, {n} GPUs",
                        published=published[key],
                        ours=ours[key],
                        unit="samples/s",
                        kind=_kind(*key[:3]),
                        series=method.removesuffix("-A2A").removesuffix("-PS"),
                    )


def _errors(cells: Sequence[Line], constants: Constants) -> Iterator[Line]:
    section = "How far predicted throughput is from the published"
    yield from error_lines(cells, section, _WANTED_ERROR, _method_of)
    untouched = [line for line in cells if not line.section.startswith(FITTED_MODEL.title)]
    yield _beside(section, "median of the two models on which nothing was fitted", untouched)
    usual = [line for line in cells if line.kind == "predicted" and not _probably_on_ten(line)]
    yield _beside(section, "median without the 12 cells that equal those on 10 GbE", usual)
    for name, other, network in (
        ("10 GbE, with the start-ups published for it",
         dataclasses.replace(constants, startups=STARTUPS_TEN), TEN),
        ("10 GbE, if push and pull passed beside each other",
         dataclasses.replace(constants, duplex=True), TEN),
        ("RDMA, if nothing contended for the bus",
         dataclasses.replace(constants, beside=1.0), RDMA),
    ):  # fmt: skip
        off = [
            percent_off(value, THROUGHPUT[key[:3]][WORKERS.index(key[3])])
            for key, value in _simulated(other, (network,)).items()
            if _kind(*key[:3]) == "predicted"
        ]
        yield Line(section=section, name=f"median on {name}", ours=statistics.median(off),
                   unit="%", kind="beside")  # fmt: skip


def _method_of(cell: Line) -> str:
    return cell.name.partition(",")[0]


def _beside(section: str, name: str, lines: Sequence[Line]) -> Line:
    off = [percent_off(line.ours, line.published) for line in lines if line.published is not None]
    return Line(section=section, name=name, ours=statistics.median(off), unit="%", kind="beside")


def _probably_on_ten(line: Line) -> bool:
    """Servers under TCP/IP whose published figures from 8 GPUs on equal those on 10 GbE."""
    return any(
        line.section == f"{model} on {TCP}"
        and _method_of(line) == method
        and not line.name.endswith(f", {WORKERS[0]} GPUs")
        for model, method in _ON_TEN
    )


def _order(ours: Cells, published: Cells) -> Iterator[Line]:
    """Finding 1: who is faster than whom on 32 GPUs with RDMA."""
    ranked = sorted(METHODS, key=lambda m: -published[_RESNET.title, RDMA, m, _MOST])
    for faster, slower in pairwise(ranked):
        told, found = (
            cells[_RESNET.title, RDMA, faster, _MOST] / cells[_RESNET.title, RDMA, slower, _MOST]
            for cells in (published, ours)
        )
        near = told < 1 + _EQUAL
        yield Line(
            section=f"Order on ResNet-50, RDMA, {_MOST} GPUs: throughput of one over the next",
            name=f"{faster} over {slower}",
            published=told,
            ours=found,
            unit="×",
            kind="claim",
            tolerance=_EQUAL if near else None,
            at_least=None if near else 1.0,
            note=_slow_scheduler(faster, slower, found),
        )
    for model in MODELS:
        pairs = list(_told_apart(model, published))
        right = [ours[a] > ours[b] for a, b in pairs]
        yield Line(
            section="Part of the pairs, told apart by twice their spread, in the published order",
            name=f"{model.title}, {len(pairs)} pairs",
            published=1.0,
            ours=sum(right) / len(right),
            kind="claim",
            at_least=_WANTED_PAIRS,
            note=_wrong_pairs(pairs, right),
        )


def _slow_scheduler(faster: str, slower: str, found: float) -> str:
    if slower != "ByteScheduler-A2A" or found >= 1:
        return ""
    alone = WORKERS[0]
    step = alone * _RESNET.batch / THROUGHPUT[_RESNET.title, RDMA, slower][0]
    return (
        f"published, ByteScheduler-A2A loses {format_time(step - _RESNET.computing)} of each "
        "ResNet-50 iteration even on one machine; the cost of handing over a message, fitted on "
        "BERT-Large, explains a part of it"
    )


def _told_apart(
    model: Model, published: Cells
) -> Iterator[tuple[tuple[str, str, str, int], tuple[str, str, str, int]]]:
    """Pairs of cells, the published faster first."""
    for one, other in combinations(METHODS, 2):
        a, b = ((model.title, RDMA, method, _MOST) for method in (one, other))
        spread = math.hypot(SPREAD[model.title, one], SPREAD[model.title, other])
        if abs(published[a] - published[b]) > 2 * spread:
            yield (a, b) if published[a] > published[b] else (b, a)


def _wrong_pairs(
    pairs: Sequence[tuple[tuple[str, str, str, int], tuple[str, str, str, int]]],
    right: Sequence[bool],
) -> str:
    wrong = [f"{a[2]} over {b[2]}" for (a, b), yes in zip(pairs, right, strict=True) if not yes]
    return f"the other way round here: {', '.join(wrong)}" if wrong else ""


def _fusion(ours: Cells, published: Cells) -> Iterator[Line]:
    """Finding 2: many small messages lose what overlapping gains, merging gets it back."""
    for model in (_BASE, _LARGE):
        for name, over, under in (
            ("one message over WFBP", "BSP-A2A", "WFBP-A2A"),
            ("MG-WFBP over WFBP", "MG-WFBP", "WFBP-A2A"),
            ("MG-WFBP over one message", "MG-WFBP", "BSP-A2A"),
        ):
            told, found = (
                cells[model.title, RDMA, over, _MOST] / cells[model.title, RDMA, under, _MOST]
                for cells in (published, ours)
            )
            yield Line(section=f"All-reduce of the BERTs, RDMA, {_MOST} GPUs",
                       name=f"{model.title}: {name}", published=told, ours=found, unit="×",
                       kind="claim", at_least=1.0)  # fmt: skip


def _faster_network(ours: Cells, published: Cells) -> Iterator[Line]:
    """Finding 3: from 10 GbE to RDMA."""
    section = f"Gain of RDMA over 10 GbE, {_MOST} GPUs"
    told, found = (
        {
            model: [cells[model, RDMA, m, _MOST] / cells[model, TEN, m, _MOST] for m in METHODS]
            for model in (_RESNET.title, _LARGE.title)
        }
        for cells in (published, ours)
    )
    for model, gains in found.items():
        for method, gain, theirs in zip(METHODS, gains, told[model], strict=True):
            yield Line(section=section, name=f"{model}, {method}", published=theirs, ours=gain,
                       unit="×", series=model)  # fmt: skip
    yield Line(
        section=section,
        name="least gain of BERT-Large over the largest of ResNet-50",
        published=min(told[_LARGE.title]) / max(told[_RESNET.title]),
        ours=min(found[_LARGE.title]) / max(found[_RESNET.title]),
        unit="×",
        kind="claim",
        at_least=1.0,
    )


def _wall(ours: Cells, published: Cells) -> Iterator[Line]:
    """Finding 4: BERT-Large."""
    section = "BERT-Large with RDMA: throughput over that of as many GPUs alone"

    def efficiency(cells: Cells, method: str, n: int) -> float:
        return cells[_LARGE.title, RDMA, method, n] / n / _LARGE.alone

    for n in (WORKERS[0], _MOST):
        for method in METHODS:
            yield Line(
                section=section,
                name=f"{method}, {n} GPUs",
                published=efficiency(published, method, n),
                ours=efficiency(ours, method, n),
                kind=_kind(_LARGE.title, RDMA, method),
            )
    best = max(METHODS, key=lambda method: efficiency(ours, method, _MOST))
    yield Line(
        section=section,
        name=f"the best of the seven, {_MOST} GPUs",
        published=max(efficiency(published, method, _MOST) for method in METHODS),
        ours=efficiency(ours, best, _MOST),
        kind="claim",
        at_most=_WALL,
        note=f"{best} here; published, the servers' iterations with RDMA take longer than their "
        "slowest stage here, and their spread is up to 9 %",
    )


def _notes(c: Constants) -> tuple[str, ...]:
    return (
        f"Fitted, all on BERT-Large: {1e9 * c.host:.3f} ns a byte of copying, and "
        f"{c.bus / 1e9:.2f} GB/s of the bus inside a machine, from its BSP-A2A with RDMA; "
        f"{format_rate(c.tcp)} of 100 Gbit/s under TCP/IP, from its BSP-A2A there; messages that "
        f"pass a bus beside computing at {c.beside:.2f} of their speed, from its MG-WFBP with "
        f"RDMA; {1e6 * c.hand_over:.0f} µs that ByteScheduler adds to each start-up of an "
        f"all-reduce, from its row with RDMA. {len(FITTED_ROWS) * len(WORKERS)} cells count as "
        "fitted. Which constants there are was found with the whole table in view.",
        "Given: throughput of one GPU; start-ups of all-reduce as published for InfiniBand, taken "
        "for all three networks (the larger ones published for 10 GbE are tried beside); lines of "
        "10 and 100 Gbit/s as sold; four GPUs a machine, as many servers' machines as workers'; "
        "sizes of partitions and credits from the authors' scripts. BSP-PS sends one unparted "
        "message.",
        "Assumed: a third of computing is forward, backward is divided by operations as counted by "
        "thinwire's model tables; a server's line carries push and pull one after the other, as "
        "the published iterations on 10 GbE suggest; ByteScheduler-PS is WFBP-PS with priorities "
        "at the servers, and its workers wait for everything before the next forward pass.",
        "Published servers under TCP/IP are as fast as on 10 GbE for ResNet-50 and BERT-Large, "
        "BSP-PS and WFBP-PS from 8 GPUs on: probably their traffic still went that way. These 12 "
        "cells are predicted as what they are called, and count.",
    )
