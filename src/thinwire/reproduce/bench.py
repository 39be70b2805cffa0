"""A published test bed on the virtual cluster: equal machines on a network that stands idle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from thinwire.cluster import Cluster, Node
from thinwire.collectives.sparse import Sparse, index_dtype
from thinwire.wire.base import Comm
from thinwire.wire.virtual import World

__all__ = ["Network", "dense_of_size", "sparse_of_size"]


def dense_of_size(numel: int) -> torch.Tensor:
    """A vector of which only the size counts."""
    return torch.empty(numel, device="meta")


def sparse_of_size(k: int, numel: int) -> Sparse:
    """k kept entries of a vector, of which only the number counts."""
    index = torch.empty(k, dtype=index_dtype(numel), device="meta")
    return Sparse(index, torch.empty(k, device="meta"), numel)


@dataclass(frozen=True, kw_only=True)
class Network:
    """What joins the machines.

    Args:
        latency: seconds one way between any two.
        rate: bytes per second of each machine's line, in each direction.
    """

    latency: float
    rate: float

    def cluster(self, size: int, *, flops: float = 1e9, memory_rate: float = 1e9) -> Cluster:
        """That many equal machines."""
        nodes = tuple(
            Node(
                name=f"n{i}",
                flops=flops,
                memory_rate=memory_rate,
                egress=self.rate,
                ingress=self.rate,
            )
            for i in range(size)
        )
        return Cluster(name="published", nodes=nodes, default_latency=self.latency)

    def time(self, size: int, program: Callable[[Comm], Any]) -> float:
        """Virtual seconds that a program takes on that many machines; packet headers, which
        published models don't know, take no time."""
        world = World(self.cluster(size), link_model="queue", charge_headers=False)
        world.run(program)
        return world.elapsed
