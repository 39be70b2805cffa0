"""Selection with error feedback over a flat gradient: the fused kernel beside other ways.

    python benchmarks/selection.py [--numel 25000000] [--density 0.001] [--rounds 7] [--threads 1,2]

Per number of threads: one in-place `a.add_(b)` of the same vectors, which is what the memory's
bandwidth allows; `torch.topk` of the magnitudes, without the sum; the three separate steps; and
`accumulate_and_select`. The ways take turns, so that a disturbance hits all of them, and nothing is
compiled in the rounds. Wall time is the median with the least and the most. CPU time, of all
threads together and the least of the rounds, says what a way costs where other programs take the
processors.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from thinwire.compress import accumulate_and_select, num_kept, prepare, select_top
from thinwire.seeds import generator_for


def ways(memory: torch.Tensor, k: int, threads: int) -> dict[str, Callable[[], Any]]:
    """What is measured, each working on the same memory."""
    grad = torch.randn(memory.numel(), generator=generator_for(0, "gradient"))

    def separate() -> None:
        memory.add_(grad, alpha=0.25)
        select_top(memory, k).zero_in(memory)

    return {
        "add": lambda: memory.add_(grad),
        "torch.topk": lambda: torch.topk(memory.abs(), k, sorted=False),
        "separate": separate,
        "fused": lambda: accumulate_and_select(memory, grad, 0.25, k, num_threads=threads),
    }


def measure(numel: int, k: int, threads: int, rounds: int) -> list[dict[str, Any]]:
    """A row for each way."""
    torch.set_num_threads(threads)
    start = torch.randn(numel, generator=generator_for(0, "memory")).mul_(0.5)
    memory = torch.empty_like(start)
    calls = ways(memory, k, threads)
    wall: dict[str, list[float]] = {name: [] for name in calls}
    cpu: dict[str, list[float]] = {name: [] for name in calls}
    prepare(memory)
    for _ in range(rounds):
        for name, call in calls.items():
            memory.copy_(start)
            before = time.perf_counter(), time.process_time()
            call()
            after = time.perf_counter(), time.process_time()
            wall[name].append(after[0] - before[0])
            cpu[name].append(after[1] - before[1])
    floor = statistics.median(wall["add"]), min(wall["add"]), min(cpu["add"])
    return [
        {
            "way": name,
            "threads": threads,
            "median": statistics.median(times),
            "least": min(times),
            "most": max(times),
            "cpu": min(cpu[name]),
            "adds_median": statistics.median(times) / floor[0],
            "adds_least": min(times) / floor[1],
            "adds_cpu": min(cpu[name]) / floor[2],
        }
        for name, times in wall.items()
    ]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--numel", type=int, default=25_000_000)
    parser.add_argument("--density", type=float, default=0.001)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--json")
    args = parser.parse_args()
    k = num_kept(args.density, args.numel)
    print(f"{args.numel} float32, k = {k}, {args.rounds} rounds, times in ms")
    print("threads  way         median   least    most     cpu   in adds: median  least    cpu")
    rows = []
    for threads in map(int, args.threads.split(",")):
        for row in measure(args.numel, k, threads, args.rounds):
            rows.append(row)
            print(
                f"{threads:7}  {row['way']:10}"
                + "".join(f"{row[key] * 1e3:8.1f}" for key in ("median", "least", "most", "cpu"))
                + "            "
                + "".join(f"{row[key]:7.2f}" for key in ("adds_median", "adds_least", "adds_cpu"))
            )
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
