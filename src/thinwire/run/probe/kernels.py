"""How fast this machine does the memory-bound work that methods are charged for.

Each kind is timed on vectors of the model's size, by the kernels that the methods call, and set
against the bytes that the cost model counts for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from thinwire.collectives.sparse import Sparse, merge, top
from thinwire.compress import (
    accumulate_and_select,
    add_sets,
    num_kept,
    prepare,
    qsgd,
    select_top,
)
from thinwire.compress.cost import (
    code_work,
    dequantise_work,
    factor_work,
    merge_work,
    momentum_work,
    quantise_work,
    scan_work,
    scatter_work,
    selection_work,
)
from thinwire.compress.fused import accumulate_above
from thinwire.compress.indices import decode_indices, encode_indices
from thinwire.compress.powersgd import left, orthogonalise, product, right
from thinwire.run.probe.report import Kernel
from thinwire.run.probe.stats import spread_of
from thinwire.seeds import generator_for
from thinwire.wire.base import Work

__all__ = ["DENSITY", "measure_kernels", "measure_memory"]

DENSITY = 0.001
"""Share of entries that are selected, and of those merged, coded and scattered where that is enough
of them (`_LEAST_ENTRIES`)."""

_LEAST_ENTRIES = 1 << 14
"""Of a set that is merged, coded or scattered, where the vector allows: with fewer, what a call
costs would be taken for the price of an entry, and multiplied for larger models."""

_LARGE = 16 << 20
_MOST_ELEMENTS = 32 << 20
"""Of a vector: far beyond the caches a rate no longer depends on it."""
_FLOAT = 4
_LEAST = 3
_MOST = 200
_BLOCK = 0.025
"""Seconds of computing: several of a scheduler's turns."""
_RANK = 4


@dataclass(frozen=True)
class _Trial:
    """A call to be timed, the work that it is charged as, and what comes before it, untimed."""

    work: Work
    call: Callable[[], Any]
    before: Callable[[], Any] = lambda: None


def measure_memory(seconds: float) -> Kernel:
    """Adding one vector to another, 64 MB each: read two, write one."""
    a, b = torch.zeros(_LARGE), torch.ones(_LARGE)
    return _timed(_Trial(Work(memory_bytes=3.0 * _FLOAT * _LARGE), lambda: a.add_(b)), seconds)


def measure_kernels(num_params: int, seconds: float) -> dict[str, Kernel]:
    """Every kind of work but the optimizer's step.

    Args:
        num_params: elements of the model's flat vector, 1 or more; of larger ones than 32 Mi a
            part is taken.
        seconds: for all of them together, about; each takes three blocks at least.
    """
    trials = _trials(min(num_params, _MOST_ELEMENTS))
    share = seconds / len(trials)
    return {kind: _timed(trial, share) for kind, trial in trials.items()}


def _trials(numel: int) -> dict[str, _Trial]:
    k = num_kept(DENSITY, numel)
    entries = max(k, min(numel // 16, _LEAST_ENTRIES))
    grad = torch.randn(numel, generator=generator_for(0, "gradient"))
    start = torch.randn(numel, generator=generator_for(0, "memory")).mul_(0.5)
    memory = start.clone()
    prepare(memory)
    one, other = select_top(grad, entries), select_top(start, entries)
    threshold = float(select_top(grad, k).value.abs().min())
    codec = qsgd(bits=4)
    state = codec.init(grad)
    packet = codec.encode(grad, state)

    def select() -> Sparse:
        return accumulate_and_select(memory, grad, 0.25, k)

    def scan() -> Sparse:
        return accumulate_above(memory, grad, 0.25, threshold, 2 * k)

    def code() -> torch.Tensor:
        return decode_indices(encode_indices(one.index, numel), numel)

    again = lambda: memory.copy_(start)  # noqa: E731  selection empties the memory
    return {
        "select": _Trial(selection_work(numel), select, again),
        "scan": _Trial(scan_work(numel), scan, again),
        # Two sets: the cost model counts both.
        "merge": _Trial(merge_work(2 * entries), lambda: top(merge(one, other), entries)),
        "code": _Trial(Work(memory_bytes=2 * code_work(entries).memory_bytes), code),
        "scatter": _Trial(scatter_work(entries), lambda: add_sets([one], memory)),
        "momentum": _Trial(momentum_work(numel), lambda: memory.mul_(0.9).add_(grad)),
        "quantise": _Trial(quantise_work(numel), lambda: codec.encode(grad, state)),
        "dequantise": _Trial(dequantise_work(numel), lambda: memory.add_(codec.decode(packet))),
        "factor": _factor(grad, start.clone()),
    }


def _factor(grad: torch.Tensor, memory: torch.Tensor) -> _Trial:
    """One square matrix of about that many elements."""
    side = max(1, int(grad.numel() ** 0.5))
    rank, numel = min(_RANK, side), side * side
    m, g = memory[:numel].view(side, side), grad[:numel].view(side, side)
    q = torch.randn(side, rank, generator=generator_for(0, "factor"))
    out = torch.empty_like(m)

    def step() -> None:
        m.add_(g, alpha=0.25)
        p = orthogonalise(left(m, q))
        new = right(m, p)
        m.addmm_(p, new.t(), alpha=-1)
        product(p, new, out=out)

    return _Trial(factor_work(numel, rank), step, lambda: m.copy_(g))


def _timed(trial: _Trial, seconds: float) -> Kernel:
    """Seconds of a call, of blocks of calls.

    Where processes share cores, one call is mostly over before the other has its turn: a median of
    single calls would be that of an empty machine. A block has seen several turns.
    """
    trial.before()
    trial.call()  # compiles, and touches the memory
    means: list[float] = []
    until = time.perf_counter() + seconds
    while len(means) < _MOST and (len(means) < _LEAST or time.perf_counter() < until):
        spent, calls = 0.0, 0
        while spent < _BLOCK:
            trial.before()
            began = time.perf_counter()
            trial.call()
            spent += time.perf_counter() - began
            calls += 1
        means.append(spent / calls)
    return Kernel(nbytes=trial.work.memory_bytes, seconds=spread_of(means))
