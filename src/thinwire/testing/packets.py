"""A communicator that finds out whether a posted packet is written into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thinwire.wire.base import ANY, Arrival, Comm, Posted, Tag, Task, Work
from thinwire.wire.packet import Packet

__all__ = ["PacketLog", "WatchedComm"]


class PacketLog:
    """Every packet posted through the watched communicators that share it, with what it held.

    Attributes:
        posts: (source, destination, packet, copies of its buffers) in the order of posting.
    """

    def __init__(self) -> None:
        self.posts: list[tuple[int, int, Packet, tuple[torch.Tensor, ...]]] = []

    def add(self, src: int, dst: int, packet: Packet) -> None:
        """Remember a packet as it is now."""
        self.posts.append((src, dst, packet, tuple(b.clone() for b in packet.buffers)))

    def check(self) -> None:
        """Assert that no packet has changed since it was posted."""
        for src, dst, packet, copies in self.posts:
            for i, (now, then) in enumerate(zip(packet.buffers, copies, strict=True)):
                nothing = now.is_meta or not now.numel()
                same = nothing or torch.equal(now.view(torch.uint8), then.view(torch.uint8))
                assert same, f"buffer {i} of a packet from {src} to {dst} was written after post"


class WatchedComm(Comm):
    """Passes everything on to another communicator and logs its posts.

    Args:
        inner: the communicator that does the work.
        log: shared by all ranks of a test.
    """

    def __init__(self, inner: Comm, log: PacketLog):
        self.rank = inner.rank
        self.size = inner.size
        self.num_servers = inner.num_servers
        self.losses = inner.losses
        self.meter = inner.meter
        self.phases = inner.phases
        self._inner = inner
        self._log = log

    @property
    def step(self) -> int:
        """As the inner communicator's."""
        return self._inner.step

    @step.setter
    def step(self, value: int) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._inner.step = value

    def now(self) -> float:
        """See `Comm`."""
        return self._inner.now()

    def post(
        self, dst: int, packet: Packet, tag: Tag = 0, *, after: Posted | None = None
    ) -> Posted:
        """See `Comm`."""
        self._log.add(self.rank, dst, packet)
        return self._inner.post(dst, packet, tag, after=after)

    def wait(self, src: int = ANY, tag: Tag = 0, deadline: float | None = None) -> Arrival:
        """See `Comm`."""
        return self._inner.wait(src, tag, deadline)

    def spend(self, work: Work) -> None:
        """See `Comm`."""
        self._inner.spend(work)

    def start(self, program: Callable[[Comm], Any], key: str) -> Task:
        """See `Comm`."""
        return self._inner.start(lambda comm: program(WatchedComm(comm, self._log)), key)
