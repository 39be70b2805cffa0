"""Small clusters and jobs."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from thinwire.cluster import Cluster, Node
from thinwire.methods import build_method
from thinwire.run.experiment import Job
from thinwire.run.settings import TrainSettings, WireSettings


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(8)
        yield sock


def small_cluster(size: int, slowdowns: tuple[float, ...] = (), **node: Any) -> Cluster:
    """Equal machines but for their slow-downs, on 100 Mbit/s."""
    settings = {"flops": 2e6, "memory_rate": 8e9, "egress": 12.5e6, "ingress": 12.5e6, **node}
    nodes = tuple(
        Node(name=f"n{i}", slowdown=s, **settings) for i, s in enumerate(slowdowns or (1.0,) * size)
    )
    return Cluster(name="small", nodes=nodes, default_latency=0.0003)


def small_job(
    method: str = "ssgd",
    size: int = 2,
    *,
    cluster: Cluster | None = None,
    seed: int = 0,
    timeline: bool = False,
    faults: Any = None,
    wire: WireSettings | None = None,
    settings: dict[str, Any] | None = None,
    **train: Any,
) -> Job:
    """A job on a small cluster; an epoch of batches of 16 unless told otherwise."""
    return Job(
        run=f"{method}/{seed}",
        label=method,
        name=method,
        method=build_method(method, settings or {}),
        cluster=cluster or small_cluster(size),
        train=TrainSettings(**{"epochs": 1.0, "evals": 4, **train}),
        wire=wire or WireSettings(),
        seed=seed,
        timeline=timeline,
        faults=faults,
    )


@pytest.fixture
def make_cluster() -> Callable[..., Cluster]:
    return small_cluster


@pytest.fixture
def make_job() -> Callable[..., Job]:
    return small_job
