"""Processes forked from a server that has imported torch and its optimizers once for all of them.

Torch takes seconds to import, and seconds more with the first optimizer, which loads its compiler.
A pool of fresh interpreters pays that once a process; forked ones share it, in time and in memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext

__all__ = [
    "die_with_starter",
    "end_with_parent",
    "fork_context",
    "load_compiler",
    "start_server",
    "without_interrupts",
]


def start_server() -> None:
    """Begin importing beside this process, if that hasn't begun; returns at once.

    The server ends with this process. It is told here what to import, once; a process has one.
    """
    forkserver.set_forkserver_preload(["thinwire.run._forked"])
    with without_interrupts():
        forkserver.ensure_running()


def fork_context() -> ForkServerContext:
    """The context whose processes are forked from the server, which is started where needed."""
    start_server()
    return multiprocessing.get_context("forkserver")


@contextlib.contextmanager
def without_interrupts() -> Iterator[None]:
    """Ctrl-C reaches all processes of a terminal. Those started within are never to see it: until
    they can say so themselves, importing torch, each would print its own traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_with_starter(how: signal.Signals) -> None:
    """On Linux, have the kernel send this process a signal when the one that started it is gone,
    in the middle of an import or of somebody's own code, too."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, how)  # PR_SET_PDEATHSIG


def load_compiler() -> None:
    """Make an optimizer: with the first one torch loads its compiler, which takes as long as torch
    itself."""
    import torch

    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def end_with_parent() -> None:
    """End this process when the one that asked for it is gone, however that ended.

    Called in a process of the context. Its parent by the kernel is the server, and each process
    keeps the server alive: only the pipe to the one that asked tells.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="thinwire-parent", daemon=True).start()
