"""Started programs of the real wire, and what all programs of a process share."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from thinwire.errors import DeadlineError, PeerDiedError
from thinwire.fibers import FiberExit, refuse_in_backward
from thinwire.phases import Phases
from thinwire.wire._loop import Waiter
from thinwire.wire._station import Station
from thinwire.wire._stop import GRACE, StopHandler
from thinwire.wire.base import Comm, Task, Work
from thinwire.wire.faults import FaultPlan

if TYPE_CHECKING:
    from thinwire.wire._socket_comm import SocketComm

__all__ = ["Run", "SocketTask"]

logger = logging.getLogger("thinwire.wire")


class Run:
    """What the endpoints and tasks of a process share."""

    def __init__(
        self,
        station: Station,
        deadline: float,
        warn_after: float,
        faults: FaultPlan | None,
        spend: Callable[[Work], float] | None,
        store: Any,
    ):
        self.station = station
        self.loop = station.loop
        self.deadline = deadline
        self.warn_after = warn_after
        self.faults = faults
        self.spend = spend
        self.store = store
        self.tasks: dict[SocketTask, None] = {}  # that run, or have failed
        self.closed = False
        self.warned = False
        self.encode = msgspec.msgpack.Encoder().encode
        self.stop = StopHandler(
            blocked=lambda: station.loop.driving,
            known=lambda: station.loss is not None or station.broken is not None,
            interrupt=station.loop.interrupt,
            error=self.stopped_error,
        )

    @property
    def phases(self) -> Phases:
        """Of the process's own program."""
        return self.station.endpoints[self.station.rank].meter.phases

    def stopped_error(self) -> BaseException:
        """What ends a process that was told to stop."""
        station = self.station
        me = f"rank {station.rank}, step {station.endpoints[station.rank].step}"
        if station.loss is not None:
            return PeerDiedError(station.loss.rank, f"{station.loss.text}; {me} was told to stop")
        return SystemExit(
            f"thinwire: {me} was told to stop (SIGTERM); no rank is known to have died"
        )

    def warn(self, text: str) -> None:
        """Log a stall; the first of a process is printed too, wherever the log may go."""
        logger.warning("%s", text)
        if logger.hasHandlers() and not self.warned:
            print(f"thinwire: {text}", file=sys.stderr, flush=True)
        self.warned = True

    def block(self, waiter: Waiter, until: float) -> None:
        """`Loop.block`, minding SIGTERM when the caller is the program."""
        if waiter.fiber is None and self.stop.since is not None:
            if self.stop.expired():
                raise self.stopped_error()
            until = min(until, self.stop.since + GRACE)
        self.loop.block(waiter, until)
        if waiter.fiber is None and self.stop.expired():
            raise self.stopped_error()


class SocketTask(Task):
    """A started program.

    Attributes:
        comm: its endpoint.
        seen: whether somebody has been given its outcome.
    """

    def __init__(self, run: Run, comm: SocketComm, name: str):
        self.comm = comm
        self.seen = False
        self._run = run
        self._name = name
        self._done = False
        self._result: Any = None
        self._error: BaseException | None = None
        self._joiners: list[Waiter] = []

    @property
    def done(self) -> bool:
        """See `Task`."""
        return self._done

    def run(self, program: Callable[[Comm], Any]) -> None:
        """The fibre's function."""
        error: BaseException | None = None
        try:
            with torch.no_grad():
                self._result = program(self.comm)
        except FiberExit:
            raise
        except BaseException as raised:
            error = raised
        with self._run.loop.lock:
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        station, endpoint = self._run.station, self.comm._endpoint
        self._error = error
        self._done = True
        endpoint.tasks.pop(self._name, None)
        for joiner in self._joiners:
            joiner.wake()
        if error is None:
            del self._run.tasks[self]
            if endpoint.rank != station.rank and not endpoint.tasks:
                station.finish(endpoint.rank)
        elif not self._joiners and station.loss is None:
            # Nobody may ever ask for the result: a failure must not go unseen.
            station.fail(error)

    def wait(self, deadline: float | None = None) -> Any:
        """See `Task`."""
        refuse_in_backward(f"rank {self.comm.rank}: waiting for task {self._name!r}")
        run, loop = self._run, self._run.loop
        limit = run.deadline if deadline is None else deadline
        until = time.monotonic() + limit
        with loop.lock:
            waiter = loop.enlist()
            self._joiners.append(waiter)
        phases = None if waiter.fiber is not None else run.phases
        before = "" if phases is None else phases.enter("wait")
        try:
            while not self._done:
                waiter.ready = False
                if self._done:
                    break
                run.block(waiter, until)
                if not self._done and time.monotonic() >= until:
                    raise DeadlineError(
                        f"rank {self.comm.rank} waited {limit:g} s for its task {self._name!r}: "
                        "the deadline has passed"
                    )
        finally:
            if phases is not None:
                phases.enter(before)
            with loop.lock:
                self._joiners.remove(waiter)
        self.seen = True
        if self._error is not None:
            raise self._error
        return self._result
