"""Entries whose indices travel near their entropy, for every collective that carries sparse sets.

A packet says itself whether its indices are coded: a code is uint8, indices as they are have the
dtype of indices. So each set takes the smaller of the two by measured size, and nothing has to be
agreed about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch

from thinwire.collectives.sparse import Form, Plain, Sparse, index_dtype, merge
from thinwire.compress._native import kernels
from thinwire.compress.cost import code_work
from thinwire.compress.indices import decode_indices, encode_indices
from thinwire.errors import InputError
from thinwire.passes import CODED_FROM
from thinwire.wire.base import Comm
from thinwire.wire.packet import Packet

__all__ = ["Coded", "Packing", "check_packing", "form_for", "is_coded", "prepare_coding"]

Packing: TypeAlias = Literal["auto", "coded", "plain"]


def check_packing(packing: str) -> None:
    """Reject what is none of `Packing`."""
    if packing not in get_args(Packing):
        raise InputError(f"packing = {packing!r}; valid: {', '.join(get_args(Packing))}")


def is_coded(packing: Packing, count: int) -> bool:
    """Whether the indices of a message are to be coded.

    Args:
        packing: "coded": of all; "plain": of none; "auto": from `CODED_FROM` entries on, below
            which coding takes longer than it saves.
        count: entries of one message as they are expected, equal on all ranks.
    """
    return packing == "coded" or (packing == "auto" and count >= CODED_FROM)


def form_for(packing: Packing, count: int) -> Form:
    """The form of messages of that many entries; see `is_coded`.

    >>> form_for("auto", 100), form_for("coded", 100)
    (Plain(), Coded(start=0, stop=None))
    """
    return Coded() if is_coded(packing, count) else Plain()


def prepare_coding(packing: Packing, count: int, memory: torch.Tensor) -> None:
    """Load the compiled kernels now if messages of that many entries of this memory will be coded,
    so that no timed step waits for it. Blocks for a second or two, at most once in a process."""
    if not memory.is_meta and is_coded(packing, count):
        kernels()


@dataclass(frozen=True)
class Coded:
    """A `thinwire.collectives.Form`: about 11.5 bits of index and 4 bytes of value an entry at
    density 0.001 instead of 8 bytes. Nothing is rounded.

    Packets hold the code of the indices (uint8, see `encode_indices`) and the values; where the
    code is no smaller than the indices, these as they are.

    Args:
        start: of the part of the vector in which all entries lie, known to both sides.
        stop: its end; None for the vector's.
    """

    start: int = 0
    stop: int | None = None

    def within(self, start: int, stop: int) -> Coded:
        """See `Form`."""
        return Coded(start, stop)

    def packet(self, comm: Comm, s: Sparse) -> Packet:
        """See `Form`.

        Raises:
            InputError: entries outside the part.
        """
        with comm.phase("encode"):
            comm.spend(code_work(len(s)))
            span = self._span(s.numel)
            # Of meta sets no one knows how many fall together: never more than there are places.
            index = s.index[:span] if s.is_meta else s.index - self.start if self.start else s.index
            code = encode_indices(index, span)
        return Packet((code if code.nbytes < s.index.nbytes else s.index, s.value), "sparse")

    def entries(self, comm: Comm, packet: Packet, numel: int) -> Sparse:
        """See `Form`.

        Raises:
            InputError: no code of indices, or of another number of them than there are values.
        """
        index, value = packet.buffers
        if index.dtype == torch.uint8:
            comm.spend(code_work(value.numel()))
            if value.is_meta:
                index = torch.empty(value.numel(), dtype=index_dtype(numel), device="meta")
            else:
                index = decode_indices(index, self._span(numel)).to(index_dtype(numel))
                index = index + self.start if self.start else index
        if index.numel() != value.numel():
            raise InputError(
                f"rank {comm.rank}: {index.numel()} indices came with {value.numel()} values (step "
                f"{comm.step})"
            )
        return Sparse(index, value, numel)

    def _span(self, numel: int) -> int:
        return (numel if self.stop is None else self.stop) - self.start

    def merged(self, comm: Comm, s: Sparse, packet: Packet) -> Sparse:
        """See `Form`. One pass over both sets, which are in the order of their indices."""
        other, native = self.entries(comm, packet, s.numel), kernels()
        suited = (
            s.index.dtype == torch.int32 and s.value.dtype == other.value.dtype == torch.float32
        )
        if s.is_meta or native is None or not suited:
            return merge(s, other)
        room = len(s) + len(other)
        index, value = np.empty(room, np.int32), np.empty(room, np.float32)
        count = native.merge_sorted(
            *(x.numpy() for x in (s.index, s.value, other.index, other.value)), index, value
        )
        return Sparse(torch.from_numpy(index[:count]), torch.from_numpy(value[:count]), s.numel)
