"""One text of a method: thinwire's own loop on the virtual cluster, and somebody's on processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thinwire as tw
from thinwire.batches import SampleStream, batch_slice
from thinwire.cluster import Cluster, Node
from thinwire.flat import digest
from thinwire.methods import Method, build_method
from thinwire.seeds import seed_for
from thinwire.tasks import load_task
from thinwire.testing.processes import run_processes
from thinwire.wire import Comm
from thinwire.wire.virtual import World
from thinwire.worker import Optimizer, Plan, Replica, Worker

CASES: list[tuple[str, dict[str, Any]]] = [
    ("ssgd", {}),
    ("ssgd", {"accumulate": 3}),
    ("topk", {"density": 0.02}),
    ("gtopk", {"density": 0.02}),
    ("gtopk", {"density": 0.02, "losses": "kept"}),
    ("dgc", {"density": 0.02, "warmup": 4}),
    ("oktopk", {"density": 0.02, "estimate_every": 3}),
    ("powersgd", {"rank": 2}),
    ("qsgd", {}),
    ("localsgd", {"every": 3}),
    ("wfbp", {}),
    ("wfbp", {"groups": "buckets", "bucket_bytes": 2000}),
    ("wfbp", {"groups": "one"}),
    ("bytescheduler", {"partition": 1000, "credit": 2000}),
    ("lags", {"density": 0.02, "warmup": 4}),
    ("lags", {"density": 0.02, "dense_below": 0, "merge": 0, "delta_every": 3}),
]
STEPS, SHARES = 8, {2: (8, 8), 3: (8, 8, 8)}


def momentum_of(method: Method) -> float:
    """The optimizer's, which is none where the method has its own."""
    return 0.9 if method.traits.momentum == "optimizer" else 0.0


def virtual(method: Method, size: int) -> list[str]:
    """Digests of all replicas after training in thinwire's own loop."""
    task = load_task("digits")
    plan = Plan(
        shares=SHARES[size],
        steps=STEPS,
        speeds=(1.0,) * size,
        optimizer=Optimizer(lr=0.05, momentum=momentum_of(method)),
        evaluate_at="call",
    )
    stream = SampleStream(task.num_train, 0)

    def worker(comm: Comm) -> str:
        replica = Replica(task, plan, comm, lambda kind, values: None)
        method.worker(Worker(comm, replica, stream))
        return replica.digest

    nodes = [
        Node(name=f"n{i}", flops=1e9, memory_rate=8e9, egress=1e7, ingress=1e7) for i in range(size)
    ]
    return World(Cluster(name="test", nodes=tuple(nodes), default_latency=1e-4)).run(worker)


def own_loops(rank: int, size: int) -> list[str]:
    """The same training in ordinary loops, one a method."""
    torch.set_num_threads(1)
    task = load_task("digits")
    x, y = task.train_data()
    found = []
    for name, settings in CASES:
        stream = SampleStream(task.num_train, 0)
        torch.manual_seed(seed_for(0, "model") if rank == 0 else rank)
        model = task.model()
        momentum = momentum_of(build_method(name, settings))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)
        model, optimizer = tw.distribute(model, optimizer, method=name, **settings)
        for step in range(STEPS):
            index = stream.take(*batch_slice(step, rank, SHARES[size]))
            optimizer.zero_grad()
            task.loss(model, x[index], y[index]).backward()
            optimizer.step()
        tw.finish()
        found.append(digest(torch.cat([p.data.view(-1) for p in model.parameters()])))
    return found


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_a_loop_of_ones_own_ends_bitwise_as_the_program_form_does(size: int):
    real = run_processes(own_loops, size, env={"OMP_NUM_THREADS": "1"})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for case, (name, settings) in enumerate(CASES):
            expected = virtual(build_method(name, settings), size)
            assert [found[case] for found in real] == expected, (name, settings)
    finally:
        torch.set_num_threads(threads)
