"""What a method needs in memory besides the model, its gradients and the optimizer.

    python benchmarks/memory.py [--numel 25557032] [--density 0.001] [--methods gtopk] [--json FILE]

Two processes on this machine train a vector of that size by each method in turn, with random
gradients. Counted is how far a process's resident memory rises above what it holds with parameters,
gradients, momentum and the benchmark's own copy of the gradient, at its highest during the steps,
in units of one flat float32 vector of the model's size. Needs Linux (/proc), no root.

A method that has momentum itself (DGC) needs an optimizer without: its velocity then stands in the
place of the vector that the optimizer keeps with all other methods. The table says how much of a
method's memory that is, and what remains beyond model, gradients and optimizer.

Target: one vector for error feedback and a tenth, beyond those three.
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
TARGETS = {"topk": 1.1, "gtopk": 1.1, "dgc": 1.1}


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
                worker = Worker(comm, body)
                method.worker(worker)
                whole = (resident("VmHWM") - base) / (4 * numel)
                found[name] = {
                    "whole": whole,
                    "instead": velocity_of(method, worker) / (4 * numel),
                    "optimizer": optimizer_of(body) / (4 * numel),
                }
                del body, worker
                gc.collect()
                assert before or whole > 0
    out.put((rank, found))


def velocity_of(method: Any, worker: Any) -> int:
    """Bytes of the momentum that a method keeps instead of the optimizer."""
    return worker.state.velocity.nbytes if method.traits.momentum == "method" else 0


def optimizer_of(body: Any) -> int:
    """Bytes of the vectors that the optimizer keeps for the parameters."""
    states = body._optimizer.state.values()
    return sum(t.nbytes for state in states for t in state.values() if hasattr(t, "nbytes"))


def measure(numel: int, names: list[str], density: float) -> dict[str, dict[str, float]]:
    """Vectors by method, of the process that needed more: what the method keeps, how much of it in
    the place of the optimizer's momentum, what is beyond that, and what the optimizer keeps."""
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
    worst = {name: max((each[name] for each in found), key=lambda f: f["whole"]) for name in names}
    return {name: {**f, "beyond": f["whole"] - f["instead"]} for name, f in worst.items()}


def show(found: dict[str, dict[str, float]]) -> bool:
    """Print the table; whether a method with a target needs more."""
    print("| method | optimizer keeps | method keeps | of which instead of the optimizer's "
          "momentum | beyond both | target | |")  # fmt: skip
    print("| --- " * 7 + "|")
    missed = False
    for name, vectors in found.items():
        target, beyond = TARGETS.get(name), vectors["beyond"]
        missed |= target is not None and beyond > target
        said = "" if target is None else "met" if beyond <= target else "MISSED"
        instead = f"{vectors['instead']:.2f}" if vectors["instead"] else "–"
        print(f"| {name} | {vectors['optimizer']:.2f} | {vectors['whole']:.2f} | {instead} | "
              f"{beyond:.2f} | {target or '–'} | {said} |")  # fmt: skip
    return missed


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
    print(f"{options.numel} parameters, density {options.density:g}; in vectors of "
          f"{4e-6 * options.numel:.0f} MB, besides model and gradients\n")  # fmt: skip
    missed = show(found)
    if options.json:
        options.json.write_text(json.dumps({**vars(options), "json": "", "vectors": found}))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
