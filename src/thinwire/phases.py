"""Where a program's time goes: at every moment it is in exactly one of a few phases.

Virtual time is charged to the phase in which it was spent; wall time is stopped by a watch. Both
count whole nanoseconds, so that the phases of a program add up to its time.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from time import perf_counter_ns

from thinwire.errors import InputError, nearest

__all__ = ["PHASES", "Phases", "Stopwatch", "within"]

PHASES = {
    "compute": "forward and backward passes",
    "select": "choosing what is sent: error feedback, selection, momentum before it",
    "encode": "making packets of it: rounding, factors, scaling",
    "send": "handing packets to the wire, which then sends beside the program",
    "wait": "for messages, and for tasks that it has started",
    "merge": "adding up what came, and collectives but for their waits",
    "apply": "the optimizer's step, or what else changes the parameters",
    "evaluate": "testing the model; costs no virtual time",
    "other": "everything else: loading batches, logging, what no phase was named for",
}
"""The phases in the order in which they are shown, and what each holds."""

_NS = 1_000_000_000


class Phases:
    """Nanoseconds by phase, charged by whoever knows how much time has passed.

    Attributes:
        current: the phase that the program is in.
        spent: nanoseconds so far.
    """

    __slots__ = ("current", "spent")

    def __init__(self) -> None:
        self.current = "other"
        self.spent = dict.fromkeys(PHASES, 0)

    def enter(self, name: str) -> str:
        """From now on the program is in this phase; returns the one that it was in."""
        before, self.current = self.current, name
        return before

    def share_out(self, elapsed: int, weights: dict[str, float]) -> None:
        """Charge nanoseconds to several phases, to the last one.

        Args:
            elapsed: how many.
            weights: what each phase's part is proportional to; not empty.
        """
        if len(weights) == 1:
            self.spent[next(iter(weights))] += elapsed
            return
        total, upto, done = sum(weights.values()), 0.0, 0
        *others, last = weights
        for name in others:
            upto += weights[name]
            until = round(elapsed * (upto / total)) if total else 0
            self.spent[name] += until - done
            done = until
        self.spent[last] += elapsed - done

    def restart(self) -> None:
        """Forget what has been: the program begins now."""
        self.spent = dict.fromkeys(PHASES, 0)

    def stop(self) -> None:
        """The program has ended."""

    def seconds(self) -> dict[str, float]:
        """Seconds by phase, those without any left out."""
        return {name: ns / _NS for name, ns in self.so_far().items() if ns}

    def so_far(self) -> dict[str, int]:
        """Nanoseconds by phase, up to now. May be called from another thread."""
        return dict(self.spent)


class Stopwatch(Phases):
    """Wall time by phase: it runs from the beginning, and until `stop`."""

    __slots__ = ("_final", "_since")

    def __init__(self) -> None:
        super().__init__()
        self._since = perf_counter_ns()
        self._final: dict[str, int] | None = None

    def enter(self, name: str) -> str:
        """See `Phases`."""
        now, before = perf_counter_ns(), self.current
        self.spent[before] += now - self._since
        self._since, self.current = now, name
        return before

    def restart(self) -> None:
        """See `Phases`."""
        super().restart()
        self._since, self._final = perf_counter_ns(), None

    def stop(self) -> None:
        """See `Phases`: what comes after is not counted."""
        self._final = self.so_far()

    def so_far(self) -> dict[str, int]:
        """See `Phases`."""
        if self._final is not None:
            return self._final
        spent = dict(self.spent)
        spent[self.current] += perf_counter_ns() - self._since
        return spent


class _Within:
    __slots__ = ("_before", "_name", "_phases")

    def __init__(self, phases: Phases, name: str):
        self._phases = phases
        self._name = name

    def __enter__(self) -> None:
        self._before = self._phases.enter(self._name)

    def __exit__(self, *_: object) -> None:
        self._phases.enter(self._before)


def within(phases: Phases | None, name: str) -> AbstractContextManager[None]:
    """A block in which the program is in a phase; an inner block takes its time out of the outer's.

    Args:
        phases: None where nobody counts.
        name: a key of `PHASES`.

    Raises:
        InputError: no such phase.
    """
    if name not in PHASES:
        raise InputError(f"phase = {name!r}: {nearest(name, PHASES)}")
    return nullcontext() if phases is None else _Within(phases, name)
