"""The packet of kept entries: indices, values, and the vector's size as one int64.

Every codec whose packet is of kind "sparse" uses this layout, so that others can be put around it.
"""

from __future__ import annotations

import torch

from thinwire.collectives.sparse import Sparse
from thinwire.errors import InputError
from thinwire.wire.packet import Packet

__all__ = ["entries_of", "entries_packet"]


def entries_packet(s: Sparse) -> Packet:
    """The packet of some entries; the size is a real number even where the entries are meta."""
    return Packet((s.index, s.value, torch.tensor([s.numel])), "sparse")


def entries_of(packet: Packet) -> Sparse:
    """The entries of a packet.

    Raises:
        InputError: another kind of packet.
    """
    if packet.kind != "sparse" or len(packet.buffers) != 3 or packet.buffers[2].numel() != 1:
        raise InputError(
            f"a packet of kind {packet.kind!r} with {len(packet.buffers)} buffers does not hold "
            "indices, values and a size, as those of topk, threshold and sampled_threshold do"
        )
    index, value, size = packet.buffers
    return Sparse(index, value, int(size))
