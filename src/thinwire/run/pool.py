"""Runs jobs in a few processes beside this one, each appending to its own part of the record.

A process that is killed, or a terminal that goes away, takes nothing with it but the runs that were
not finished: every line is already in its file.
"""

from __future__ import annotations

import itertools
import signal
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue
from pathlib import Path

from thinwire.errors import ThinwireError
from thinwire.run.experiment import Job, run_virtual
from thinwire.run.forks import end_with_parent, fork_context, without_interrupts
from thinwire.tasks import Task

__all__ = ["Failure", "run_jobs"]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A job that did not end well: its run id, and why."""

    run: str
    reason: str


@dataclass
class _Process:
    """What a pool process keeps between jobs."""

    folder: Path
    part: int
    task: Task | None = None


_PROCESS: _Process | None = None


def run_jobs(
    jobs: list[Job],
    make_task: Callable[[], Task],
    folder: Path,
    processes: int,
    watch: Callable[[], None],
) -> list[Failure]:
    """Run all jobs; `watch` is called a few times a second meanwhile.

    Args:
        jobs: in the order in which they are begun.
        make_task: pickled to each process and called there once.
        folder: the run folder; parts are numbered after those that exist.
        processes: at most this many at a time, 1 or more.
        watch: for a display; may raise, which ends the processes.

    Returns:
        The jobs that failed; the others are in the record.
    """
    context = fork_context()
    numbers: SimpleQueue[int] = context.SimpleQueue()
    first = _first_free_part(folder)
    workers = max(1, min(processes, len(jobs)))
    for part in range(first, first + workers):
        numbers.put(part)
    pool = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(folder, numbers))
    with without_interrupts():
        futures = {pool.submit(_run, job, make_task): job for job in jobs}
    try:
        for _ in _pending(futures):
            watch()
    except BaseException:
        for process in list((pool._processes or {}).values()):  # None once it has broken
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    pool.shutdown()
    watch()
    outcomes = ((job, _outcome(future)) for future, job in futures.items())
    return [Failure(run=job.run, reason=reason) for job, reason in outcomes if reason]


def _pending(futures: dict[Future[str], Job]) -> Iterator[None]:
    todo = set(futures)
    while todo:
        _, todo = wait(todo, timeout=0.2)
        yield


def _outcome(future: Future[str]) -> str:
    try:
        return future.result()
    except BrokenProcessPool:
        return "its process was killed (out of memory?); run with --processes 1"


def _first_free_part(folder: Path) -> int:
    for part in itertools.count(1):
        if not (folder / f"record-{part}.jsonl").exists():
            return part
    raise AssertionError


def _begin(folder: Path, numbers: SimpleQueue[int]) -> None:
    global _PROCESS
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process decides
    end_with_parent()
    _PROCESS = _Process(folder, numbers.get())


def _run(job: Job, make_task: Callable[[], Task]) -> str:
    """Run one job; the reason why it failed, or ""."""
    import torch

    from thinwire.report import Recorder

    assert _PROCESS is not None
    torch.set_num_threads(job.train.threads or 1)  # there are as many processes as cores
    if _PROCESS.task is None:
        _PROCESS.task = make_task()
    with Recorder(_PROCESS.folder, _PROCESS.part) as recorder:
        try:
            run_virtual(job, _PROCESS.task, recorder.write)
        except ThinwireError as error:
            return "\n".join([str(error), *_own_trace(error)])
        except Exception:
            return traceback.format_exc()
    return ""


def _own_trace(error: ThinwireError) -> list[str]:
    """The traceback of the user's own exception, where one is the cause."""
    cause = error.__cause__
    if cause is None or isinstance(cause, ThinwireError):
        return []
    return ["".join(traceback.format_exception(cause)).rstrip()]
