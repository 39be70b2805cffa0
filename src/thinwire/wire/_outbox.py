"""What waits to leave for one destination, in order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from thinwire.wire._loop import Loop
from thinwire.wire.base import Posted

__all__ = ["Outbox", "Soon"]


class Soon:
    """Runs actions that other actions ask for one after the other, so that a long chain of packets,
    each `after` the one before, does not become a deep recursion."""

    def __init__(self) -> None:
        self._actions: deque[Callable[[], None]] = deque()
        self._running = False

    def __call__(self, action: Callable[[], None]) -> None:
        self._actions.append(action)
        if self._running:
            return
        self._running = True
        try:
            while self._actions:
                self._actions.popleft()()
        finally:
            self._running = False


class _Outgoing:
    __slots__ = ("after", "item", "not_before", "posted")

    def __init__(self, item: Any, posted: Posted | None, after: Posted | None, not_before: float):
        self.item = item
        self.posted = posted
        self.after = after
        self.not_before = not_before


class Outbox:
    """A first-in-first-out queue whose head may have to wait. The loop's lock is held throughout.

    Later ones never overtake a waiting head: packets of a pair keep their order. That cannot lock
    up, because a head only waits for a packet that was posted before it.

    Args:
        emit: takes as much of an item as it can; returns whether all of it is gone.
        loop: for heads that wait for a time.
        soon: shared by all outboxes of a process.
    """

    def __init__(self, emit: Callable[[Any], bool], loop: Loop, soon: Soon):
        self._emit = emit
        self._loop = loop
        self._soon = soon
        self._queue: deque[_Outgoing] = deque()

    @property
    def empty(self) -> bool:
        """Whether everything has left."""
        return not self._queue

    def send(
        self,
        item: Any,
        posted: Posted | None = None,
        after: Posted | None = None,
        not_before: float = 0.0,
    ) -> None:
        """Let `item` leave after those before it, once `after` has left and not before a time."""
        self._queue.append(_Outgoing(item, posted, after, not_before))
        if len(self._queue) == 1:
            self._arm(self._queue[0])
            self.flush()

    def flush(self) -> None:
        """Let go whatever may go."""
        queue = self._queue
        while queue:
            head = queue[0]
            if head.after is not None and not head.after.left:
                return
            if head.not_before and time.monotonic() < head.not_before:
                return
            if not self._emit(head.item):
                return
            queue.popleft()
            if head.posted is not None:
                head.posted.mark_left()
            if queue:
                self._arm(queue[0])

    def _arm(self, head: _Outgoing) -> None:
        """Be called back when a head that has to wait may go."""
        if head.after is not None and not head.after.left:
            head.after.then(lambda: self._soon(self.flush))
        if head.not_before:
            self._loop.after(max(0.0, head.not_before - time.monotonic()), self.flush)
