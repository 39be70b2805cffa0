"""A node's computing power, shared by whatever runs on it at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from thinwire.cluster import Node
from thinwire.wire.base import Work
from thinwire.wire.virtual.clock import NS, Clock

__all__ = ["Job", "Processor", "at_memory_rate", "seconds_of"]


def seconds_of(work: Work, node: Node) -> float:
    """Seconds that `work` takes on `node` alone, before its speed trace and jitter."""
    seconds = work.elapsed * node.slowdown
    if work.flops:
        seconds += work.flops / node.rate
    if work.memory_bytes:
        seconds += work.memory_bytes * node.slowdown / node.memory_rate
    return seconds


def at_memory_rate(work: Work, node: Node) -> Work:
    """The same work with as many bytes as take as long at the node's memory rate."""
    if work.kind not in node.kernel_rates:
        return work
    return Work(work.flops, work.memory_bytes * node.passes(work.kind), work.elapsed)


class Job:
    """Work on its way through a node."""

    __slots__ = ("done", "factor", "remaining")

    def __init__(self, remaining: float, done: Callable[[Any], None], factor: float):
        self.remaining = remaining  # seconds at full speed, alone
        self.done = done
        self.factor = factor  # of jitter


class Processor:
    """One node: its jobs share it equally (processor sharing), its speed follows the trace.

    A co-located server, a started task or a codec therefore slows the training step beside it, and
    is slowed by it.

    Attributes:
        prices: seconds of an operation, of a byte of memory traffic and of a second elsewhere.
    """

    def __init__(self, clock: Clock, node: Node, rng: np.random.Generator):
        self.node = node
        self.busy_ns = 0
        self.prices = 1 / node.rate, node.slowdown / node.memory_rate, node.slowdown
        self._clock = clock
        self._rng = rng
        self._jobs: list[Job] = []
        self._since = 0
        self._version = 0

    def submit(self, work: Work, done: Callable[[Any], None], before: Job | None = None) -> Job:
        """Run `work` from now on; `done(None)` is called at the virtual time it is finished.

        Args:
            work: what is to be done.
            done: called at its end.
            before: a job that has finished right now and is continued, as if its work had been so
                much more from the beginning: with the same jitter, and rounded once.
        """
        seconds = seconds_of(work, self.node)
        factor, left = 1.0, 0.0
        if before is not None:
            factor, left = before.factor, before.remaining
        elif self.node.jitter > 0:
            sigma = math.sqrt(math.log1p(self.node.jitter**2))
            factor = float(self._rng.lognormal(-sigma * sigma / 2, sigma))
        self._advance()
        job = Job(seconds * factor + left, done, factor)
        self._jobs.append(job)
        self._plan()
        return job

    def _advance(self) -> None:
        now = self._clock.now
        if self._jobs and now > self._since:
            self.busy_ns += now - self._since
            share = self._progress(self._since, now) / len(self._jobs)
            for job in self._jobs:
                job.remaining -= share
        self._since = now

    def _progress(self, start: int, end: int) -> float:
        """Seconds of nominal work done from `start` to `end` ns."""
        trace = self.node.speed
        if trace is None:
            return (end - start) / NS
        done, time = 0.0, start
        while time < end:
            change = trace.next_change(time / NS)
            until = end if change is None else min(end, max(time + 1, round(change * NS)))
            done += trace.at(time / NS) * (until - time) / NS
            time = until
        return done

    def _plan(self) -> None:
        """Schedule the next completion; an earlier plan becomes void."""
        self._version += 1
        if not self._jobs:
            return
        least = max(0.0, min(job.remaining for job in self._jobs)) * len(self._jobs)
        now, trace = self._clock.now, self.node.speed
        if trace is None:
            end = now + math.ceil(least * NS)
        else:
            finish = trace.finish(now / NS, least)
            if math.isinf(finish):
                return
            end = max(now, math.ceil(finish * NS))
        self._clock.at(end, self._complete, self._version)

    def _complete(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        # Rounding to whole nanoseconds leaves up to one of them unfinished or overdone.
        limit = 1e-9 * len(self._jobs)
        finished = [job for job in self._jobs if job.remaining <= limit]
        if not finished:
            finished = [min(self._jobs, key=lambda job: job.remaining)]
        self._jobs = [job for job in self._jobs if job not in finished]
        self._plan()
        for job in finished:
            job.done(None)
