"""Runs of a method on a small virtual cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from thinwire.batches import SampleStream
from thinwire.cluster import Cluster, Node
from thinwire.methods import Method
from thinwire.tasks import Task
from thinwire.testing.toys import Moons
from thinwire.wire import Comm
from thinwire.wire.virtual import World
from thinwire.worker import Optimizer, Plan, Replica, Server, Worker


def cluster(size: int, slowdowns: tuple[float, ...] = ()) -> Cluster:
    slow = slowdowns or (1.0,) * size
    nodes = tuple(
        Node(name=f"n{i}", flops=2e6, memory_rate=8e9, egress=12.5e6, ingress=12.5e6, slowdown=s)
        for i, s in enumerate(slow)
    )
    return Cluster(name="test", nodes=nodes, default_latency=0.0003)


@dataclass
class Result:
    params: list[torch.Tensor]
    evals: list[dict[str, Any]]
    world: World


def train(
    method: Method,
    size: int,
    *,
    task: Task | None = None,
    shares: tuple[int, ...] | None = None,
    steps: int = 8,
    speeds: tuple[float, ...] | None = None,
    seed: int = 0,
    lr: float = 0.1,
    momentum: float = 0.9,
) -> Result:
    """Train and give back every endpoint's parameters."""
    task = task or Moons()
    speeds = speeds or (1.0,) * size
    plan = Plan(
        shares=shares or (4,) * size,
        steps=steps,
        speeds=speeds,
        optimizer=Optimizer(lr=lr, momentum=momentum),
        seed=seed,
        eval_every=2,
        evaluate_at=method.traits.evaluate_at,
    )
    evals: list[dict[str, Any]] = []
    stream = SampleStream(task.num_train, seed)

    def log(kind: str, values: dict[str, Any]) -> None:
        if kind == "eval":
            evals.append(values)

    def worker(comm: Comm) -> torch.Tensor:
        replica = Replica(task, plan, comm, log)
        method.worker(Worker(comm, replica, stream))
        return replica.params.clone()

    def server(comm: Comm) -> torch.Tensor:
        replica = Replica(task, plan, comm, log)
        method.server(Server(comm, replica))
        return replica.params.clone()

    world = World(
        cluster(size, tuple(1 / s for s in speeds)), num_servers=method.num_servers, seed=seed
    )
    return Result(world.run(worker, server), evals, world)


@pytest.fixture
def run_method() -> Callable[..., Result]:
    return train
