"""The arithmetic of PowerSGD: a matrix as a product of two thin ones, by a step of power iteration.

It is no `Codec`, for its two factors are averaged over the workers one after the other, the second
computed from the first's average. A method does, for each matrix part M of its error-corrected
gradient, with all_reduce a mean::

    p = orthogonalise(all_reduce(left(m, q)))
    q = all_reduce(right(m, p))
    m_hat = product(p, q)        # what every worker applies; memory = m - m_hat

and sends the dense parts as they are. q is kept for the next step (warm start).

Reference: Vogels, Karimireddy, Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
Distributed Optimization", NeurIPS 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from thinwire.errors import InputError
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


def matrix_parts(shapes: Sequence[Sequence[int]], rank: int) -> list[MatrixPart]:
    """How the layers of a model travel.

    A convolution's kernel is flattened to (out, in · height · width). Vectors are dense, and so
    are matrices whose factors are not at least twice smaller; the rank is never above what the
    matrix can have.

    Args:
        shapes: of the layers, in the order of the flat vector.
        rank: >= 1.

    >>> [p.rank for p in matrix_parts([(64, 3, 7, 7), (64,), (10, 4)], rank=4)]
    [4, 0, 0]
    """
    if rank < 1:
        raise InputError(f"rank = {rank!r}; it must be >= 1")
    parts, start = [], 0
    for shape in shapes:
        numel = torch.Size(shape).numel()
        rows = shape[0] if len(shape) > 1 and numel else 1
        cols = numel // rows
        used = min(rank, rows, cols)
        worth = len(shape) > 1 and MIN_RATIO * used * (rows + cols) <= numel and used > 0
        parts.append(MatrixPart(start=start, rows=rows, cols=cols, rank=used if worth else 0))
        start += numel
    return parts


def first_right(part: MatrixPart, seed: int) -> torch.Tensor:
    """The first q of a part: normal numbers, the same on all ranks with the same seed.

    Returns:
        (cols, rank), float32.
    """
    generator = generator_for(seed, "powersgd", part.start)
    return torch.randn(part.cols, part.rank, generator=generator)


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


def product(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """p qᵀ: (rows, cols)."""
    return p @ q.t()


def orthogonalise(p: torch.Tensor) -> torch.Tensor:
    """Orthonormal columns that span those of p, and more where p lacks rank.

    By Householder reflections: unlike Gram-Schmidt they give orthonormal columns whatever p is, so
    that a zero gradient does not end the warm start. Equal bits in give equal bits out on equal
    machines; ranks of different processors must agree on one result, or replicas drift apart.

    Args:
        p: (rows, rank), rank <= rows, finite; left alone.
    """
    if p.is_meta:
        return torch.empty_like(p)
    return torch.linalg.qr(p.double()).Q.to(p.dtype)
