"""Processes forked from a server that has imported torch and its optimizers once for all of them.

Torch takes seconds to import, and seconds more with the first optimizer, which loads its compiler.
A pool of fresh interpreters pays that once a process; forked ones share it, in time and in memory.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext

__all__ = ["end_with_parent", "fork_context", "start_server", "without_interrupts"]


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
