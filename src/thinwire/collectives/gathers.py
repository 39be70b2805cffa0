"""Collecting what is no single dense tensor: several buffers from each worker, of any sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import torch

from thinwire.collectives._moves import take
from thinwire.collectives._schedule import blocks_by_round, packets_of
from thinwire.errors import InputError
from thinwire.wire.base import Comm, Tag
from thinwire.wire.packet import Packet

__all__ = ["all_gather_buffers"]


def all_gather_buffers(
    comm: Comm,
    buffers: Sequence[torch.Tensor],
    kind: str = "gradient",
    tag: Tag = "all_gather_buffers",
    meanwhile: Callable[[], object] | None = None,
) -> list[tuple[torch.Tensor, ...]]:
    """Every worker's buffers at all of them, by rank; they may differ in size between workers.

    Recursive doubling in Bruck's form: ceil(log2 P) rounds at any number of workers; at powers of
    two as many messages of the same sizes as with partners at distances 1, 2, 4 …

    Args:
        comm: this worker's endpoint.
        buffers: 1..255 contiguous 1-D tensors, as many on all ranks; they go out as they are, so
            nobody may write into them any more.
        kind: of the packets, a name in `thinwire.wire.packet.KINDS`.
        tag: of the packets, equal on all ranks.
        meanwhile: called once, while the first packets are on their way.

    Returns:
        Tuples of tensors, which must not be written.
    """
    width = len(buffers)
    if not 1 <= width <= 255:
        raise InputError(f"{width} buffers; a packet has room for 1..255")
    held = [tuple(buffers)]  # of ranks rank, rank+1, …
    if meanwhile is not None and comm.size == 1:
        meanwhile()
    for blocks in blocks_by_round(comm.size):
        have, sent = len(held), 0
        for count in packets_of(blocks, width):
            joined = tuple(chain.from_iterable(held[sent : sent + count]))
            comm.post((comm.rank - have) % comm.size, Packet(joined, kind), tag)
            sent += count
        if meanwhile is not None and have == 1:
            meanwhile()
        source = (comm.rank + have) % comm.size
        for count in packets_of(blocks, width):
            came = take(comm, source, tag).buffers
            if len(came) != count * width:
                raise InputError(
                    f"rank {comm.rank}: rank {source} sent {len(came)} buffers where "
                    f"{count * width} were due (tag {tag!r}, step {comm.step}); all ranks must "
                    "call the collective with equally many buffers"
                )
            held += [came[i : i + width] for i in range(0, len(came), width)]
    return [held[(rank - comm.rank) % comm.size] for rank in range(comm.size)]
