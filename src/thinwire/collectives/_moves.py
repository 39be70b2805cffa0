"""The few moves that every collective is made of: post a packet, take a packet, walk a tree."""

from __future__ import annotations

import torch

from thinwire.collectives._schedule import tree_children
from thinwire.errors import InputError, PeerFinishedError
from thinwire.wire.base import Comm, Posted, Tag
from thinwire.wire.packet import Packet

__all__ = ["broadcast_packet", "check_root", "opened", "take"]


def take(comm: Comm, src: int, tag: Tag) -> Packet:
    """Wait for the next packet of `src`.

    Raises:
        PeerFinishedError: `src` has left (elastic losses); a collective needs every rank.
    """
    packet = comm.wait(src, tag).packet
    if packet is None:
        raise PeerFinishedError(
            f"rank {comm.rank}: rank {src} has left (tag {tag!r}, step {comm.step}); a collective "
            "needs every rank"
        )
    return packet


def opened(
    comm: Comm, src: int, tag: Tag, packet: Packet, dtype: torch.dtype, numel: int
) -> torch.Tensor:
    """The one tensor of a packet that `src` made; it must not be written.

    Raises:
        InputError: it has another number of elements or another dtype than this rank's.
    """
    buffers = packet.buffers
    if len(buffers) != 1 or buffers[0].numel() != numel or buffers[0].dtype != dtype:
        came = ", ".join(f"{b.numel()} x {b.dtype}" for b in buffers) or "nothing"
        raise InputError(
            f"rank {comm.rank}: rank {src} sent {came} where {numel} x {dtype} were due (tag "
            f"{tag!r}, step {comm.step}); all ranks must call the collective with equal tensors"
        )
    return buffers[0]


def check_root(comm: Comm, root: int) -> None:
    """Reject a root that is no worker."""
    if not 0 <= root < comm.size:
        raise InputError(f"root = {root!r}; valid: 0..{comm.size - 1}")


def broadcast_packet(comm: Comm, packet: Packet | None, root: int, tag: Tag) -> Packet:
    """Pass the root's packet down the binomial tree; every rank returns it.

    The same packet goes on unchanged, so nothing is copied: whoever gets it must not write into it.

    Args:
        comm: this worker's endpoint.
        packet: at the root; ignored elsewhere.
        root: 0..size-1.
        tag: equal on all ranks.
    """
    size = comm.size
    position = (comm.rank - root) % size
    if position:
        parent = position & (position - 1)
        packet = take(comm, (parent + root) % size, tag)
    assert packet is not None, "the root has nothing to broadcast"
    leaving: Posted | None = None
    # The far half first, and each packet alone on the wire: the subtrees that have the longest way
    # to go begin soonest, and no two streams halve each other's rate.
    for child in reversed(tree_children(position, size)):
        leaving = comm.post((child + root) % size, packet, tag, after=leaving)
    return packet
