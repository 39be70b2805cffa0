"""Entries whose indices travel near their entropy, for gTop-k's tree."""

from __future__ import annotations

import numpy as np
import torch

from thinwire.collectives.sparse import Sparse, index_dtype, merge
from thinwire.compress._native import kernels
from thinwire.compress.cost import code_work
from thinwire.compress.indices import decode_indices, encode_indices
from thinwire.errors import InputError
from thinwire.wire.base import Comm
from thinwire.wire.packet import Packet

__all__ = ["Coded"]


class Coded:
    """A `thinwire.collectives.Form`: about 11.5 bits of index and 4 bytes of value an entry at
    density 0.001 instead of 8 bytes. Nothing is rounded.

    Packets hold the code of the indices (uint8, see `encode_indices`) and the values.
    """

    def packet(self, comm: Comm, s: Sparse) -> Packet:
        """See `Form`."""
        with comm.phase("encode"):
            comm.spend(code_work(len(s)))
            return Packet((encode_indices(s.index, s.numel), s.value), "sparse")

    def entries(self, comm: Comm, packet: Packet, numel: int) -> Sparse:
        """See `Form`.

        Raises:
            InputError: no code of indices, or of another number of them than there are values.
        """
        code, value = packet.buffers
        comm.spend(code_work(value.numel()))
        if value.is_meta:
            index = torch.empty(value.numel(), dtype=index_dtype(numel), device="meta")
        else:
            index = decode_indices(code, numel)
        if index.numel() != value.numel():
            raise InputError(
                f"rank {comm.rank}: {index.numel()} indices came with {value.numel()} values (step "
                f"{comm.step})"
            )
        return Sparse(index, value, numel)

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
