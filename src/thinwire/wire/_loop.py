"""One communication thread that owns the connections and runs started tasks as fibres.

Two threads may turn the wheel (poll the connections, read, write, fire timers), never both: the
communication thread, or the program's own thread while it is blocked in a wait. Handing every
message from one thread to the other would cost a wake-up each way, as much as the network itself;
so a program that waits reads its connections itself, and the communication thread rests until it
has let go. Everything the two share is guarded by `Loop.lock`, held only for the moment of a read
or write, never while a program runs or a thread sleeps.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from thinwire.fibers import Fiber, pause
from thinwire.wire._poller import Poller, Waker
from thinwire.wire.base import Arrival, Tag

__all__ = ["Loop", "Timer", "Waiter"]

Found = TypeVar("Found")

SPIN = 200e-6
"""Seconds that a program polls before it sleeps, if its last wait was a short one. Sleeping and
being woken costs as much as a small message takes; where waits are long nothing is polled."""

_give_way = getattr(os, "sched_yield", lambda: None)
"""With more processes than cores, the one that is waited for may need this very core."""

REST_MS = 1
"""How often a resting communication thread looks whether the program has let go of the wheel."""


class Waiter:
    """Somebody who is blocked until `ready`: a fibre, or the program's thread.

    Attributes:
        found: what it was waiting for, if that was handed over directly: source, packet, time.
        given: whether that has been taken.
    """

    __slots__ = ("fiber", "found", "given", "loop", "ready", "src")

    def __init__(self, loop: Loop, src: int = -1):
        self.loop = loop
        self.src = src
        self.ready = False
        self.found: Any = None
        self.given = False
        self.fiber: Fiber | None = None

    def take(self, tag: Tag) -> Arrival:
        """What was found."""
        src, packet, time = self.found
        self.given = True
        return Arrival(src, tag, packet, time)

    def wake(self) -> None:
        """Let it go on; the lock is held."""
        if self.ready:
            return
        self.ready = True
        if self.fiber is not None:
            self.loop.make_ready(self.fiber)
        else:
            self.loop.wake_program()


class Timer:
    """An action at a time, which may be cancelled."""

    __slots__ = ("action", "at")

    def __init__(self, at: float, action: Callable[[], None] | None):
        self.at = at
        self.action = action

    def cancel(self) -> None:
        """Never fire."""
        self.action = None


class Loop:
    """Connections, timers and fibres of one process.

    Attributes:
        lock: guards the connections and whatever the programs and the loop share.
        failed: called with the exception of the loop itself, should it ever have one.
    """

    def __init__(self, failed: Callable[[BaseException], None]):
        self.lock = threading.Lock()
        self._failed = failed
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._comm_waker, self._program_waker = Waker(), Waker()
        self._program_poll = Poller(self._program_waker)
        self._comm_poll = Poller(self._comm_waker)
        self._rest_poll = select.poll()
        self._rest_poll.register(self._comm_waker.fileno(), select.POLLIN)
        self._timers: list[tuple[float, int, Timer]] = []
        self._serial = 0
        self._ready: deque[Fiber] = deque()
        self._fibers: list[Fiber] = []
        self._current: Fiber | None = None
        self._driving = False
        self._episode = 0
        self._resting = False
        self._short_waits = False
        self._stopping = False
        self._killing = False
        self._comm_until = math.inf
        self._program_until = math.inf
        self._thread = threading.Thread(target=self._run, name="thinwire", daemon=True)
        self._thread_id = 0

    def begin(self) -> None:
        """Start the communication thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the fibres and the thread; called by the program's thread."""
        self._stopping = True
        self._comm_waker.signal()
        self._thread.join(5.0)

    def close(self) -> None:
        """Give the descriptors back, after `stop` and the connections' end."""
        if self._thread.is_alive():
            return  # a fibre that computes: it ends with the process
        for poller in (self._comm_poll, self._program_poll):
            poller.close()
        for waker in (self._comm_waker, self._program_waker):
            waker.close()

    # Connections. The lock is held.

    def register(self, fd: int, handler: Callable[[int], None]) -> None:
        """Call `handler(mask)` under the lock when `fd` can be read or, if asked, written."""
        self._handlers[fd] = handler
        for poller in (self._comm_poll, self._program_poll):
            poller.register(fd, select.POLLIN)

    def want_write(self, fd: int, wanted: bool) -> None:
        """Ask for, or end, calls when `fd` can be written."""
        for poller in (self._comm_poll, self._program_poll):
            poller.modify(fd, select.POLLIN | (select.POLLOUT if wanted else 0))

    def unregister(self, fd: int) -> None:
        """Forget `fd`."""
        del self._handlers[fd]
        for poller in (self._comm_poll, self._program_poll):
            poller.unregister(fd)

    # Timers. The lock is held.

    def after(self, seconds: float, action: Callable[[], None]) -> Timer:
        """Run `action` under the lock in `seconds` from now."""
        timer = Timer(time.monotonic() + seconds, action)
        self._serial += 1
        heapq.heappush(self._timers, (timer.at, self._serial, timer))
        # Whoever sleeps at the wheel sleeps until the earliest timer it knew of.
        if self._driving:
            if timer.at < self._program_until:
                self.wake_program()
        elif timer.at < self._comm_until:
            self.wake_comm()
        return timer

    def _next_timer(self) -> float:
        try:
            return self._timers[0][0]
        except IndexError:  # also when the other thread has just taken the last one
            return math.inf

    def _fire(self, now: float) -> None:
        timers = self._timers
        while timers and timers[0][0] <= now:
            action = heapq.heappop(timers)[2].action
            if action is not None:
                action()

    # Fibres.

    def on_comm_thread(self) -> bool:
        """Whether the caller is a fibre."""
        return threading.get_ident() == self._thread_id

    def spawn(self, program: Callable[[], None]) -> None:
        """Run `program` as a fibre of the communication thread."""
        fiber = Fiber(program)
        self._fibers.append(fiber)
        self.make_ready(fiber)

    def make_ready(self, fiber: Fiber) -> None:
        """Resume a paused fibre soon."""
        self._ready.append(fiber)
        self.wake_comm()

    def kill_fibers(self) -> None:
        """End every fibre, without a trace; its `finally` blocks run."""
        self._killing = True
        self._comm_waker.signal()

    def wake_comm(self) -> None:
        """End the communication thread's sleep, if it is not the caller."""
        if threading.get_ident() != self._thread_id:
            self._comm_waker.signal()

    def wake_program(self) -> None:
        """End the program's sleep at the wheel, if it sleeps there and is not the caller."""
        if self._driving and threading.get_ident() == self._thread_id:
            self._program_waker.signal()

    def interrupt(self) -> None:
        """As `wake_program`, for signal handlers of the program's thread."""
        self._program_waker.signal()

    @property
    def driving(self) -> bool:
        """Whether the program's thread is blocked at the wheel."""
        return self._driving

    def block(self, waiter: Waiter, until: float) -> None:
        """Block the calling program until `waiter.ready` or `time.monotonic()` reaches `until`.

        A signal handler's `interrupt` also ends it. The waiter's `fiber` must have been set by
        `enlist` before others could see it.
        """
        if waiter.fiber is None:
            self.drive(waiter, until)
            return
        timer = None
        if until < math.inf:
            with self.lock:
                timer = self.after(until - time.monotonic(), waiter.wake)
        try:
            while not waiter.ready:
                pause()
        finally:
            if timer is not None:
                timer.cancel()

    def enlist(self, src: int = -1) -> Waiter:
        """A waiter for the calling program."""
        waiter = Waiter(self, src)
        if self.on_comm_thread():
            waiter.fiber = self._current
        return waiter

    # The wheel.

    def drive(self, waiter: Waiter, until: float) -> None:
        """`block` for the program's own thread: it turns the wheel itself."""
        self._begin_turn()
        began = now = time.monotonic()
        try:
            if self._short_waits:
                now = self._spin(waiter, began + SPIN)
            while not waiter.ready:
                self._program_until = wake_at = min(until, self._next_timer())
                ready = self._program_poll.poll(wake_at)
                self._program_until = math.inf
                interrupted = self._handle(ready, self._program_waker) if ready else False
                now = time.monotonic()
                if self._timers and self._timers[0][0] <= now:
                    with self.lock:
                        self._fire(now)
                if interrupted or now >= until:
                    return
        finally:
            self._short_waits = now - began < 2 * SPIN
            self._end_turn()

    def watch(self, look: Callable[[], Found | None]) -> Found | None:
        """Look for a moment, without sleeping, if the program's last wait was a short one.

        What comes is worth most while it is fresh, so that nothing is prepared here for a wait
        that has to sleep: who finds nothing goes on to `block`.

        Args:
            look: called with the lock held.
        """
        if not self._short_waits or self.on_comm_thread():
            return None
        self._begin_turn()
        lock, until, looks = self.lock, time.monotonic() + SPIN, 0
        try:
            while True:
                with lock:
                    found = look()
                if found is not None:
                    return found
                looks += 1
                if not looks % 8:
                    ready = self._program_poll.poll_now()
                    if ready:
                        self._handle(ready, None)
                if time.monotonic() >= until:
                    self._short_waits = False
                    return None
                _give_way()
        finally:
            self._end_turn()

    def _spin(self, waiter: Waiter, until: float) -> float:
        """Look without sleeping until then; returns the time.

        A signal's interrupt and the timers are for the wait after this one: it is a short while.
        """
        while True:
            ready = self._program_poll.poll_now()
            if ready:
                self._handle(ready, None)
            now = time.monotonic()
            if waiter.ready or now >= until:
                return now
            _give_way()

    def _begin_turn(self) -> None:
        self._episode += 1
        self._driving = True

    def _end_turn(self) -> None:
        self._driving = False
        if self._resting:
            self._comm_waker.signal()

    def _handle(self, ready: list[tuple[int, int]], waker: Waker | None) -> bool:
        """Read and write what can be; returns whether the waker was used. Without one it stays as
        it is."""
        woken = False
        with self.lock:
            for fd, mask in ready:
                handler = self._handlers.get(fd)
                if handler is not None:
                    handler(mask)
                elif waker is not None and fd == waker.fileno():
                    waker.clear()
                    woken = True
        return woken

    def _run(self) -> None:
        self._thread_id = threading.get_ident()
        try:
            while not self._stopping:
                self._run_fibers()
                if self._driving:
                    self._rest()
                    continue
                self._comm_until = 0.0 if self._ready else self._next_timer()
                ready = self._comm_poll.poll(self._comm_until)
                self._comm_until = math.inf
                if self._driving:
                    continue  # the program has taken the wheel meanwhile, and sees the same
                self._handle(ready, self._comm_waker)
                with self.lock:
                    self._fire(time.monotonic())
        except BaseException as error:
            self._failed(error)
            raise
        finally:
            self._kill_all()

    def _run_fibers(self) -> None:
        if self._killing:
            self._kill_all()
        for _ in range(len(self._ready)):
            fiber = self._ready.popleft()
            if fiber.alive:
                self._current = fiber
                try:
                    fiber.resume()
                finally:
                    self._current = None
            if not fiber.alive and fiber in self._fibers:
                self._fibers.remove(fiber)

    def _kill_all(self) -> None:
        self._killing = False
        fibers, self._fibers = self._fibers, []
        for fiber in fibers:
            self._current = fiber
            with contextlib.suppress(Exception):
                fiber.kill()
        self._current = None

    def _rest(self) -> None:
        """Sleep while the program is at the wheel: shortly at first, since most waits are short
        and being woken after each would cost more than it is worth; then until it lets go."""
        episode = self._episode
        if not self._rest_poll.poll(REST_MS) and self._driving and self._episode == episode:
            self._resting = True
            if self._driving and not self._ready:
                self._rest_poll.poll()
            self._resting = False
        self._comm_waker.clear()
