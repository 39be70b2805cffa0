"""Several processes of the doctor, or of the probe, on this machine, without a launcher."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from thinwire.run.forks import without_interrupts

__all__ = ["start_processes"]

_SETTLE = 5.0


def start_processes(count: int, arguments: Sequence[str], farewell: float = 0.0) -> int:
    """Run `thinwire` with these arguments in `count` processes; the exit code of rank 0.

    Args:
        count: 2 or more.
        arguments: of the command line, from the verb on, without the number of processes.
        farewell: seconds that rank 0 has, when this process is interrupted, to keep what it has.
    """
    environment = {
        **os.environ,
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
    }
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    command = [sys.executable, "-m", "thinwire", *arguments]
    children: list[subprocess.Popen[bytes]] = []
    try:
        with without_interrupts():
            for rank in range(count):
                place = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                children.append(subprocess.Popen(command, env={**environment, **place}))
        code = children[0].wait()
        until = time.monotonic() + _SETTLE
        for child in children[1:]:
            try:
                child.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                break
        return code if code >= 0 else 1
    except KeyboardInterrupt:
        if farewell and children:
            children[0].terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                children[0].wait(farewell)
        raise
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
