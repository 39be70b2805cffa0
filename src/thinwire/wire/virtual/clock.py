"""Virtual time: integer nanoseconds, events in one total order."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

__all__ = ["NS", "Clock", "to_ns"]

NS = 1_000_000_000


def to_ns(seconds: float) -> int:
    """Seconds as the nearest integer number of nanoseconds."""
    return round(seconds * NS)


class Clock:
    """A heap of events ordered by (time, serial number), so that runs repeat exactly.

    Attributes:
        now: nanoseconds since the run began.
    """

    __slots__ = ("_heap", "_serial", "now")

    def __init__(self) -> None:
        self.now = 0
        self._heap: list[tuple[int, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._serial = 0

    def at(self, time: int, action: Callable[..., Any], *args: Any) -> None:
        """Run `action(*args)` at `time`, after everything already asked for that time."""
        self._serial += 1
        heappush(self._heap, (time, self._serial, action, args))

    def run(self) -> None:
        """Run events until none is left or one raises."""
        heap = self._heap
        while heap:
            self.now, _, action, args = heappop(heap)
            action(*args)

    def clear(self) -> None:
        """Forget every event that has not happened."""
        self._heap.clear()
