"""How fast the real wire is: against gloo's send and recv, and against bare TCP, in one run.

    python benchmarks/wire_latency.py [--json FILE] [--rounds 41]

Two processes open all three and take turns in short rounds, so that whatever else the machine does
hits all alike. A round trip is a packet of 64 bytes there and back, from one main thread to the
other's and back, through everything the library does. Throughput is 10 MB one way and a small
answer. Printed are the medians over the rounds' medians and the quartiles between rounds, on the
loopback and, as root on Linux, between two network namespaces behind 1 Gbit/s links.

Targets: a round trip of at most half of gloo's, and on the shaped link at least 0.9 of bare TCP's
throughput.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from netns import Lab, why_not

SMALL = 16
LARGE = 2_500_000
LARGE_BYTES = 4 * LARGE


def child(rounds: int, num_small: int, num_large: int) -> None:
    """One of the two processes; rank 0 prints what it measured."""
    import torch
    import torch.distributed as dist

    from thinwire.wire.sockets import connect

    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["BENCH_PORT"]), is_master=rank == 0
    )
    with connect() as comm:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
        kinds = {
            "bare TCP": _tcp(rank, store),
            "gloo": _gloo(dist, torch, rank),
            "thinwire": _comm(comm, torch),
        }
        found: dict[str, dict[str, list[float]]] = {
            kind: {"round_trip": [], "throughput": []} for kind in kinds
        }
        for turn in range(rounds + 1):
            for kind, (ping, transfer) in kinds.items():
                small = statistics.median(ping() for _ in range(num_small))
                large = statistics.median(transfer() for _ in range(num_large))
                if turn:  # the first round warms up
                    found[kind]["round_trip"].append(small)
                    found[kind]["throughput"].append(LARGE_BYTES / large)
        if rank == 0:
            print(json.dumps(found), flush=True)
        dist.destroy_process_group()


Pair = tuple[Callable[[], float], Callable[[], float]]


def _timed(action: Callable[[], None]) -> Callable[[], float]:
    def run() -> float:
        began = time.perf_counter()
        action()
        return time.perf_counter() - began

    return run


def _tcp(rank: int, store: Any) -> Pair:
    if rank == 0:
        with socket.create_server((os.environ["BENCH_HOST"], 0)) as server:
            store.set("tcp", str(server.getsockname()[1]))
            sock, _ = server.accept()
    else:
        sock = socket.create_connection((os.environ["MASTER_ADDR"], int(store.get("tcp"))))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    small, large = bytearray(4 * SMALL), bytearray(LARGE_BYTES)

    def receive(buffer: bytearray) -> None:
        view, filled = memoryview(buffer), 0
        while filled < len(buffer):
            filled += sock.recv_into(view[filled:])

    def exchange(there: bytearray) -> None:
        if rank == 0:
            sock.sendall(there)
            receive(small)
        else:
            receive(there)
            sock.sendall(small)

    return _timed(lambda: exchange(small)), _timed(lambda: exchange(large))


def _gloo(dist: Any, torch: Any, rank: int) -> Pair:
    small, large = torch.zeros(SMALL), torch.zeros(LARGE)

    def exchange(there: Any) -> None:
        if rank == 0:
            dist.send(there, 1)
            dist.recv(small, 1)
        else:
            dist.recv(there, 0)
            dist.send(small, 0)

    return _timed(lambda: exchange(small)), _timed(lambda: exchange(large))


def _comm(comm: Any, torch: Any) -> Pair:
    from thinwire.wire import Packet

    small, large = Packet((torch.zeros(SMALL),)), Packet((torch.zeros(LARGE),))

    def exchange(there: Packet) -> None:
        if comm.rank == 0:
            comm.post(1, there)
            comm.wait(1)
        else:
            comm.wait(0)
            comm.post(0, small)

    return _timed(lambda: exchange(small)), _timed(lambda: exchange(large))


def on_loopback(arguments: list[str]) -> dict[str, Any]:
    """The two processes on this host."""
    ports = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            ports.append(str(probe.getsockname()[1]))
    place = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": ports[0],
        "BENCH_PORT": ports[1],
        "BENCH_HOST": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "--child", *arguments],
            env={**os.environ, **place, "RANK": str(rank)},
            stdout=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    return _results(processes)


def on_link(arguments: list[str], rate: str) -> dict[str, Any]:
    """The two processes on two namespaces behind shaped links."""
    with Lab(2, rate) as lab:
        env = {"BENCH_PORT": "29512", "BENCH_HOST": lab.address(0), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--child", *arguments]
        return _results(lab.start(command, env=env, stdout=subprocess.PIPE))


def _results(processes: list[subprocess.Popen[bytes]]) -> dict[str, Any]:
    text = processes[0].communicate(timeout=600)[0]
    codes = [process.wait(timeout=60) for process in processes]
    if any(codes):
        raise RuntimeError(f"the processes ended with codes {codes}")
    return json.loads(text)


def show(console: Console, where: str, found: dict[str, Any]) -> dict[str, float]:
    """Print a table; returns the two ratios of the targets."""
    table = Table(title=where, title_justify="left")
    for heading in ("", "round trip (quartiles)", "10 MB one way (quartiles)"):
        table.add_column(heading, justify="right" if heading else "left")
    for kind, values in found.items():
        trip = [f"{1e6 * v:.0f}" for v in _quartiles(values["round_trip"])]
        rate = [f"{v / 1e6:.0f}" for v in _quartiles(values["throughput"])]
        table.add_row(
            kind,
            f"{trip[1]} µs ({trip[0]} to {trip[2]})",
            f"{rate[1]} MB/s ({rate[0]} to {rate[2]})",
        )
    console.print(table)
    median = {
        kind: {name: statistics.median(series) for name, series in values.items()}
        for kind, values in found.items()
    }
    ratios = {
        "round trip / gloo's": median["thinwire"]["round_trip"] / median["gloo"]["round_trip"],
        "throughput / bare TCP's": (
            median["thinwire"]["throughput"] / median["bare TCP"]["throughput"]
        ),
    }
    console.print("   ".join(f"{name} {value:.2f}" for name, value in ratios.items()) + "\n")
    return ratios


def _quartiles(series: list[float]) -> list[float]:
    return statistics.quantiles(series, n=4) if len(series) > 1 else series * 3


def main() -> int:
    """Exit code 0 when both targets are met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--small", type=int, default=200, help="round trips in a round")
    parser.add_argument("--large", type=int, default=3, help="transfers of 10 MB in a round")
    parser.add_argument("--rate", default="1gbit", help="of the shaped link, as tc writes it")
    parser.add_argument("--json", type=Path, help="write every round's numbers here")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.rounds, options.small, options.large)
        return 0
    arguments = [f"--{name}={getattr(options, name)}" for name in ("rounds", "small", "large")]
    console = Console()
    console.print(
        f"{os.cpu_count()} cores, {platform.platform()}, Python {platform.python_version()}, "
        f"load {os.getloadavg()[0]:.1f}\n"
    )
    found = {"loopback": on_loopback(arguments)}
    ratios = {"loopback": show(console, "loopback", found["loopback"])}
    reason = why_not()
    if reason:
        console.print(f"no shaped link: {reason}")
    else:
        found[options.rate] = on_link(arguments, options.rate)
        where = f"two namespaces behind {options.rate} links"
        ratios[options.rate] = show(console, where, found[options.rate])
    if options.json:
        options.json.write_text(json.dumps({"rounds": found, "ratios": ratios}, indent=1))
    met = ratios["loopback"]["round trip / gloo's"] <= 0.5
    if options.rate in ratios:
        met = met and ratios[options.rate]["throughput / bare TCP's"] >= 0.9
    console.print(
        f"targets (round trip ≤ 0.5, throughput on the link ≥ 0.9): {'met' if met else 'missed'}"
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
