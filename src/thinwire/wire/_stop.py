"""What SIGTERM means to a process of a run.

A launcher stops all survivors a moment after the first death. Ending at once would lose the reason,
so the process gives the wire a moment to learn who died, and ends with that as its error: no
abort, no core, nobody left behind. One that is told to stop while it is ending, its traceback not
yet written, still says why.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

__all__ = ["GRACE", "StopHandler"]

GRACE = 2.0
_WRITING = 10.0
"""Seconds after a failure in which its traceback may not have been written."""


class StopHandler:
    """Holds SIGTERM while a run is on, if nobody else does and this is the main thread.

    Args:
        blocked: whether the program is blocked in a wait, which then looks at `since` itself.
        known: whether it is known who died.
        interrupt: ends the program's sleep.
        error: what to raise.

    Attributes:
        since: `time.monotonic()` of the signal.
    """

    def __init__(
        self,
        blocked: Callable[[], bool],
        known: Callable[[], bool],
        interrupt: Callable[[], None],
        error: Callable[[], BaseException],
    ):
        self.since: float | None = None
        self._blocked = blocked
        self._known = known
        self._interrupt = interrupt
        self._error = error
        self._installed = False
        self._ended = False
        self._last_words = ""
        self._failed_at = 0.0

    def install(self) -> None:
        """Begin."""
        if threading.current_thread() is not threading.main_thread():
            return
        held = signal.getsignal(signal.SIGTERM)
        last = getattr(held, "__self__", None)
        if held is signal.SIG_DFL or (isinstance(last, StopHandler) and last._ended):
            signal.signal(signal.SIGTERM, self._handle)
            self._installed = True

    def remove(self) -> None:
        """End: the signal ends the process again, which then says what it failed of, if it did."""
        self._ended = True
        if self._installed and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._leave if self._last_words else signal.SIG_DFL)
            self._installed = False

    def ignore(self, last_words: str = "") -> None:
        """The process is ending already, of what the words say."""
        self._ended = True
        self._last_words, self._failed_at = last_words, time.monotonic()

    def expired(self) -> bool:
        """Whether a signal came and the reason is known, or will not be."""
        if self.since is None:
            return False
        return self._known() or time.monotonic() >= self.since + GRACE

    def _handle(self, _signum: int, _frame: FrameType | None) -> None:
        if self._ended:
            return
        first, self.since = self.since is None, self.since or time.monotonic()
        if self._blocked():
            self._interrupt()
            return
        # The program computes: the communication thread goes on learning while this one sleeps.
        while first and not self.expired():
            time.sleep(0.02)
        raise self._error()

    def _leave(self, _signum: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if time.monotonic() < self._failed_at + _WRITING:
            # Not through sys.stderr, which this may have interrupted.
            words = f"thinwire: told to stop (SIGTERM) while ending of {self._last_words}\n"
            os.write(2, words.encode())
        os.kill(os.getpid(), signal.SIGTERM)
