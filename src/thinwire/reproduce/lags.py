"""LAGS: iterations with 16 workers on 1 Gbit/s, the bound of pipelining, the rule for densities."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from thinwire.methods import LAGS, Paper
from thinwire.models import published_table
from thinwire.reproduce._lags_published import (
    GATHER_TEN,
    MODELS,
    REDUCE_TEN,
    RING,
    SELECT,
    WORKERS,
    Model,
)
from thinwire.reproduce.base import result_of
from thinwire.reproduce.line import Line, Result
from thinwire.schedule import (
    Cost,
    Load,
    kept_of,
    layer_ratios,
    load_of,
    next_budgets,
    ring,
    simulate,
    sizes,
    sparse_merged,
    sparsified,
    whole,
)
from thinwire.units import format_rate, format_time

__all__ = ["LAGSPaper"]

_FITTED = next(model for model in MODELS if model.title == "ResNet-50")
_NEAR = 0.1  # of an iteration
_ENTRY = 8
_HALVINGS = 30


@dataclass(frozen=True)
class LAGSPaper:
    """The authors' cost model and constants, and three of ours, fitted on ResNet-50.

    Example:
        >>> LAGSPaper().name
        'lags'
    """

    name: ClassVar[str] = "lags"
    title: ClassVar[str] = "LAGS-SGD: 16 machines, 1 Gbit/s Ethernet, four models"
    paper: ClassVar[Paper] = LAGS.paper  # pyright: ignore[reportAssignmentType] - it has one

    def run(self) -> Result:
        """See `Reproduction`."""
        constants = fit()
        lines = (
            *_selecting(),
            *_iterations(constants),
            *_gains(constants),
            *_bounds(),
            *_rule(),
        )
        return result_of(self, lines, _notes(constants))


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What was fitted on ResNet-50's iterations.

    Args:
        host: seconds for each parameter that a sparse exchange costs beside the gathers, by SLGS.
        beside: speed of an exchange while the device computes, over that alone, by LAGS.
        dense: seconds a byte of a dense exchange, by the dense iteration.
    """

    host: float
    beside: float
    dense: float


def select(numel: int) -> float:
    """Seconds of choosing from so many elements: s·n·log2 n."""
    return SELECT * numel * math.log2(numel) if numel > 1 else 0.0


def sparse_iteration(model: Model, by_layer: bool, host: float, beside: float) -> float:
    """Seconds of an iteration: entries of the whole model in one message, or tensors merged by the
    authors' rule (OMGS) and sent during backward."""
    load, numel = _load(model)
    cost = _exchange(model, host, beside)
    groups = whole(load.order)
    if by_layer:
        groups = sparse_merged(
            load.order, load.ready, numel, model.density, select, lambda k: cost(_ENTRY * k)
        )
    kept = [max(1, int(model.density * n)) for n in sizes(groups, numel)]
    slower, plan = sparsified(load, groups, kept, select)
    return simulate(slower, plan, [cost]).step


def dense_iteration(model: Model, per_byte: float) -> float:
    """Seconds of an iteration with one dense message after backward."""
    load, _ = _load(model)
    return load.computing + per_byte * sum(load.nbytes)


def fit() -> Constants:
    """The constants, each from one published iteration of ResNet-50."""
    load, numel = _load(_FITTED)
    assert _FITTED.dense is not None
    host = (_FITTED.whole - sparse_iteration(_FITTED, False, 0.0, 1.0)) / sum(numel)
    slow, fast = 0.05, 1.0
    for _ in range(_HALVINGS):
        middle = (slow + fast) / 2
        late = sparse_iteration(_FITTED, True, host, middle) > _FITTED.layers
        slow, fast = (middle, fast) if late else (slow, middle)
    dense = (_FITTED.dense - load.computing) / sum(load.nbytes)
    return Constants(host=host, beside=(slow + fast) / 2, dense=dense)


@cache
def _load(model: Model) -> tuple[Load, tuple[int, ...]]:
    load = load_of(published_table(model.table), model.forward, model.backward)
    return load, tuple(size // 4 for size in load.nbytes)


def _exchange(model: Model, host: float, beside: float) -> Cost:
    """Two all-gathers, of values and of indices, 4 bytes an entry each; the host's work for an
    entry is that for the parameters it was chosen from."""
    startup, per_byte = model.gather
    for_entry = 2 * per_byte * 4 * WORKERS + host / model.density
    return Cost(startup=2 * startup, per_byte=for_entry / _ENTRY, beside=beside)


def _selecting() -> Iterator[Line]:
    for model in MODELS:
        _, numel = _load(model)
        yield Line(section="Choosing from the whole gradient: s·n·log2 n", name=model.title,
                   published=model.select, ours=select(sum(numel)), unit="s", tolerance=0.002,
                   series="choosing")  # fmt: skip


def _iterations(c: Constants) -> Iterator[Line]:
    section = f"Iteration with {WORKERS} workers"
    for model in MODELS:
        fitted = model is _FITTED
        times = {
            "top-k of all (SLGS)": (model.whole, sparse_iteration(model, False, c.host, c.beside)),
            "LAGS": (model.layers, sparse_iteration(model, True, c.host, c.beside)),
        }
        if model.dense is not None:
            times["dense"] = model.dense, dense_iteration(model, c.dense)
        for name, (published, ours) in times.items():
            yield Line(
                section=section,
                name=f"{model.title}, {name}",
                published=published,
                ours=ours,
                unit="s",
                kind="fitted" if fitted else "predicted",
                tolerance=None if fitted else _NEAR,
                series=name,
                note=_why_far(model, name, ours / published, c),
            )


def _why_far(model: Model, name: str, ratio: float, c: Constants) -> str:
    if model is _FITTED or abs(ratio - 1) <= _NEAR:
        return ""
    if name == "dense":
        assert model.dense is not None
        load, _ = _load(model)
        needed = (model.dense - load.computing) / sum(load.nbytes)
        return (
            f"its published iteration needs {_ring_rate(needed)} on a ring's line, ResNet-50's "
            f"{_ring_rate(c.dense)}: no one rate gives both"
        )
    wire = _exchange(model, 0.0, 1.0)(_ENTRY * int(model.density * sum(_load(model)[1])))
    return (
        f"all that its published top-k leaves for exchange is {format_time(model.exchange)}, and "
        f"the published cost of its gathers alone is {format_time(wire)}"
    )


def _ring_rate(per_byte: float) -> str:
    return format_rate(2 * (WORKERS - 1) / WORKERS / per_byte)


def _gains(c: Constants) -> Iterator[Line]:
    for model in MODELS:
        ours = sparse_iteration(model, True, c.host, c.beside)
        for name, published, other in (
            ("dense", model.over_dense, dense_iteration(model, c.dense)),
            ("SLGS", model.over_whole, sparse_iteration(model, False, c.host, c.beside)),
        ):
            if published is not None:
                yield Line(section="Gain of LAGS", name=f"{model.title}, over {name}",
                           published=published, ours=other / ours, unit="×",
                           kind="fitted" if model is _FITTED else "beside",
                           series=f"over {name}")  # fmt: skip


def _bounds() -> Iterator[Line]:
    """(forward + backward + c) / (forward + max(backward, c)), for two values of c."""
    section = "Most that pipelining can gain, S_max"
    for model in MODELS:
        if model.bound is None:
            continue
        yield Line(section=section, name=f"{model.title}, choosing taken for exchange",
                   published=model.bound, ours=_bound(model, model.select), unit="×",
                   kind="claim", tolerance=0.01, series="choosing")  # fmt: skip
        ours = _bound(model, model.exchange)
        over = model.over_whole is not None and model.over_whole > ours
        yield Line(section=section, name=f"{model.title}, exchange", published=model.over_whole,
                   ours=ours, unit="×", kind="beside",
                   note=_ABOVE if over else "published: the gain over SLGS")  # fmt: skip


_ABOVE = "published: the gain over SLGS, which is above what the formula allows"


def _bound(model: Model, exchange: float) -> float:
    shorter = min(model.backward, exchange)
    ratio = exchange / model.backward
    return 1 + 1 / (model.forward / shorter + max(ratio, 1 / ratio))


def _rule() -> Iterator[Line]:
    """Densities by the ratio of communication to computation."""
    for title, gather, reduce in (
        ("1 Gbit/s", None, ring(WORKERS, *RING)),
        ("10 GbE", GATHER_TEN, Cost(startup=REDUCE_TEN[0], per_byte=REDUCE_TEN[1])),
    ):
        for model in MODELS:
            load, numel = _load(model)
            exchange = _seconds(gather or model.gather, reduce)
            budget = next_budgets(load.ready)
            limit = 1 / model.density
            ratios = layer_ratios(numel, budget, exchange, select, limit)
            hidden = [exchange(n, 1.0) <= left for n, left in zip(numel, budget, strict=True)]
            right = [(c == 1.0) == hides for c, hides in zip(ratios, hidden, strict=True)]
            kept = sum(kept_of(n, c) for n, c in zip(numel, ratios, strict=True))
            yield Line(
                section="Rule for densities: tensors sent whole where that hides, and only there",
                name=f"{model.title}, {title}",
                ours=sum(right) / len(right),
                kind="claim",
                at_least=1.0,
                note=f"{sum(hidden)} of {len(hidden)} tensors whole, "
                f"{100 * kept / sum(numel):.2g} % of the entries sent",
            )


def _seconds(gather: tuple[float, float], reduce: Cost) -> Callable[[int, float], float]:
    """Of exchanging a tensor: two gathers of its kept entries, or one dense all-reduce."""

    def seconds(numel: int, ratio: float) -> float:
        if ratio == 1.0:
            return reduce(4 * numel)
        return 2 * (gather[0] + gather[1] * 4 * WORKERS * kept_of(numel, ratio))

    return seconds


def _notes(c: Constants) -> tuple[str, ...]:
    return (
        f"Fitted, all on ResNet-50: {1e9 * c.host:.2f} ns for each parameter that a sparse "
        f"exchange costs beside its gathers, by its SLGS; {c.beside:.2f} of an exchange's speed "
        f"while the device computes, by its LAGS; {1e9 * c.dense:.2f} ns a byte of a dense "
        "exchange, by its dense iteration. Which constants there are was found with the table in "
        "view.",
        "Given, as published: times of forward and backward, the costs of choosing and gathering, "
        "densities. For 16 workers the scripts have two start-ups of a gather, 11 ms and later "
        "1.7 ms for ImageNet's models; each model has its own.",
        "Assumed: backward is divided by operations, as counted by thinwire's model tables. LAGS "
        "merges tensors by OMGS-SGD's rule, as in the authors' runs, with one density for all; "
        "the rule for densities is checked for itself.",
        f"ResNet-50's published dense iteration, {_FITTED.dense} s, would need "
        f"{_ring_rate(c.dense)} on the lines of a ring without overlap: more than 1 Gbit/s.",
        "The printed S_max comes out when the formula is given the time of choosing in place of "
        "that of exchange; both are shown.",
    )
