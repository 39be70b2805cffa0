"""Descriptors that a thread sleeps on, and one by which others wake it."""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import time
from functools import partial

__all__ = ["Poller", "Waker"]


class Waker:
    """A file descriptor that another thread makes readable."""

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self._read = self._write = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._pair = None
        else:
            self._pair = socket.socketpair()
            for end in self._pair:
                end.setblocking(False)
            self._read, self._write = (end.fileno() for end in self._pair)

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._read

    def signal(self) -> None:
        """Make it readable; any thread, and signal handlers, may call this."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"\x01\0\0\0\0\0\0\0")

    def clear(self) -> None:
        """Make it unreadable again."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)

    def close(self) -> None:
        """Give the descriptor back."""
        if self._pair is None:
            os.close(self._read)
        else:
            for end in self._pair:
                end.close()


class Poller:
    """Descriptors that one thread sleeps on; others may change them while it does."""

    def __init__(self, waker: Waker):
        self._poll = select.epoll() if hasattr(select, "epoll") else select.poll()
        self._unit = 1.0 if hasattr(select, "epoll") else 1e3
        self._waker = waker
        self.poll_now = partial(self._poll.poll, 0)
        self.register(waker.fileno(), select.POLLIN)

    def register(self, fd: int, mask: int) -> None:
        """Begin to watch `fd`."""
        self._poll.register(fd, mask)

    def modify(self, fd: int, mask: int) -> None:
        """Watch `fd` for something else."""
        self._poll.modify(fd, mask)
        self._refresh()

    def unregister(self, fd: int) -> None:
        """End watching `fd`."""
        self._poll.unregister(fd)
        self._refresh()

    def _refresh(self) -> None:
        if self._unit != 1.0:  # unlike epoll, poll sees no change before the next call
            self._waker.signal()

    def poll(self, until: float) -> list[tuple[int, int]]:
        """Sleep until something happens or `time.monotonic()` is `until`."""
        if until == math.inf:
            return self._poll.poll()
        # Rounded up: waking a little early would mean polling once more.
        wait = math.ceil(max(0.0, until - time.monotonic()) * 1e3)
        return self._poll.poll(wait * self._unit / 1e3)

    def close(self) -> None:
        """Give the descriptor back."""
        if self._unit == 1.0:
            self._poll.close()  # pyright: ignore[reportAttributeAccessIssue]
