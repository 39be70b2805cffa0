"""The dense all-reduce on shaped links: ours by several algorithms, beside gloo's, in one run.

    sudo python benchmarks/all_reduce.py                                        five minutes
    sudo python benchmarks/all_reduce.py --links 1gbit --numel 25557032 --rounds 5

Every host is a process in a network namespace of its own. They take turns: one all-reduce of each
kind in every round, after a barrier and a pause. A round takes what its slowest host took. Printed
are medians and ranges over the rounds, and the time that the bytes alone need at the link's rate.
Needs Linux, root and iproute2.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from netns import Lab, bytes_per_second, why_not
from thinwire.collectives import all_reduce
from thinwire.collectives.dense import ALL_REDUCES

ALGORITHMS = "ring,segmented_ring,halving_doubling"
PAUSE = 0.2
"""Seconds of quiet before each, in which queues run empty."""


def child(options: argparse.Namespace) -> None:
    """One host; rank 0 prints what the slowest took in each round."""
    import torch
    import torch.distributed as dist

    from thinwire.wire.sockets import connect

    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], 29513, is_master=rank == 0)
    found: dict[str, list[float]] = {}
    with connect() as comm:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        x = torch.ones(options.numel)
        for turn in range(options.rounds + 1):
            for kind in ["gloo", *options.algorithms.split(",")]:
                time.sleep(PAUSE)
                dist.barrier()
                began = time.perf_counter()
                if kind == "gloo":
                    dist.all_reduce(x)
                else:
                    all_reduce(comm, x, kind)
                took = torch.tensor(time.perf_counter() - began)
                dist.all_reduce(took, dist.ReduceOp.MAX)
                assert x[0] == x[-1] == size, f"{kind} has summed wrongly"
                x.fill_(1)
                if turn:  # the first round warms up
                    found.setdefault(kind, []).append(took.item())
        dist.destroy_process_group()
    if rank == 0:
        print(json.dumps(found), flush=True)


def measured(rate: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of every round, by kind."""
    command = [sys.executable, __file__, "--child", f"--numel={options.numel}"]
    command += [f"--rounds={options.rounds}", f"--algorithms={options.algorithms}"]
    with Lab(options.hosts, rate) as lab:
        processes = lab.start(command, env={"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE)
        text = processes[0].communicate(timeout=1200)[0]
        codes = [process.wait(timeout=60) for process in processes]
    if any(codes):
        raise RuntimeError(f"the hosts ended with codes {codes}")
    return json.loads(text)


def show(rate: str, found: dict[str, list[float]], options: argparse.Namespace) -> None:
    """Print a table."""
    share = 2 * (options.hosts - 1) / options.hosts
    least = 4 * options.numel * share / bytes_per_second(rate)
    title = f"{rate}, {options.hosts} hosts, {options.numel:,} floats; bytes alone {least:.3g} s"
    table = Table(title=title, title_justify="left")
    for heading in ("", "median", "range", "over gloo's"):
        table.add_column(heading, justify="right" if heading else "left")
    gloo = statistics.median(found["gloo"])
    for kind, series in found.items():
        median = statistics.median(series)
        spread = f"{min(series):.3g} to {max(series):.3g} s"
        table.add_row(kind, f"{median:.3g} s", spread, f"{median / gloo:.2f}")
    Console().print(table)


def main() -> int:
    """Exit code 2 when nothing can be measured here."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--links", default="100mbit,1gbit", help="as tc writes them")
    parser.add_argument("--numel", type=int, default=5_824_522, help="elements of 4 bytes")
    parser.add_argument("--algorithms", default=ALGORITHMS, help=f"default: {ALGORITHMS}")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="write every round's seconds here")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options)
        return 0
    for algorithm in options.algorithms.split(","):
        if algorithm not in ALL_REDUCES:
            parser.error(f"--algorithms {algorithm}: valid are {', '.join(ALL_REDUCES)}")
    try:
        [bytes_per_second(rate) for rate in options.links.split(",")]
    except ValueError as error:
        parser.error(f"--links: {error}")
    if options.hosts < 2 or options.numel < 1 or options.rounds < 1:
        parser.error("at least two --hosts, one of --numel and one of --rounds are needed")
    reason = why_not()
    if reason:
        print(f"all_reduce: {reason}; nothing was measured", file=sys.stderr)
        return 2
    print(f"{os.cpu_count()} cores, {platform.platform()}, load {os.getloadavg()[0]:.1f}")
    results: dict[str, Any] = {}
    for rate in options.links.split(","):
        results[rate] = measured(rate, options)
        show(rate, results[rate], options)
    if options.json:
        options.json.write_text(json.dumps({"hosts": options.hosts, "rounds": results}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
