"""What the virtual cluster costs on the machine that runs it.

    python benchmarks/virtual_world.py [--json FILE] [--rounds 7]

Three figures, each measured side by side in one run, rounds interleaved. The first two are in CPU
time of one thread, which other programs on the machine disturb less than they do the clock:

1. messages per second of a ring of 128 workers whose egress and ingress are resources, against the
   same model written with SimPy (target: at least 3 times as many);
2. time of 60 steps of S-SGD on 8 virtual workers over a plain loop that computes the same
   gradients, sums them and steps the same optimizers (target: at most 10 % more). Making models
   and workers is in both times; a run of 20 steps, in which it weighs three times as much, is
   shown beside it;
3. seconds and memory of one timing-only gTop-k step of a 25M-parameter model on 1,000 workers, in a
   process of its own (target: under 2 s, under 1 GiB).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import simpy
import torch

from thinwire.batches import SampleStream
from thinwire.cluster import Cluster, Node
from thinwire.methods import SSGD, GTopK
from thinwire.tasks import load_task
from thinwire.tasks.timing import Timing
from thinwire.wire import Comm, Packet
from thinwire.wire.virtual import World
from thinwire.worker import Optimizer, Plan, Replica, Worker

RATE, LATENCY, NBYTES = 12.5e6, 0.0003, 4000
RING, TURNS = 128, 100


def cluster(size: int) -> Cluster:
    """Equal machines on 100 Mbit/s."""
    nodes = tuple(
        Node(name=f"n{i}", flops=1e10, memory_rate=8e9, egress=RATE, ingress=RATE)
        for i in range(size)
    )
    return Cluster(name="ring", nodes=nodes, default_latency=LATENCY)


def ring_here(link_model: Any) -> float:
    """Virtual seconds of the ring in our world."""
    packet = Packet((torch.empty(NBYTES // 4, device="meta"),))

    def program(comm: Comm) -> None:
        after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        for _ in range(TURNS):
            comm.post(after, packet, "ring")
            comm.wait(before, "ring")

    world = World(cluster(RING), link_model=link_model, charge_headers=False)
    world.run(program)
    return world.elapsed


def ring_simpy() -> float:
    """Virtual seconds of the ring in SimPy."""
    env = simpy.Environment()
    egress = [simpy.Resource(env) for _ in range(RING)]
    ingress = [simpy.Resource(env) for _ in range(RING)]
    boxes = [simpy.Store(env) for _ in range(RING)]

    def message(src: int, dst: int, number: int) -> Any:
        with egress[src].request() as out, ingress[dst].request() as into:
            yield out & into
            yield env.timeout(NBYTES / RATE)
        yield env.timeout(LATENCY)
        yield boxes[dst].put(number)

    def worker(rank: int) -> Any:
        for number in range(TURNS):
            env.process(message(rank, (rank + 1) % RING, number))
            yield boxes[rank].get()

    for rank in range(RING):
        env.process(worker(rank))
    env.run()
    return env.now


STEPS, SHORT, SIZE, BATCH = 60, 20, 8, 16


def train_virtually(task: Any, steps: int = STEPS) -> torch.Tensor:
    """S-SGD on the virtual cluster; rank 0's parameters."""
    plan = Plan(
        shares=(BATCH,) * SIZE,
        steps=steps,
        speeds=(1.0,) * SIZE,
        optimizer=Optimizer(lr=0.05, momentum=0.9),
        evaluate_at="call",
    )
    stream = SampleStream(task.num_train, 0)

    def program(comm: Comm) -> torch.Tensor:
        replica = Replica(task, plan, comm, lambda kind, values: None)
        SSGD().worker(Worker(comm, replica, stream))
        return replica.params

    return World(cluster(SIZE)).run(program)[0]


def train_plainly(task: Any, steps: int = STEPS) -> torch.Tensor:
    """The same gradients, sums and steps in a loop without workers."""
    models = [task.model() for _ in range(SIZE)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in models]
    stream = SampleStream(task.num_train, 0)
    x, y = task.train_data()
    for step in range(steps):
        for rank, model in enumerate(models):
            index = stream.take((step * SIZE + rank) * BATCH, BATCH)
            model.zero_grad()
            task.loss(model, x[index], y[index]).backward()
        for group in zip(*(m.parameters() for m in models), strict=True):
            total = torch.stack([p.grad for p in group]).mean(0)
            for p in group:
                p.grad = total
        for optimizer in optimizers:
            optimizer.step()
    return next(models[0].parameters())


def big_step() -> dict[str, float]:
    """One timing-only gTop-k step on 1,000 workers: seconds, and peak memory above the start."""
    _one_step(2)  # torch loads its meta kernels at the first use
    began = time.perf_counter()
    world = _one_step(1000)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"seconds": seconds, "peak_gib": peak, "virtual_seconds": world.elapsed}


def _one_step(size: int) -> World:
    task = Timing(num_params=25_000_000, flops_per_sample=8e9)
    plan = Plan(shares=(32,) * size, steps=1, speeds=(1.0,) * size)
    stream = SampleStream(task.num_train, 0)
    nodes = cluster(size)

    def program(comm: Comm) -> None:
        replica = Replica(task, plan, comm, lambda kind, values: None)
        GTopK(density=0.001).worker(Worker(comm, replica, stream))

    world = World(nodes, link_model="queue")
    world.run(program)
    return world


def timed(action: Callable[[], Any]) -> float:
    """Seconds of CPU time that an action takes."""
    began = time.process_time()
    action()
    return time.process_time() - began


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--big", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.big:
        print(json.dumps(big_step()))
        return
    task = load_task("digits")
    task.train_data()
    actions = {
        "simpy": ring_simpy,
        "queue": lambda: ring_here("queue"),
        "fair": lambda: ring_here("fair"),
        "plain": lambda: train_plainly(task),
        "virtual": lambda: train_virtually(task),
        "plain, short": lambda: train_plainly(task, SHORT),
        "virtual, short": lambda: train_virtually(task, SHORT),
    }
    times: dict[str, list[float]] = {name: [] for name in actions}
    for action in actions.values():
        action()  # warm
    for _ in range(args.rounds):
        for name, action in actions.items():
            times[name].append(timed(action))
    big = [
        json.loads(subprocess.check_output([sys.executable, __file__, "--big"]))
        for _ in range(min(3, args.rounds))
    ]
    report(times, big, args.json)


def report(times: dict[str, list[float]], big: list[dict[str, float]], out: Path | None) -> None:
    """Print the figures with medians and ranges of the paired ratios."""
    rows = []
    for name in ("queue", "fair"):
        ratios = [s / t for s, t in zip(times["simpy"], times[name], strict=True)]
        rate = RING * TURNS / statistics.median(times[name])
        rows.append(
            {"figure": f"ring, {name}: messages/s over SimPy's", "value": statistics.median(ratios),
             "low": min(ratios), "high": max(ratios), "target": ">= 3", "messages_per_s": rate}
        )  # fmt: skip
    for suffix, steps in (("", STEPS), (", short", SHORT)):
        pairs = zip(times["virtual" + suffix], times["plain" + suffix], strict=True)
        over = [v / p - 1 for v, p in pairs]
        rows.append(
            {"figure": f"virtual S-SGD, {steps} steps: extra over a plain loop",
             "value": statistics.median(over), "low": min(over), "high": max(over),
             "target": "<= 0.10"}
        )  # fmt: skip
    for key, target in (("seconds", "< 2 s"), ("peak_gib", "< 1 GiB")):
        values = [b[key] for b in big]
        rows.append(
            {"figure": f"1,000 workers, gTop-k step: {key}", "value": statistics.median(values),
             "low": min(values), "high": max(values), "target": target}
        )  # fmt: skip
    print(f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}")
    for row in rows:
        print(f"{row['figure']:48} {row['value']:8.3f} ({row['low']:.3f} to {row['high']:.3f})"
              f"  target {row['target']}")  # fmt: skip
    if out is not None:
        out.write_text(json.dumps({"rows": rows, "times": times, "big": big}, indent=1))


if __name__ == "__main__":
    main()
