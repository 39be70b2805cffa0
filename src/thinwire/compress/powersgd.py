"""The arithmetic of PowerSGD: a matrix as a product of two thin ones, by a step of power iteration.

It is no `Codec`, for its two factors are summed over the workers one after the other, the second
computed from the first's sum. The method `powersgd` does, for each matrix part m of its
error-corrected gradient::

    p = orthogonalise(all_reduce(left(m, q)))
    q = right(m, p)              # memory = m - product(p, q), what this worker's share lacks
    q = all_reduce(q)
    m_hat = product(p, q)        # what every worker applies

and sends the dense parts as they are. q is kept for the next step (warm start).

Reference: Vogels, Karimireddy, Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
Distributed Optimization", NeurIPS 2019.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from thinwire.compress.topk import BLOCK
from thinwire.errors import InputError, NonFiniteError
from thinwire.seeds import generator_for

__all__ = [
    "MatrixPart",
    "first_right",
    "left",
    "matrix_parts",
    "orthogonalise",
    "product",
    "right",
]

MIN_RATIO = 2
"""How many times smaller the two factors must be than their matrix to be worth sending instead."""

_STEPS = 1 << 23
"""Different numbers that a first q is drawn from on either side of zero."""

DEPENDENT = 1e-9
"""Norm below which what is left of a column scaled to 1 is rounding: it depends on the others."""


@dataclass(frozen=True, kw_only=True)
class MatrixPart:
    """A layer's place in the flat vector, and how it travels.

    Args:
        start: its first element.
        rows: of the layer as a matrix, its first dimension; 1 where it is dense.
        cols: of the matrix, all other dimensions together.
        rank: columns of the factors; 0 where the layer is sent as it is.
    """

    start: int
    rows: int
    cols: int
    rank: int

    @property
    def numel(self) -> int:
        """Elements of the layer."""
        return self.rows * self.cols

    @property
    def sent(self) -> int:
        """Elements that a worker puts into the all-reduces."""
        return self.rank * (self.rows + self.cols) if self.rank else self.numel

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """This part of a contiguous flat vector as a matrix; a view."""
        return flat[self.start : self.start + self.numel].view(self.rows, self.cols)


def matrix_parts(
    shapes: Sequence[Sequence[int]], rank: int, dense_below: int = 0
) -> list[MatrixPart]:
    """How the layers of a model travel.

    A convolution's kernel is flattened to (out, in · height · width). Vectors are dense, and so
    are matrices whose factors are not at least twice smaller; the rank is never above what the
    matrix can have.

    Args:
        shapes: of the layers, in the order of the flat vector.
        rank: >= 1.
        dense_below: layers of fewer elements travel as they are; 0 for none.

    >>> [p.rank for p in matrix_parts([(64, 3, 7, 7), (64,), (10, 4)], rank=4)]
    [4, 0, 0]
    """
    if rank < 1:
        raise InputError(f"rank = {rank!r}; it must be >= 1")
    if dense_below < 0:
        raise InputError(f"dense_below = {dense_below!r}; it must be >= 0")
    parts, start = [], 0
    for shape in shapes:
        numel = torch.Size(shape).numel()
        rows = shape[0] if len(shape) > 1 and numel else 1
        cols = numel // rows
        used = min(rank, rows, cols)
        worth = len(shape) > 1 and MIN_RATIO * used * (rows + cols) <= numel and used > 0
        worth = worth and numel >= dense_below
        parts.append(MatrixPart(start=start, rows=rows, cols=cols, rank=used if worth else 0))
        start += numel
    return parts


def first_right(part: MatrixPart, seed: int) -> torch.Tensor:
    """The first q of a part: numbers between -1 and 1, the same on all ranks with the same seed.

    Made from whole numbers: torch draws normal ones differently on different processors.

    Returns:
        (cols, rank), float32.
    """
    generator = generator_for(seed, "powersgd", part.start)
    return torch.randint(-_STEPS, _STEPS, (part.cols, part.rank), generator=generator) / _STEPS


def left(m: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """p = M q.

    Args:
        m: (rows, cols).
        q: (cols, rank).
    """
    return m @ q


def right(m: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """q = Mᵀ p.

    Args:
        m: (rows, cols).
        p: (rows, rank), with orthonormal columns.
    """
    return m.t() @ p


def product(p: torch.Tensor, q: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """p qᵀ: (rows, cols), the same bits on any processor for the same factors.

    Column after column, each a product and a sum by themselves: a library's matrix product orders
    and fuses its additions as the processor suits it, and replicas would drift apart.

    Args:
        p: (rows, rank).
        q: (cols, rank).
        out: where to, (rows, cols); by default a new tensor.
    """
    rows, cols = p.shape[0], q.shape[0]
    out = p.new_empty(rows, cols) if out is None else out
    if out.is_meta:
        return out
    q_t = q.t().contiguous()
    step = max(1, BLOCK // max(1, cols))
    for start in range(0, rows, step):  # which stay in a core's cache
        block, part = out[start : start + step], p[start : start + step]
        torch.mul(part[:, :1], q_t[0], out=block)
        for i in range(1, p.shape[1]):
            block.add_(part[:, i : i + 1] * q_t[i])
    return out


def orthogonalise(p: torch.Tensor) -> torch.Tensor:
    """Orthonormal columns that span those of p, and more where p lacks rank: a zero gradient does
    not end the warm start. The same bits on any processor, for all ranks must agree on the result.

    By Gram-Schmidt in float64, twice for each column, with sums in a fixed order. torch's QR has a
    library's order of additions, which differs between processors.

    Args:
        p: (rows, rank), rank <= rows, finite; left alone.

    Raises:
        NonFiniteError: an element is NaN or infinite, as the matrices that p comes from are.
    """
    if p.is_meta:
        return torch.empty_like(p)
    columns = np.ascontiguousarray(p.detach().t().to("cpu", torch.float64).numpy())
    if not np.isfinite(columns).all():
        raise NonFiniteError(
            "a factor of the summed gradients is NaN or infinite; lower the learning rate or clip "
            "the gradient"
        )
    done = np.empty_like(columns)
    for i, column in enumerate(columns):
        peak = np.abs(column).max(initial=0.0)
        rest = _apart(done[:i], column / peak) if peak else column
        if _norm(rest) <= DEPENDENT:
            rest = _apart(done[:i], _other(done[:i], column.size))
        done[i] = rest / _norm(rest)
    return torch.from_numpy(np.ascontiguousarray(done.T)).to(p)


def _apart(done: np.ndarray, column: np.ndarray) -> np.ndarray:
    """What a column has beside the orthonormal ones; the second time takes what rounding left."""
    for _ in range(2):
        for other in done:
            column = column - _sum(other * column) * other
    return column


def _other(done: np.ndarray, size: int) -> np.ndarray:
    """The unit vector that the orthonormal ones cover least, the first of equals."""
    covered = np.zeros(size)
    for column in done:
        covered += column * column
    unit = np.zeros(size)
    unit[int(np.argmin(covered))] = 1.0
    return unit


def _norm(x: np.ndarray) -> float:
    return math.sqrt(_sum(x * x))


def _sum(x: np.ndarray) -> float:
    """By halves, element by element: nothing is left for a library or a processor to order."""
    while x.size > 1:
        half = (x.size + 1) // 2
        low = x[:half].copy()
        low[: x.size - half] += x[half:]
        x = low
    return float(x[0])
