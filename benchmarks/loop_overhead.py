"""What `tw.distribute` adds to a step of somebody's own loop when there is nobody to talk to.

    python benchmarks/loop_overhead.py [--json FILE] [--pairs 30] [--batch 128] [--clock cpu]

World size 1, method "ssgd", no codec: the exchange is nothing, so what is left is the machinery
(hooks, the switch to the method's program and back, gradients kept in one vector). A plain loop and
a distributed one take turns, round after round, each in a process of its own (in one heap the
allocator would give back or keep one loop's memory for what the other holds) with a model made from
the same seed; both must end with the same bits. Printed are medians over the pairs and their
quartiles:

1. ResNet-20 on CIFAR-sized images (target: at most 2 % of a step);
2. a two-layer perceptron, 64-128-10 (target: at most 30 microseconds a step).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn

import thinwire as tw
from thinwire.tasks.models import ResNet20

Step = Callable[[], None]

CLOCKS = {"wall": time.perf_counter, "cpu": time.thread_time}
"""The second leaves out what other programs of a busy machine take, all but its caches."""

PATIENCE = 300.0
"""Seconds to wait for one round of a process."""


def perceptron() -> nn.Module:
    """Two layers, 64-128-10."""
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def images(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of CIFAR's size, `[batch, 3, 32, 32]` float32, and their labels."""
    return torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))


def rows(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`[batch, 64]` float32, and their labels."""
    return torch.randn(batch, 64), torch.randint(0, 10, (batch,))


WORK: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Any]]] = {
    "resnet20": (ResNet20, images),
    "perceptron": (perceptron, rows),
}


def loop(name: str, batch: int, ours: bool) -> tuple[nn.Module, Step]:
    """A model and one step of an ordinary loop with it."""
    make, samples = WORK[name]
    torch.manual_seed(0)
    model, (x, y) = make(), samples(batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if ours:
        model, optimizer = tw.distribute(model, optimizer, method="ssgd")

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return model, step


def serve(pipe: Connection, name: str, batch: int, ours: bool, clock: str) -> None:
    """A process: time as many steps as asked for; asked for none, tell the parameters and end."""
    torch.set_num_threads(1)
    model, step = loop(name, batch, ours)
    now = CLOCKS[clock]
    while count := pipe.recv():
        began = now()
        for _ in range(count):
            step()
        pipe.send((now() - began) / count)
    if ours:
        tw.finish()
    pipe.send([p.detach().numpy() for p in model.parameters()])


class Loop:
    """A loop in a process of its own."""

    def __init__(self, name: str, batch: int, ours: bool, clock: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=serve, args=(theirs, name, batch, ours, clock), daemon=True
        )
        self._process.start()
        theirs.close()

    def ask(self, count: int) -> Any:
        """Seconds of a step, mean of `count`; the parameters if 0, and the process ends."""
        self._pipe.send(count)
        if not self._pipe.poll(PATIENCE):
            raise SystemExit(f"a loop's process has said nothing for {PATIENCE:.0f} s")
        return self._pipe.recv()


def measure(name: str, batch: int, pairs: int, count: int, clock: str) -> dict[str, Any]:
    """Seconds of a step, and the difference, over paired rounds."""
    plain, ours = (Loop(name, batch, mine, clock) for mine in (False, True))
    for each in (plain, ours):
        each.ask(2 if count == 1 else 400)
    times = []
    for turn in range(pairs):
        # Who goes first alternates: a machine that slows down would always hit the second.
        if turn % 2:
            a, b = plain.ask(count), ours.ask(count)
        else:
            b, a = ours.ask(count), plain.ask(count)
        times.append((a, b))
    both = zip(plain.ask(0), ours.ask(0), strict=True)
    assert all((a == b).all() for a, b in both), "the two loops have diverged"
    extra = sorted(b - a for a, b in times)
    step = statistics.median(a for a, _ in times)
    return {
        "step_s": step,
        "extra_s": statistics.median(extra),
        "extra_quartiles_s": [extra[pairs // 4], extra[3 * pairs // 4]],
        "extra_percent": 100 * statistics.median(extra) / step,
    }


def main() -> None:
    """Measure, print, and save if asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    args = parser.parse_args()
    found = {
        "machine": f"{platform.processor() or platform.machine()}, torch {torch.__version__}, "
        f"1 thread, {args.clock} clock",
        "pairs": args.pairs,
        "resnet20": measure("resnet20", args.batch, args.pairs, 1, args.clock),
        "perceptron": measure("perceptron", 32, 10 * args.pairs, 20, args.clock),
    }
    net, small = found["resnet20"], found["perceptron"]
    low, high = (1e6 * q for q in small["extra_quartiles_s"])
    print(f"{found['machine']}, {args.pairs} pairs")
    print(
        f"ResNet-20, batch {args.batch}: {1e3 * net['step_s']:.1f} ms a step, "
        f"{1e3 * net['extra_s']:+.2f} ms ({net['extra_percent']:+.2f} %; target 2 %)"
    )
    print(
        f"perceptron, batch 32: {1e6 * small['step_s']:.0f} us a step, "
        f"{1e6 * small['extra_s']:+.1f} us (quartiles {low:.1f} .. {high:.1f}; target 30 us)"
    )
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
