"""Run a program in several processes that meet as a launcher would make them meet.

    def program(rank, size):
        with connect() as comm:
            ...
            return result

    results = run_processes(program, 4)

torch is imported once, in a server process from which the others are forked, so a group starts in
well under a second. The caller hosts the store: no port has to be guessed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from thinwire.errors import InputError
from thinwire.run.forks import fork_context

__all__ = ["Ended", "run_processes"]

_modules: dict[str, Any] = {}


@dataclass(frozen=True)
class Ended:
    """A process that ended without a result: its exit code, negative for a signal; None where it
    had to be killed at the deadline."""

    code: int | None


def run_processes(
    program: Callable[..., Any],
    size: int,
    *args: Any,
    deadline: float = 60.0,
    env: Mapping[str, str] | None = None,
    env_of: Sequence[Mapping[str, str]] | None = None,
    ranks: Sequence[int] | None = None,
) -> list[Any]:
    """Run `program(rank, size, *args)` in `size` processes, to their ends.

    Args:
        program: a function at the top of a module's file; it is found there by name.
        size: the world size that all are told.
        args: must be picklable.
        deadline: seconds; what still runs then is killed.
        env: variables for all processes.
        env_of: variables of each process.
        ranks: only these of the `size` are started.

    Returns:
        What each process returned; the exception that it raised; or `Ended` where it was killed.
    """
    name, file = program.__qualname__, inspect.getsourcefile(program)
    if file is None or "." in name:
        raise InputError(f"program {name!r} must be a function at the top of a module's file")
    context = fork_context()
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    children: list[tuple[Any, Connection]] = []
    try:
        for i, rank in enumerate(range(size) if ranks is None else ranks):
            place = {
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(store.port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                **(env or {}),
                **(env_of[i] if env_of else {}),
            }
            ours, theirs = context.Pipe(duplex=False)
            child = context.Process(
                target=_child, args=(theirs, place, file, name, (rank, size, *args))
            )
            child.start()
            theirs.close()
            children.append((child, ours))
        return _collect(children, time.monotonic() + deadline)
    finally:
        for child, ours in children:
            if child.is_alive():
                child.kill()
            child.join()
            ours.close()


def _collect(children: list[tuple[Any, Connection]], until: float) -> list[Any]:
    results: list[Any] = [Ended(None)] * len(children)
    open_ones = {ours: i for i, (_, ours) in enumerate(children)}
    while open_ones:
        ready = wait(list(open_ones), max(0.0, until - time.monotonic()))
        if not ready:
            return results
        for ours in ready:
            i = open_ones.pop(ours)  # pyright: ignore[reportArgumentType]
            child = children[i][0]
            try:
                results[i] = _unpack(ours.recv_bytes())  # pyright: ignore[reportAttributeAccessIssue]
            except EOFError:
                child.join(max(0.0, until - time.monotonic()))
                results[i] = Ended(child.exitcode)
    for child, _ in children:
        child.join(max(0.0, until - time.monotonic()))
    return results


def _child(
    pipe: Connection, place: dict[str, str], file: str, name: str, args: tuple[Any, ...]
) -> None:
    os.environ.update(place)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # as in a process of its own
    try:
        data = _pack(getattr(_load(file), name)(*args))
    except BaseException as error:
        traceback.print_exc()
        data = _pack(error)
    with contextlib.suppress(BrokenPipeError):
        pipe.send_bytes(data)


def _pack(outcome: Any) -> bytes:
    """An outcome as bytes. Exceptions by their parts: those with arguments of their own would not
    come out of pickle again."""
    try:
        if isinstance(outcome, BaseException):
            parts = (type(outcome), outcome.args, vars(outcome))
            return pickle.dumps((True, parts))
        return pickle.dumps((False, outcome))
    except Exception as error:
        return pickle.dumps((True, (RuntimeError, (f"{error}: {outcome!r}",), {})))


def _unpack(data: bytes) -> Any:
    raised, outcome = pickle.loads(data)
    if not raised:
        return outcome
    kind, args, attributes = outcome
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


def _load(file: str) -> Any:
    """The module of a file, which need not be importable by name."""
    found = _modules.get(file)
    if found is None:
        name = f"_program_{Path(file).stem}"
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        found = _modules[file] = importlib.util.module_from_spec(spec)
        sys.modules[name] = found
        spec.loader.exec_module(found)
    return found
