"""What a method needs in memory besides the model, its gradients and the optimizer.

    python benchmarks/memory.py [--numel 25557032] [--density 0.001] [--methods gtopk] [--json FILE]

Two processes on this machine train a vector of that size by each method in turn, with random
gradients. Counted is how far a process's resident memory rises above what it holds with parameters,
gradients, momentum and the benchmark's own copy of the gradient, at its highest during the steps,
in units of one flat float32 vector of the model's size. Needs Linux (/proc), no root.

Target: one vector for error feedback and a tenth. DGC keeps two by its nature, velocity and memory;
it takes no momentum from the optimizer, whose vector is then not there.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import sys
from pathlib import Path
from typing import Any

from thinwire.methods import build_method

WARMUP, STEPS = 2, 3
TARGETS = {"topk": 1.1, "gtopk": 1.1, "dgc": 2.1}


def resident(field: str = "VmRSS") -> int:
    """Bytes of memory that this process holds, or has held at most (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"no {field} in /proc/self/status")


def program(rank: int, port: int, numel: int, names: list[str], density: float, out: Any) -> None:
    """One of the two processes."""
    import gc

    import torch

    from _wire_host import plan_of
    from _wire_models import Emulated, Shapes
    from thinwire.flat import Layer
    from thinwire.seeds import generator_for
    from thinwire.wire.sockets import connect
    from thinwire.worker import Worker

    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2",
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))  # fmt: skip
    shapes = Shapes((Layer("all", 0, numel, (numel,)),), (0,), (1.0,))
    grad = torch.randn(numel, generator=generator_for(0, "gradient", rank))
    found = {}
    with connect() as comm:
        for name in names:
            settings = {} if name in ("ssgd", "powersgd") else {"density": str(density)}
            method = build_method(name, settings)
            for before in (True, False):  # the first time loads code, too
                body = Emulated(shapes, grad, 0.0, plan_of(method, 2, WARMUP + STEPS), comm)
                body.apply(body.gradient(body.next_batch(0, None)))  # momentum exists
                gc.collect()
                Path("/proc/self/clear_refs").write_text("5")  # the highest so far begins here
                base = resident()
                method.worker(Worker(comm, body))
                found[name] = (resident("VmHWM") - base) / (4 * numel)
                del body
                gc.collect()
                assert before or found[name] > 0
    out.put((rank, found))


def measure(numel: int, names: list[str], density: float) -> dict[str, float]:
    """Vectors by method, of the process that needed more."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    out = context.SimpleQueue()
    processes = [
        context.Process(target=program, args=(rank, port, numel, names, density, out), daemon=True)
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=600)
    if any(process.exitcode for process in processes):
        raise RuntimeError(f"the processes ended with {[p.exitcode for p in processes]}")
    found = [out.get()[1] for _ in processes]
    return {name: max(each[name] for each in found) for name in names}


def main() -> int:
    """Exit code 1 when a method with a target needs more."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--numel", type=int, default=25_557_032, help="parameters")
    parser.add_argument("--density", type=float, default=0.001)
    parser.add_argument("--methods", default="ssgd,topk,gtopk,oktopk,dgc")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    if not sys.platform.startswith("linux"):
        print("memory: needs Linux", file=sys.stderr)
        return 2
    found = measure(options.numel, options.methods.split(","), options.density)
    print(f"{options.numel} parameters, density {options.density:g}; vectors of "
          f"{4e-6 * options.numel:.0f} MB beyond model, gradient and momentum\n")  # fmt: skip
    print("| method | vectors | target | |\n| --- | --- | --- | --- |")
    missed = False
    for name, vectors in found.items():
        target = TARGETS.get(name)
        missed |= target is not None and vectors > target
        said = "" if target is None else "met" if vectors <= target else "MISSED"
        print(f"| {name} | {vectors:.2f} | {target or '–'} | {said} |")
    if options.json:
        options.json.write_text(json.dumps({**vars(options), "json": "", "vectors": found}))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
