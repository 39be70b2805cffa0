"""What all-reduces do with numbers: by numpy on small CPU tensors, by torch on all others.

A call of torch costs a microsecond or two, which is more than the work on a few thousand numbers;
numpy's cost a fraction. Both round alike, so ranks need not choose alike. Of a `Ghost` nothing
travels but its size.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias, cast, overload

import numpy as np
import torch

from thinwire.collectives._moves import opened, take
from thinwire.collectives._schedule import dealt
from thinwire.wire.base import Comm, Tag
from thinwire.wire.packet import Packet, header_nbytes

__all__ = [
    "Ghost",
    "Vector",
    "add",
    "add_to",
    "copy",
    "fill",
    "packet",
    "receive",
    "split",
    "unpacked",
    "vector",
]


class Ghost:
    """A vector of a size and nothing else."""

    __slots__ = ("itemsize", "numel")

    def __init__(self, numel: int, itemsize: int):
        self.numel = numel
        self.itemsize = itemsize

    def __len__(self) -> int:
        return self.numel

    def __getitem__(self, part: slice) -> Ghost:
        return Ghost(part.stop - part.start, self.itemsize)


class SizePacket(Packet, frozen=True, eq=False):
    """A dense packet of one buffer that is not there."""

    @property
    def payload_nbytes(self) -> int:
        """As `Packet.payload_nbytes`."""
        return self.nbytes - header_nbytes(1)


Vector: TypeAlias = torch.Tensor | np.ndarray | Ghost

SMALL = 32 * 1024
"""Elements; above, torch adds with several threads."""

_DTYPES = {
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
    np.dtype(np.uint8): torch.uint8,
    np.dtype(np.int8): torch.int8,
    np.dtype(np.int16): torch.int16,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
}
_PLAIN = frozenset(_DTYPES.values())


def vector(flat: torch.Tensor) -> Vector:
    """The same memory, as what is faster to compute with.

    Args:
        flat: 1-D, detached.
    """
    if flat.is_cpu and flat.dtype in _PLAIN and flat.numel() <= SMALL:
        return flat.numpy()
    return flat


@overload
def copy(x: torch.Tensor) -> torch.Tensor: ...
@overload
def copy(x: Vector) -> Vector: ...
def copy(x: Vector) -> Vector:
    """A private copy; a meta tensor is its own."""
    if isinstance(x, np.ndarray):
        return x.copy()
    return x if isinstance(x, Ghost) or x.is_meta else x.clone()


def add(a: Vector, b: Vector) -> Vector:
    """Out of place on purpose: `a` may be in flight, and `b` belongs to the wire."""
    if isinstance(a, np.ndarray):
        return a + cast(np.ndarray, b)
    return a if isinstance(a, Ghost) or a.is_meta else torch.add(a, cast(torch.Tensor, b))


def add_to(total: Vector, b: Vector) -> Vector:
    """As `add`, into the first, which must be a fresh sum of the caller's own."""
    if isinstance(total, np.ndarray):
        return np.add(total, cast(np.ndarray, b), out=total)
    return total if isinstance(total, Ghost) or total.is_meta else total.add_(cast(torch.Tensor, b))


def fill(into: Vector, value: Vector) -> None:
    """Write `value` into it."""
    if isinstance(into, np.ndarray):
        into[:] = value
    elif not isinstance(into, Ghost) and not into.is_meta:
        into.copy_(cast(torch.Tensor, value))


def split(x: Vector, parts: int) -> list[Vector]:
    """Runs of it; the first `len(x) % parts` have one element more."""
    if isinstance(x, np.ndarray):
        return list(np.array_split(x, parts))
    if isinstance(x, Ghost):
        return [Ghost(n, x.itemsize) for n in dealt(len(x), parts)]
    return list(x.tensor_split(parts))


def packet(x: Vector) -> Packet:
    """A dense packet of this very memory."""
    if isinstance(x, Ghost):
        return _of_size(x.numel, x.itemsize)
    return Packet((torch.from_numpy(x) if isinstance(x, np.ndarray) else x,), "dense")


@lru_cache(maxsize=1024)
def _of_size(numel: int, itemsize: int) -> Packet:
    return SizePacket((), "dense", _nbytes=header_nbytes(1) + numel * itemsize)


@overload
def receive(comm: Comm, src: int, tag: Tag, like: torch.Tensor, numel: int) -> torch.Tensor: ...
@overload
def receive(comm: Comm, src: int, tag: Tag, like: Vector, numel: int) -> Vector: ...
def receive(comm: Comm, src: int, tag: Tag, like: Vector, numel: int) -> Vector:
    """Wait for `numel` elements with the dtype of `like`; they must not be written."""
    return unpacked(comm, src, tag, take(comm, src, tag), like, numel)


def unpacked(comm: Comm, src: int, tag: Tag, came: Packet, like: Vector, numel: int) -> Vector:
    """The one vector of a packet from `src`; it must not be written.

    Raises:
        InputError: as `opened`.
    """
    if isinstance(like, Ghost):
        return Ghost(numel, like.itemsize)
    if isinstance(like, np.ndarray):
        return opened(comm, src, tag, came, _DTYPES[like.dtype], numel).cpu().numpy()
    x = opened(comm, src, tag, came, like.dtype, numel)
    return x if x.device == like.device else x.to(like.device)
