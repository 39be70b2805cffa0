"""The processes of a script on the virtual cluster: started, labelled, and none left behind."""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import BinaryIO, Protocol

import torch

from thinwire.run.forks import load_compiler
from thinwire.run.guest import LINE, run_forked

__all__ = ["Processes"]

_GRACE = 5.0
"""Seconds that the others get to end by themselves when one has failed."""


_LARGE = ("PIL", "matplotlib", "numpy", "pandas", "scipy", "sklearn", "torchvision")


class _Child(Protocol):
    pid: int

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, negative for a signal; raises subprocess.TimeoutExpired."""
        ...


class _Forked:
    """A copy of this process that runs a function and ends.

    Torch takes seconds to import, and its first optimizer seconds more: copies share that, in time
    and in memory.
    """

    def __init__(self, pid: int):
        self.pid = pid
        self._code: int | None = None
        self._ends = os.pidfd_open(pid)

    def wait(self, timeout: float | None = None) -> int:
        """See `_Child`."""
        if self._code is None:
            poll = select.poll()
            poll.register(self._ends, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired("a rank", timeout or 0.0)
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._ends)
        return self._code


class Processes:
    """The workers' processes, from their start until none is left; use it in a `with` block.

    Args:
        command: the script and its arguments.
        size: how many.
        folder: where each one's output is kept, as rank-R.log.

    Attributes:
        lines: the server's end of each one's line.
    """

    def __init__(self, command: Sequence[str], size: int, folder: Path):
        self.lines: list[socket.socket] = []
        self._command = command
        self._size = size
        self._folder = folder
        self._children: list[_Child] = []
        self._outputs: list[int] = []
        self._printing = threading.Lock()
        self._output: threading.Thread | None = None

    def __enter__(self) -> Processes:
        self._before = signal.signal(signal.SIGTERM, _stop)
        try:
            if _may_fork():
                load_compiler()
                _preload(Path(self._command[0]))
            fork = _may_fork()  # still
            if fork:
                gc.freeze()
            for rank in range(self._size):
                self._start(rank, fork)
            if fork:
                gc.unfreeze()
        except BaseException:
            self._end_all()
            raise
        self._output = threading.Thread(target=self._gather, name="thinwire-output", daemon=True)
        self._output.start()
        return self

    def _start(self, rank: int, fork: bool) -> None:
        ours, theirs = socket.socketpair()
        reading, writing = os.pipe()
        self.lines.append(ours)
        self._outputs.append(reading)
        place = _place(rank, self._size, theirs.fileno())
        start = self._fork if fork else self._spawn
        self._children.append(start(place, theirs, writing))
        theirs.close()
        os.close(writing)

    def _spawn(self, place: Mapping[str, str], line: socket.socket, output: int) -> _Child:
        guest = "from thinwire.run.guest import main; main()"
        return subprocess.Popen(
            [sys.executable, "-c", guest, *self._command],
            env={**os.environ, **place},
            pass_fds=(line.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,
        )

    def _fork(self, place: Mapping[str, str], line: socket.socket, output: int) -> _Child:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            os.setpgid(pid, pid)
            return _Forked(pid)
        try:
            with contextlib.suppress(OSError):  # the parent may have done it
                os.setpgid(0, 0)
            for other in self.lines:
                other.close()
            for other in self._outputs:
                os.close(other)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            run_forked(place, self._command, output)
        finally:
            os._exit(70)  # not reached: `run_forked` ends the process

    def how_ended(self, rank: int) -> str:
        """Words for a process whose line has ended, see `ClockServer`."""
        try:
            code = self._children[rank].wait(_GRACE)
        except subprocess.TimeoutExpired:
            return "has closed its line to the clock server, but runs on"
        if code == 0:
            return ""
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def _log(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}.log"

    def join(self) -> None:
        """Wait until every process has ended and its output has been shown."""
        for child in self._children:
            child.wait()
        if self._output is not None:
            self._output.join(_GRACE)

    def say(self, text: str) -> None:
        """A line of our own between the ranks'."""
        with self._printing:
            print(f"thinwire: {text}", file=sys.stderr, flush=True)

    def _gather(self) -> None:
        """Label what the ranks print, and keep it for each."""
        selector = selectors.DefaultSelector()
        with contextlib.ExitStack() as stack:
            for rank, output in enumerate(self._outputs):
                log = stack.enter_context(self._log(rank).open("wb"))
                selector.register(output, selectors.EVENT_READ, _Lines(rank, log))
            while selector.get_map():
                for key, _ in selector.select():
                    data = os.read(key.fd, 1 << 16)
                    text = key.data.feed(data)
                    if text:
                        with self._printing:
                            sys.stdout.write(text)
                            sys.stdout.flush()
                    if not data:
                        selector.unregister(key.fd)
                        os.close(key.fd)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if isinstance(error, Exception):
                self._let_end()
        finally:
            self._end_all()
        if self._output is not None:
            self._output.join(_GRACE)
        signal.signal(signal.SIGTERM, self._before)

    def _let_end(self) -> None:
        until = time.monotonic() + _GRACE
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, until - time.monotonic()))

    def _end_all(self) -> None:
        """End every process and what it has started itself."""
        for child in self._children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
        for child in self._children:
            child.wait()


class _Lines:
    """What a rank prints, cut into lines."""

    def __init__(self, rank: int, log: BinaryIO):
        self._rank = rank
        self._log = log
        self._rest = b""

    def feed(self, data: bytes) -> str:
        """Whole labelled lines; at the end (no data) the rest, too."""
        self._log.write(data)
        self._log.flush()
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not data and self._rest:
            lines.append(self._rest)
        return "".join(f"[{self._rank}] {line.decode(errors='replace')}\n" for line in lines)


def _place(rank: int, size: int, line: int) -> dict[str, str]:
    """What a process is told of its place, as torchrun would say it."""
    place = {
        LINE: f"{line},{rank},{size}",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
        "PYTHONUNBUFFERED": "1",
    }
    if size > 1 and "OMP_NUM_THREADS" not in os.environ:
        place["OMP_NUM_THREADS"] = "1"  # torchrun's rule: equal bits need equal threads
    return place


def _preload(script: Path) -> None:
    """Import what the script will, of the large libraries that do nothing else when imported."""
    try:
        tree = ast.parse(script.read_bytes())
    except SyntaxError:
        return  # each rank will say so
    for node in tree.body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in names:
            if name.split(".")[0] in _LARGE:
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)


def _may_fork() -> bool:
    """Whether copies of this process will work: one thread, and no accelerator begun with."""
    tasks = Path("/proc/self/task")
    if not tasks.is_dir() or len(list(tasks.iterdir())) > 1:
        return False
    return hasattr(os, "pidfd_open") and not torch.accelerator.is_available()


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
