"""An idle uniform network of any size, and programs run on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from thinwire.cluster import Cluster, Node
from thinwire.testing.packets import PacketLog, WatchedComm
from thinwire.wire import Comm
from thinwire.wire.virtual import World


class Lab:
    """Runs programs on worlds of one latency and rate."""

    latency = 0.3e-3
    rate = 12.5e6

    def world(self, num_workers: int, **options: Any) -> World:
        node = {"flops": 1e9, "memory_rate": 1e9, "egress": self.rate, "ingress": self.rate}
        nodes = tuple(Node(name=f"n{i}", **node) for i in range(num_workers))
        cluster = Cluster(name="uniform", nodes=nodes, default_latency=self.latency)
        return World(cluster, **{"link_model": "queue", **options})

    def run(self, num_workers: int, program: Callable[[Comm], Any], **options: Any) -> list[Any]:
        """What `program(comm)` returned, by rank; no packet may have been written after post."""
        log = PacketLog()
        results = self.world(num_workers, **options).run(lambda c: program(WatchedComm(c, log)))
        log.check()
        return results

    def time(
        self, num_workers: int, program: Callable[[Comm], Any], **options: Any
    ) -> tuple[float, list[int], list[int]]:
        """Virtual seconds, bytes sent and messages sent by rank."""
        world = self.world(num_workers, **options)
        world.run(program)
        meters = [e.meter for e in world.endpoints]
        return world.elapsed, [m.sent for m in meters], [m.messages_sent for m in meters]


@pytest.fixture(scope="session")
def lab() -> Lab:
    return Lab()
