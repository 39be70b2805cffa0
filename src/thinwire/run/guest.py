"""What a worker's process of a script on the virtual cluster does: run the script, as it is."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from types import ModuleType, TracebackType
from typing import NoReturn

import torch

import thinwire.loop  # noqa: F401 - what forked processes share
from thinwire.run._guards import install
from thinwire.run.forks import die_with_starter
from thinwire.wire.virtual.remote import attach, session

__all__ = ["LINE", "main", "run_forked"]

LINE = "THINWIRE_CLOCK"
"""The variable that holds the line's descriptor, the rank and the size."""


def main() -> None:
    """Become `python script arguments`, as a rank of a world, in an interpreter of its own:
    `sys.argv` holds the script and its arguments, the environment the place."""
    die_with_starter(signal.SIGKILL)
    _execute(sys.argv[1:])


def run_forked(place: Mapping[str, str], command: Sequence[str], output: int) -> NoReturn:
    """As `main`, in a copy of another process; ends as an interpreter would end.

    Args:
        place: variables for this process.
        command: the script and its arguments.
        output: descriptor for all that is printed.
    """
    die_with_starter(signal.SIGKILL)
    os.environ.update(place)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, write_through=True)  # pyright: ignore
    atexit._clear()  # what the copied process wants done at its own end
    sys.excepthook = sys.__excepthook__
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdecimal() and int(threads) > 0:  # read when the library is loaded, so long ago
        torch.set_num_threads(int(threads))
    sys.modules["__main__"] = ModuleType("__main__")
    code = _code_of(command)
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()
    sys.modules["__main__"].__dict__.clear()  # closes, and so writes, files that were left open
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def _code_of(command: Sequence[str]) -> int:
    """The script's exit code."""
    try:
        _execute(command)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())  # pyright: ignore[reportArgumentType]
        return 1
    return 0


def _execute(command: Sequence[str]) -> None:
    fd, rank, size = map(int, os.environ.pop(LINE).split(","))
    install(attach(fd, rank, size))
    script = command[0]
    sys.argv = list(command)
    folder = os.path.dirname(os.path.abspath(script))
    sys.path[:1] = [folder]
    names = sys.modules["__main__"].__dict__
    for name in [n for n in names if not n.startswith("__")]:
        del names[name]
    names["__file__"] = script
    names["__builtins__"] = __builtins__
    sys.excepthook = _without_us
    with open(script, "rb") as file:
        code = compile(file.read(), script, "exec", dont_inherit=True)
    exec(code, names)


def _without_us(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """The plain traceback, from the script on; of what another rank has done, only the fact."""
    line = session()
    if line is not None and error is line.lost:
        print(f"{kind.__name__}: {error}", file=sys.stderr)
        return
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, "<string>"):
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)
