"""Where the ranks of an examination leave notes for each other: the store of the launcher.

Unlike the meeting of a run, one that lacks somebody goes on: that is what is to be found out.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from thinwire.errors import RendezvousError
from thinwire.wire.rendezvous import Place, open_store, reachable_master

__all__ = ["TELL", "Board", "Watchdog", "open_board"]

T = TypeVar("T")

TELL = 5.0
"""Seconds after which it is said who is waited for, again and again."""

_PAUSE = 0.02


class Watchdog:
    """Ends the process when a `with` block, or a call in it, takes longer than it can.

    A call into the store of a machine that has fallen silent does not return, whatever its
    deadline says, and cannot be interrupted.

    Args:
        seconds: for the block.
        farewell: called before the end.
        call_limit: seconds for a call.
    """

    def __init__(self, seconds: float, farewell: Callable[[], None], call_limit: float = 20.0):
        self._until = time.monotonic() + seconds
        self._call_until = float("inf")
        self._call_limit = call_limit
        self._farewell = farewell
        self._over = threading.Event()

    def __enter__(self) -> Watchdog:
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """A call that should be short."""
        self._call_until = time.monotonic() + self._call_limit
        try:
            yield
        finally:
            self._call_until = float("inf")

    def _watch(self) -> None:
        while (left := min(self._until, self._call_until) - time.monotonic()) > 0:
            if self._over.wait(min(left, 1.0)):
                return
        self._farewell()
        os._exit(1)


class Board:
    """Notes by key; asked, never waited on, because the store's own waits end noisily."""

    def __init__(self, place: Place, store: Any, watchdog: Watchdog):
        self._place = place
        self._store = store
        self._watchdog = watchdog
        self._prefix = f"thinwire-doctor/{place.attempt}"

    def get(self, key: str) -> bytes | None:
        """The note, or None."""
        key = f"{self._prefix}/{key}"
        return self._asked(lambda: self._store.get(key) if self._store.check([key]) else None)

    def set(self, key: str, note: bytes) -> None:
        """Leave a note."""
        self._asked(lambda: self._store.set(f"{self._prefix}/{key}", note))

    def claim(self, key: str) -> bool:
        """Whether this is the first to claim the key."""
        return self._asked(lambda: self._store.add(f"{self._prefix}/{key}", 1)) == 1

    def wait(self, key: str, until: float) -> bytes | None:
        """The note as soon as it is there; None at the deadline, in `time.monotonic()`."""
        while (note := self.get(key)) is None:
            if time.monotonic() > until:
                return None
            time.sleep(_PAUSE)
        return note

    def cards(
        self, kind: type[T], own: T, size: int, until: float, say: Callable[[str], None]
    ) -> dict[int, T]:
        """What the ranks have left under `card/RANK`, by rank; those that have not by then are
        missing.

        Args:
            kind: of a card, a struct of msgspec.
            own: rank 0's.
            size: number of ranks.
            until: in `time.monotonic()`.
            say: told every few seconds who is waited for.
        """
        found, tell = {0: own}, time.monotonic() + TELL
        while len(found) < size and time.monotonic() < until:
            for rank in [r for r in range(size) if r not in found]:
                note = self.get(f"card/{rank}")
                if note is not None:
                    found[rank] = msgspec.json.decode(note, type=kind)
            if time.monotonic() > tell:
                tell += TELL
                missing = ", ".join(str(r) for r in range(size) if r not in found)
                left = max(0.0, until - time.monotonic())
                say(f"waiting for rank {missing}, {left:.0f} s more")
            time.sleep(_PAUSE)
        return {rank: found[rank] for rank in sorted(found)}

    def _asked(self, do: Callable[[], Any]) -> Any:
        try:
            with self._watchdog.call():
                return do()
        except RuntimeError as error:
            place = self._place
            raise RendezvousError(
                f"rank {place.rank} lost the meeting point at {place.master}:{place.port}: did "
                f"{'the launcher' if place.agent_store else 'rank 0'} end?"
            ) from error


def open_board(place: Place, deadline: float, watchdog: Watchdog) -> Board:
    """Reach the meeting point, or be it.

    Raises:
        RendezvousError: nobody is there within the deadline, the port is in use, or the name of
            the master means nothing here.
    """
    until = time.monotonic() + deadline
    return Board(place, open_store(place, reachable_master(place), until), watchdog)
