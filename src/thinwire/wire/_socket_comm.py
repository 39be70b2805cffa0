"""An endpoint of the real wire; `thinwire.wire.sockets.connect` makes it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

from thinwire.errors import DeadlineError, InputError
from thinwire.fibers import inside_backward, refuse_in_backward
from thinwire.phases import Stopwatch
from thinwire.wire._channel import encode_packet, head_of
from thinwire.wire._loop import Waiter
from thinwire.wire._station import Endpoint, Loss
from thinwire.wire._task import Run, SocketTask
from thinwire.wire.base import ANY, Arrival, Comm, Posted, Tag, Work
from thinwire.wire.faults import InjectedCrash
from thinwire.wire.packet import Packet

__all__ = ["SocketComm"]

logger = logging.getLogger("thinwire.wire")

_LAST_WORDS = 1.0
"""Seconds that a failing process gives its last words to reach the others."""

_BLAME, _BETWEEN = 1.5, 0.05
"""Seconds from a death to the first survivor's exit (the launcher blames whom it sees first), and
to the next one's."""


class SocketComm(Comm):
    """An endpoint of the real wire, for one program. Made by `connect`, `start` and `serve`.

    Args:
        run: shared by the process.
        endpoint: the address; tasks of one rank share it.
        key: prefix of this program's tags, None for the main program.

    Attributes:
        store: torch's key-value store of the run, None when alone.
    """

    simulated = False

    def __init__(self, run: Run, endpoint: Endpoint, key: str | None = None):
        station = run.station
        self.rank = endpoint.rank
        self.size = station.size
        self.num_servers = station.num_endpoints - station.size
        self.losses = station.losses
        self.meter = endpoint.meter
        self.store = run.store
        self._run = run
        self._station = station
        self._loop = run.loop
        self._endpoint = endpoint
        self._key = key
        self._debt = 0.0
        if key is None:  # tasks go on beside the program whose time is counted
            self.phases = self.meter.phases = Stopwatch()

    @property
    def local_address(self) -> str | None:
        """The address of this machine that packets leave from; None alone."""
        channels = self._station.channels.values()
        return next((c.sock.getsockname()[0] for c in channels if c.open), None)

    @property
    def step(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Where the program is; setting it lets planned crashes happen."""
        return self._endpoint.step

    @step.setter
    def step(self, value: int) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._endpoint.step = value
        if self._run.faults is not None and self._key is None:
            self._run.faults.on_step(self.rank, value)

    def now(self) -> float:
        """See `Comm`: seconds since this process joined the run."""
        return self._station.now()

    def post(
        self, dst: int, packet: Packet, tag: Tag = 0, *, after: Posted | None = None
    ) -> Posted:
        """See `Comm`. Buffers on an accelerator are copied to the host first, which waits for it.

        Raises:
            InputError: no such destination, or a packet of meta tensors.
            ThinwireError: far more is queued for the destination than its link takes.
        """
        phases = self.phases
        before = "" if phases is None else phases.enter("send")
        try:
            station, key, posted = self._station, self._run.encode((self._key, tag)), Posted()
            away = dst in station.away
            if not away:
                self._check_here(dst, packet)
            delay = 0.0 if self._run.faults is None else self._rule(dst, packet, tag)
            if delay is None:
                posted.mark_left()
            elif away:
                pieces = encode_packet(self.rank, dst, key, packet)
                with self._loop.lock:
                    self._check_open()
                    station.post(self._endpoint, dst, pieces, packet, posted, after, delay)
            else:
                with self._loop.lock:
                    self._check_open()
                    station.post_here(self._endpoint, dst, key, packet, posted, after, delay)
            return posted
        finally:
            if phases is not None:
                phases.enter(before)

    def _check_here(self, dst: int, packet: Packet) -> None:
        if dst == self.rank or dst not in self._station.endpoints:
            raise InputError(
                f"rank {self.rank}: post to {dst}; valid: 0..{self._station.num_endpoints - 1}, "
                "not itself"
            )
        if packet.is_meta:
            raise InputError("a packet of meta tensors has nothing to send")

    def _rule(self, dst: int, packet: Packet, tag: Tag) -> float | None:
        whole: Any = tag if self._key is None else (self._key, tag)
        faults = self._run.faults
        assert faults is not None
        return faults.on_post(self.rank, dst, whole, packet.nbytes, self.now())

    def _check_open(self) -> None:
        if self._run.closed:
            raise InputError(f"rank {self.rank}: this comm has been closed")
        if self._station.forgotten:
            raise InputError(f"rank {self.rank}: this comm belongs to the process that forked this")

    def wait(self, src: int = ANY, tag: Tag = 0, deadline: float | None = None) -> Arrival:
        """See `Comm`."""
        if inside_backward():
            refuse_in_backward(f"rank {self.rank}: wait({src}, {tag!r})")
        if self._debt:
            self._pay()
        station, endpoint, loop = self._station, self._endpoint, self._loop
        channel = station.away.get(src)
        if channel is None:
            self._check_source(src)
        key = self._run.encode((self._key, tag))
        with loop.lock:
            self._check_open()
            arrival = station.take(endpoint, src, key, tag)
        if arrival is not None:
            return arrival
        phases = self.phases
        before = "" if phases is None else phases.enter("wait")
        began, awaited = time.monotonic(), src
        try:
            if channel is not None:
                head = head_of(src, self.rank, key)
                found = loop.watch(partial(station.look, channel, endpoint, src, key, head))
                if found is not None:
                    return Arrival(found[0], tag, found[1], found[2])
            arrival = self._blocked(src, key, tag, began, deadline)
            awaited = arrival.src
            return arrival
        finally:
            here = station.endpoints
            counter = self.meter.local if awaited in here else self.meter.peers[awaited]
            counter.waited += time.monotonic() - began
            if phases is not None:
                phases.enter(before)

    def _check_source(self, src: int) -> None:
        if src != ANY and (not 0 <= src < self._station.num_endpoints or src == self.rank):
            raise InputError(
                f"rank {self.rank}: wait for {src}; valid: 0..{self._station.num_endpoints - 1}, "
                f"not itself, or ANY"
            )

    def _blocked(
        self, src: int, key: bytes, tag: Tag, began: float, deadline: float | None
    ) -> Arrival:
        """What comes, or the error of a wait that ends without."""
        with self._loop.lock:
            arrival = self._station.take(self._endpoint, src, key, tag)
            if arrival is not None:
                return arrival
            if key in self._endpoint.waiters:
                raise InputError(f"rank {self.rank}: two programs wait for tag {tag!r} at once")
            waiter = self._endpoint.waiters[key] = self._loop.enlist(src)
        try:
            return self._asleep(waiter, key, tag, began, deadline)
        finally:
            if not waiter.given:
                self._withdraw(waiter, key)

    def _withdraw(self, waiter: Waiter, key: bytes) -> None:
        """The wait has ended otherwise than by what its waiter was given."""
        with self._loop.lock:
            if waiter.found is None:
                del self._endpoint.waiters[key]
            else:
                self._endpoint.put_back(key, waiter.found)  # it came meanwhile

    def _asleep(
        self, waiter: Waiter, key: bytes, tag: Tag, began: float, deadline: float | None
    ) -> Arrival:
        limit = self._run.deadline if deadline is None else deadline
        listens = limit == math.inf and waiter.src == ANY  # it isn't kept from anything
        warn_at = math.inf if listens else began + self._run.warn_after
        run, program = self._run, waiter.fiber is None
        while True:
            until = min(began + limit, warn_at)
            if program and run.stop.since is None:
                run.loop.drive(waiter, until)  # the usual case, without ceremony
            else:
                run.block(waiter, until)
            if waiter.found is not None:
                return waiter.take(tag)
            with self._loop.lock:
                if waiter.found is not None:  # since that look, by the other thread
                    return waiter.take(tag)
                arrival = self._station.take(self._endpoint, waiter.src, key, tag)
                waiter.ready = False
            if arrival is not None:
                return arrival
            if program and run.stop.expired():
                raise run.stopped_error()
            elapsed = time.monotonic() - began
            if elapsed >= limit:
                raise DeadlineError(
                    f"rank {self.rank} waited {limit:g} s for {self._station.name(waiter.src)} "
                    f"(tag {tag!r}, step {self.step}): the deadline has passed. Missing: "
                    f"{self._station.missing(self._endpoint, waiter.src)}"
                )
            if began + elapsed >= warn_at:
                self._warn(waiter.src, tag, elapsed)
                warn_at = began + 2 * elapsed

    def _warn(self, src: int, tag: Tag, elapsed: float) -> None:
        text = (
            f"{self._station.name(self.rank)} has waited {elapsed:.0f} s for "
            f"{self._station.name(src)} (tag {tag!r}, step {self.step}). Missing: "
            f"{self._station.missing(self._endpoint, src)}"
        )
        self._run.warn(text)

    def spend(self, work: Work) -> None:
        """See `Comm`: nothing, unless the run emulates slower nodes; then it sleeps."""
        if self._run.spend is None:
            return
        self._debt += self._run.spend(work)
        if not inside_backward():
            self._pay()

    def _pay(self) -> None:
        debt, self._debt = self._debt, 0.0
        until = time.monotonic() + debt
        with self._loop.lock:
            waiter = self._loop.enlist()
        while time.monotonic() < until:
            waiter.ready = False
            self._run.block(waiter, until)
        self.meter.computed += debt

    def start(self, program: Callable[[Comm], Any], key: str) -> SocketTask:
        """See `Comm`: the program runs as a fibre of the communication thread."""
        whole = key if self._key is None else f"{self._key}/{key}"
        return self._begin(SocketComm(self._run, self._endpoint, whole), program)

    def serve(self, program: Callable[[Comm], Any], index: int = 0) -> SocketTask:
        """Run a server's program in this process, beside the caller. Only in the process of rank 0.

        Its end is the server's goodbye. Leaving the comm waits for it.

        Args:
            program: called with the server's own comm.
            index: which server, 0..num_servers-1.
        """
        if self.rank != 0 or not 0 <= index < self.num_servers:
            raise InputError(
                f"rank {self.rank}: serve({index}); servers 0..{self.num_servers - 1} live in the "
                "process of rank 0"
            )
        endpoint = self._station.endpoints[self.size + index]
        return self._begin(SocketComm(self._run, endpoint), program)

    def _begin(self, comm: SocketComm, program: Callable[[Comm], Any]) -> SocketTask:
        name = comm._key or "main"
        with self._loop.lock:
            self._check_open()
            if name in comm._endpoint.tasks:
                raise InputError(f"rank {comm.rank}: a task {name!r} is still running")
            comm._endpoint.tasks[name] = None
            task = SocketTask(self._run, comm, name)
            self._run.tasks[task] = None
        self._loop.spawn(lambda: task.run(program))
        return task

    # The end of a run.

    def __enter__(self) -> SocketComm:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        good = error is None or (isinstance(error, SystemExit) and not error.code)
        try:
            if good:
                self._say_goodbye()
        except BaseException as late:
            self._fail(late)
            raise
        else:
            if error is not None and not good:
                self._fail(error)
        finally:
            self._shut()

    def _say_goodbye(self) -> None:
        """Let the tasks end, say goodbye, let the servers end, and part from every process."""
        until = time.monotonic() + self._run.deadline
        with self._loop.lock:
            tasks = list(self._run.tasks)
        for task in [t for t in tasks if t.comm.rank == self.rank]:
            self._join(task, until)
        with self._loop.lock:
            self._station.finish(self.rank)
        for task in [t for t in tasks if t.comm.rank != self.rank]:
            self._join(task, until)
        channels = self._station.channels.values()
        with self._loop.lock:
            self._station.leave()
        self._wait_until(
            lambda: all(c.acked or not c.open for c in channels) or self._broken(), until
        )

    def _broken(self) -> bool:
        return self._station.broken is not None

    def _join(self, task: SocketTask, until: float) -> None:
        """A failed task that nobody has asked for its result fails the run here."""
        if task.seen and task.done:
            return
        task.wait(max(0.0, until - time.monotonic()))

    def _fail(self, error: BaseException) -> None:
        """Tell the others who failed and why; a launcher is to see the first failure first."""
        station = self._station
        self._run.stop.ignore(_one_line(error))
        if isinstance(error, InjectedCrash):
            return
        self._loop.kill_fibers()
        with self._loop.lock:
            loss = station.loss
            text = f"{station.full_name(self.rank)} failed at step {self.step}: "
            mine = Loss(self.rank, text + _one_line(error), time.monotonic())
            station.abort(loss or mine)
        self._wait_until(
            lambda: all(not c.open or c.drained for c in station.channels.values()),
            time.monotonic() + _LAST_WORDS,
            pause=0.005,
        )
        if loss is not None:
            logger.error("%s", loss.text)
            self._wait_until(lambda: False, loss.time + _BLAME + _BETWEEN * min(self.rank, 20))

    def _wait_until(
        self, condition: Callable[[], bool], until: float, pause: float = math.inf
    ) -> None:
        """Block, also after losses, until a condition of the connections holds."""
        with self._loop.lock:
            waiter = self._loop.enlist()
            self._station.waiters.append(waiter)
        while time.monotonic() < until:
            with self._loop.lock:
                if condition():
                    break
                waiter.ready = False
            self._loop.block(waiter, min(until, time.monotonic() + pause))

    def _shut(self) -> None:
        self._run.closed = True
        self._loop.stop()
        with self._loop.lock:
            self._station.close()
        self._loop.close()
        self._run.stop.remove()


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")
