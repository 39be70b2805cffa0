"""Synchronous SGD: plain data parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from thinwire.collectives import traffic
from thinwire.errors import InputError
from thinwire.methods.base import Method, Paper, Traits
from thinwire.worker import Worker

__all__ = ["SSGD"]


@dataclass(frozen=True, kw_only=True)
class SSGD(Method):
    """Every step, the gradients of all workers are averaged by an all-reduce.

    Exact: the same as one process with the union of the batches. Traffic per worker and step:
    2·m·(P−1)/P values; with accumulation that much every `accumulate` steps. No staleness, no
    memory beyond the gradient (one more vector with accumulation). Waits for the slowest worker.

    Update rule: `x ← x − lr · Σ_r w_r · g_r(x)`, w_r the worker's share of the global batch.

    Args:
        accumulate: steps whose gradients are summed before they are exchanged, at least 1; the
            last exchange takes what is left.

    Example:
        >>> SSGD(accumulate=8).accumulate
        8
    """

    accumulate: int = 1

    paper: ClassVar[Paper | None] = Paper(
        authors="Chen, Pan, Monga, Bengio and Jozefowicz",
        title="Revisiting Distributed Synchronous SGD",
        venue="arXiv:1604.00981",
        year=2016,
        url="https://arxiv.org/abs/1604.00981",
    )
    traits: ClassVar[Traits] = Traits(
        traffic="8·m·(P−1)/P, every `accumulate` steps",
        staleness="0",
        synchronous=True,
        agree=True,
        resumable=True,
    )

    def __post_init__(self) -> None:
        if self.accumulate < 1:
            raise InputError(f"accumulate = {self.accumulate}: at least 1 is needed")

    def sent_bytes(self, numel: int, size: int, steps: int) -> Sequence[int]:
        """See `Method`."""
        rounds = -(-steps // self.accumulate)
        return [rounds * n for n in traffic.all_reduce(size, numel)]

    def worker(self, w: Worker) -> None:
        """See `Method`."""
        if self.accumulate == 1:  # nothing to add up here, so no copies
            for batch in w.batches():
                w.apply(_mean_of_one(w, w.gradient(batch), batch.weight))
            return
        total = w.remember("total", torch.zeros_like(w.params))
        pending = w.steps % self.accumulate
        for batch in w.batches():
            gradient = w.gradient(batch)
            with w.phase("encode"):
                if pending:
                    total.add_(gradient, alpha=batch.weight)
                else:
                    torch.mul(gradient, batch.weight, out=total)
            pending += 1
            if pending == self.accumulate:
                w.apply(_mean(w, total, pending))
                pending = 0
        if pending:
            w.apply(_mean(w, total, pending))


def _mean_of_one(w: Worker, gradient: torch.Tensor, weight: float) -> torch.Tensor:
    """Over the workers, in the place of the gradient."""
    if w.size == 1:
        return gradient
    with w.phase("encode"):
        gradient.mul_(weight)
    return w.all_reduce_(gradient)


def _mean(w: Worker, total: torch.Tensor, steps: int) -> torch.Tensor:
    """Over the workers and over the steps in the total, which it replaces."""
    mean = w.all_reduce_(total)
    return mean if steps == 1 else mean.div_(steps)
