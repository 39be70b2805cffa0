"""Runs on a remote host, sent there as text: starts a command and sees that nothing of it stays.

It needs nothing but Python's own library. It ends the command when its own standard input closes:
that is how the other end says stop, and what happens when the connection is lost.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time

__all__ = ["keep"]

_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def keep(text: str) -> None:
    """Run a command to its end, or to that of standard input.

    Args:
        text: JSON of marker, command, workdir, env and grace (seconds between asking and killing).
    """
    order = json.loads(text)
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans come to this process
    for number in _ENDINGS:
        signal.signal(number, _stop)
    print(order["marker"], flush=True)
    try:
        if order["workdir"]:
            os.chdir(os.path.expanduser(order["workdir"]))
        child = subprocess.Popen(
            order["command"],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **order["env"]},
            start_new_session=True,
        )
    except OSError as error:
        print(f"cannot start {order['command'][0]} in {os.getcwd()}: {error}", file=sys.stderr)
        sys.exit(127)
    try:
        _until_either_ends(child)
    finally:
        _end(child, order["grace"])
    code = child.wait()
    sys.exit(code if code >= 0 else 128 - code)


def _stop(number: int, _frame: object) -> None:
    for ending in _ENDINGS:
        signal.signal(ending, signal.SIG_IGN)  # the end itself is not to be cut short
    sys.exit(128 + number)


def _until_either_ends(child: subprocess.Popen[bytes]) -> None:
    while child.poll() is None:
        ready, _, _ = select.select([0], [], [], 0.1)
        if ready and not os.read(0, 4096):
            return


def _end(child: subprocess.Popen[bytes], grace: float) -> None:
    """Ask the command to end, then kill whatever is left below this process."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGTERM)  # torchrun passes it on to its workers
    else:
        _signal(_below(), signal.SIGTERM)
    until = time.monotonic() + grace
    while (child.poll() is None or _below()) and time.monotonic() < until:
        time.sleep(0.05)
    until = time.monotonic() + 5
    while (left := _below()) and time.monotonic() < until:
        _signal(left, signal.SIGKILL)
        time.sleep(0.05)
        child.poll()


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _below() -> list[int]:
    """Living processes below this one."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    state, parent = file.read().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(name))
    found, todo = [], [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found
