"""Runs of a method on a small virtual cluster."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from thinwire.batches import SampleStream
from thinwire.cluster import Cluster, Node
from thinwire.flat import Layer
from thinwire.methods import Method
from thinwire.tasks import Task
from thinwire.testing.toys import Moons
from thinwire.wire import Comm
from thinwire.wire.virtual import World
from thinwire.worker import Batch, Optimizer, Plan, Replica, Server, Worker

MOONS = Moons()  # one for all: it counts its operations and makes its data once


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
    task = task or MOONS
    speeds = speeds or (1.0,) * size
    plan = Plan(
        shares=shares or (4,) * size,
        steps=steps,
        speeds=speeds,
        # Of a method that has momentum itself, the optimizer must have none.
        optimizer=Optimizer(lr=lr, momentum=momentum * (method.traits.momentum == "optimizer")),
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


class Fed:
    """A replica whose gradients are given and whose steps are written down, for a method's
    arithmetic alone.

    Args:
        plan: the run's plan.
        rank: of the worker.
        shapes: of the layers.
        gradients: of this worker, by step.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        shapes: list[tuple[int, ...]],
        gradients: list[torch.Tensor],
    ):
        self.plan = plan
        self.rank = rank
        self.gradients = gradients
        self.directions: list[torch.Tensor] = []
        self.logged: list[dict[str, float]] = []
        self.params = torch.zeros_like(gradients[0])
        layers, start = [], 0
        for i, shape in enumerate(shapes):
            stop = start + math.prod(shape)
            layers.append(Layer(f"layer {i}", start, stop, shape))
            start = stop
        self.layers = tuple(layers)

    def next_batch(self, step: int, stream: SampleStream | None) -> Batch:
        nothing = torch.empty(0)
        weight = self.plan.shares[self.rank] / self.plan.global_batch
        return Batch(torch.tensor([step]), nothing, nothing, weight)

    def gradient(self, batch: Batch, before_layer: Any = None, on_layer: Any = None) -> Any:
        gradient = self.gradients[int(batch.index_B)].clone()
        if on_layer is not None:
            for index in reversed(range(len(self.layers))):
                layer = self.layers[index]
                on_layer(index, gradient[layer.start : layer.stop])
        return gradient

    def apply(self, direction: torch.Tensor) -> None:
        self.directions.append(direction.clone())

    def evaluate(self, steps: int, samples: int, *, final: bool = False) -> None:
        pass

    def log(self, values: dict[str, float]) -> None:
        self.logged.append(values)


@dataclass
class FedResult:
    """By rank: the directions of all steps (T, P), the method's state at the end, its log."""

    directions: list[torch.Tensor]
    states: list[Any]
    logged: list[list[dict[str, float]]]
    world: World


def feed(
    method: Method,
    gradients: torch.Tensor,
    shapes: list[tuple[int, ...]],
    shares: tuple[int, ...] | None = None,
) -> FedResult:
    """Run a method on given gradients.

    Args:
        method: the method.
        gradients: (N, T, P): workers, steps, parameters.
        shapes: of the layers, P elements together.
        shares: samples of a step, by worker.
    """
    size, steps, _ = gradients.shape
    plan = Plan(shares=shares or (1,) * size, steps=steps, speeds=(1.0,) * size)

    def worker(comm: Comm) -> tuple[torch.Tensor, Any, Any]:
        body = Fed(plan, comm.rank, shapes, list(gradients[comm.rank]))
        w = Worker(comm, body)
        method.worker(w)
        return torch.stack(body.directions), w.state, body.logged

    world = World(cluster(size))
    directions, states, logged = zip(*world.run(worker), strict=True)
    return FedResult(list(directions), list(states), list(logged), world)


@pytest.fixture
def feed_method() -> Callable[..., FedResult]:
    return feed


@pytest.fixture
def fed() -> tuple[type[Fed], Callable[..., Cluster]]:
    """For tests that make their own world."""
    return Fed, cluster
