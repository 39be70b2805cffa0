"""What the ranks of a script tell each other beside the training, without time or bytes.

On the real wire an in-loop run compares settings, hands out rank 0's model and finds out which
loops have ended by messages of its own. On the virtual cluster the clock server sees all ranks, so
these cost nothing there, and an in-loop run takes exactly the time of the method's program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from thinwire.errors import ThinwireError

__all__ = ["Council", "Shared"]

Wake: TypeAlias = Callable[[Any], None]


class Shared(NamedTuple):
    """What all ranks have shared: their values by rank, and rank 0's frames."""

    values: list[Any]
    frames: Sequence[memoryview]


class _Word(NamedTuple):
    """How far a rank is, see `loop/_agree.py`."""

    ended: bool
    step: int
    begun: int
    settings: Any


class Council:
    """The ranks of one meeting.

    Args:
        size: number of ranks.
    """

    def __init__(self, size: int):
        self._size = size
        self._shares: dict[str, dict[int, tuple[Any, Sequence[memoryview], Wake]]] = {}
        self._facts: dict[str, tuple[int, Mapping[str, Any]]] = {}
        self._words: dict[int, _Word] = {}
        self._settings_at: dict[int, Any] = {}
        self._asking: dict[int, tuple[int, Wake]] = {}

    def share(
        self, rank: int, name: str, value: Any, frames: Sequence[memoryview], wake: Wake
    ) -> None:
        """Once all ranks have called, `wake` is called for each, by rank, with a `Shared`."""
        given = self._shares.setdefault(name, {})
        assert rank not in given, f"rank {rank} shares {name!r} twice"
        given[rank] = value, frames, wake
        if len(given) == self._size:
            del self._shares[name]
            shared = Shared([given[r][0] for r in range(self._size)], given[0][1])
            for other in range(self._size):
                given[other][2](shared)

    def compare(
        self, rank: int, name: str, facts: Mapping[str, Any], words: str, error: str
    ) -> None:
        """Hold a rank's facts to those of the first that told; never blocks.

        Args:
            rank: who tells.
            name: what is told.
            facts: by their names in messages.
            words: of the error, with `{key}`, `{a}`, `{b}`, `{rank_a}`, `{rank_b}`.
            error: the class of the error, of `thinwire.errors`.

        Raises:
            ThinwireError: of that class: the first fact that differs.
        """
        first, known = self._facts.setdefault(name, (rank, facts))
        for key in [*known, *(k for k in facts if k not in known)]:
            a, b = known.get(key), facts.get(key)
            if a != b:
                text = words.format(key=key, a=repr(a), b=repr(b), rank_a=first, rank_b=rank)
                raise error_of(error, text, rank)

    # Loops of unequal length.

    def begin(self, rank: int, step: int, settings: Any) -> None:
        """A rank is about to complete a step, counted from 1."""
        self._words[rank] = _Word(False, step, step, settings)
        self._settings_at.setdefault(step, settings)
        slowest = min(w.step for w in self._words.values())
        if len(self._words) == self._size:
            for old in [s for s in self._settings_at if s < slowest]:
                del self._settings_at[old]
        self._answer()

    def leave(self, rank: int, step: int, begun: int, settings: Any) -> None:
        """A rank's loop has ended after so many steps."""
        self._words[rank] = _Word(True, step, begun, settings)
        self._answer()

    def beyond(self, rank: int, step: int, wake: Wake) -> None:
        """Once it is known whether some rank goes further than `step`, `wake` is called with
        (whether, the settings for step + 1, the last settings, steps begun by any)."""
        self._asking[rank] = step, wake
        self._answer()

    def _answer(self) -> None:
        words = self._words
        if not words:
            return
        furthest = max(sorted(words.items()), key=lambda item: item[1].step)[1]
        over = len(words) == self._size and all(w.ended for w in words.values())
        for rank, (step, wake) in sorted(self._asking.items()):
            further = furthest.step > step
            if further or over:
                del self._asking[rank]
                settings = self._settings_at.get(step + 1, furthest.settings)
                begun = max(w.begun for w in words.values())
                wake((further, settings, furthest.settings, begun))


def error_of(kind: str, text: str, rank: int) -> ThinwireError:
    """An error of `thinwire.errors` by its name."""
    from thinwire import errors

    found = getattr(errors, kind, ThinwireError)
    if found in (errors.PeerDiedError, errors.WorkerFailedError):
        return found(rank, text)
    return found(text)
