"""PowerSGD: the gradient of each matrix as a product of two thin ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from thinwire.compress.cost import factor_work
from thinwire.compress.powersgd import (
    first_right,
    left,
    matrix_parts,
    orthogonalise,
    product,
    right,
)
from thinwire.methods.base import Method, Paper, Traits
from thinwire.worker import Worker

__all__ = ["PowerSGD"]


@dataclass(frozen=True, kw_only=True)
class PowerSGD(Method):
    """Two small all-reduces carry the factors of every layer's best approximation of that rank.

    Traffic per worker and step: rank·(rows + columns) values a matrix, all vectors and small
    matrices whole, by all-reduce, so that it does not grow with the number of workers. No
    staleness; one more vector of error memory, and the right factors, kept as the next start.

    Update rule, for each layer as a matrix, kernels flattened to (out, in · height · width):
    `M_r = E_r + w_r·G_r`; `P = orthonormal(Σ_r M_r·Q)`; `Q_r = M_rᵀ·P`; `E_r = M_r − P·Q_rᵀ`;
    `Q = Σ_r Q_r`; `x ← x − lr · P·Qᵀ`.

    Departures from the paper: each worker remembers what its own share of the sum lacks, where the
    authors' code subtracts the average of all (the memories' sum, and with it all results, are the
    same). Whole layers travel with the left factors. Gram-Schmidt is done twice, in float64 and in
    an order that gives the same bits on unlike processors.

    Args:
        rank: columns of the factors, at least 1; of a matrix never more than it has rows or
            columns.
        dense_below: layers of fewer elements are sent whole, as are vectors, and matrices whose
            factors are not at least twice smaller; 0 for no such limit.

    Example:
        >>> PowerSGD(rank=2).dense_below
        0
    """

    rank: int = 4
    dense_below: int = 0

    paper: ClassVar[Paper | None] = Paper(
        authors="Vogels, Karimireddy and Jaggi",
        title="PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization",
        venue="NeurIPS",
        year=2019,
        url="https://arxiv.org/abs/1905.13727",
    )
    traits: ClassVar[Traits] = Traits(
        traffic="8·(P−1)/P · (Σ rank·(rows + columns) + what is sent whole)",
        staleness="0; what the rank lacks waits",
        synchronous=True,
        agree=True,
    )

    def __post_init__(self) -> None:
        matrix_parts((), self.rank, self.dense_below)

    def worker(self, w: Worker) -> None:
        """See `Method`."""
        parts = matrix_parts([layer.shape for layer in w.layers], self.rank, self.dense_below)
        low = [part for part in parts if part.rank]
        whole = [part for part in parts if not part.rank]
        rights = [first_right(part, w.plan.seed).to(w.params) for part in low]
        work = factor_work(sum(part.numel for part in low), self.rank)
        memory = w.state.memory = torch.zeros_like(w.params)
        for batch in w.batches():
            gradient = w.gradient(batch)
            with w.phase("encode"):
                memory.add_(gradient, alpha=batch.weight)
                lefts = [left(part.of(memory), q) for part, q in zip(low, rights, strict=True)]
                summed = _all_reduce(w, [*lefts, *(part.of(memory) for part in whole)])
                lefts = [orthogonalise(p) for p in summed[: len(low)]]
                rights = [right(part.of(memory), p) for part, p in zip(low, lefts, strict=True)]
                for part, p, q in zip(low, lefts, rights, strict=True):
                    part.of(memory).addmm_(p, q.t(), alpha=-1)
                rights = _all_reduce(w, rights)
                w.comm.spend(work)
            with w.phase("merge"):
                direction = gradient  # the memory has what was in it
                for part, p, q in zip(low, lefts, rights, strict=True):
                    product(p, q, out=part.of(direction))
                for part, total in zip(whole, summed[len(low) :], strict=True):
                    part.of(direction).copy_(total)
                    part.of(memory).zero_()
            w.apply(direction)


def _all_reduce(w: Worker, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The sums over the workers, in one exchange."""
    if not tensors:
        return []
    flat = w.all_reduce(torch.cat([x.reshape(-1) for x in tensors]))
    pieces = flat.split([x.numel() for x in tensors])
    return [piece.view(x.shape) for piece, x in zip(pieces, tensors, strict=True)]
