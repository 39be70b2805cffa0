"""What `tw.distribute` adds to a step of somebody's own loop when there is nobody to talk to.

    python benchmarks/loop_overhead.py [--json FILE] [--pairs 30] [--batch 128] [--clock cpu]

World size 1, method "ssgd", no codec: the exchange is nothing, so what is left is the machinery
(hooks, the switch to the method's program and back, gradients kept in one vector). A plain loop and
a distributed one take turns, round after round, each with a model of its own made from the same
seed; both must end with the same bits. Printed are medians over the pairs and their quartiles:

1. ResNet-20 on CIFAR-sized images (target: at most 2 % of a step);
2. a two-layer perceptron, 64-128-10 (target: at most 30 microseconds a step).
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import thinwire as tw
from thinwire.tasks.models import ResNet20

Step = Callable[[], None]


def loop(make: Callable[[], nn.Module], x: torch.Tensor, y: torch.Tensor, ours: bool) -> Any:
    """A model and one step of an ordinary loop with it."""
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if ours:
        model, optimizer = tw.distribute(model, optimizer, method="ssgd")

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return model, step


CLOCKS = {"wall": time.perf_counter, "cpu": time.thread_time}
"""The second leaves out what other programs of a busy machine take, all but its caches."""


def seconds(step: Step, count: int, clock: str) -> float:
    """Of one step, mean of `count`."""
    now = CLOCKS[clock]
    began = now()
    for _ in range(count):
        step()
    return (now() - began) / count


def measure(
    make: Callable[[], nn.Module],
    x: torch.Tensor,
    y: torch.Tensor,
    pairs: int,
    count: int,
    clock: str,
) -> dict[str, Any]:
    """Seconds of a step, and the difference, over paired rounds."""
    plain_model, plain = loop(make, x, y, ours=False)
    our_model, ours = loop(make, x, y, ours=True)
    for step in (plain, ours):
        seconds(step, count, clock)
    times = []
    for turn in range(pairs):
        # Who goes first alternates: the caches are the other's.
        first, second = (plain, ours) if turn % 2 else (ours, plain)
        a, b = seconds(first, count, clock), seconds(second, count, clock)
        times.append((a, b) if turn % 2 else (b, a))
    tw.finish()
    both = zip(plain_model.parameters(), our_model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in both), "the two loops have diverged"
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
    torch.set_num_threads(1)
    images = torch.randn(args.batch, 3, 32, 32), torch.randint(0, 10, (args.batch,))
    rows = torch.randn(32, 64), torch.randint(0, 10, (32,))

    def perceptron() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    found = {
        "machine": f"{platform.processor() or platform.machine()}, torch {torch.__version__}, "
        f"1 thread, {args.clock} clock",
        "pairs": args.pairs,
        "resnet20": measure(ResNet20, *images, args.pairs, 1, args.clock),
        "perceptron": measure(perceptron, *rows, args.pairs, 200, args.clock),
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
