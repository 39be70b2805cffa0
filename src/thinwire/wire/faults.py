"""Faults for tests and drills, injected where a message is posted or a step begins.

A `FaultPlan` is a list of small rules. Both wires ask it the same two questions, so a fault that
was rehearsed on the virtual cluster can be repeated on the real one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from thinwire.errors import InputError
from thinwire.seeds import seed_for
from thinwire.wire.base import ANY, Tag

__all__ = ["Crash", "Delay", "Drop", "Fault", "FaultPlan", "InjectedCrash", "Partition"]


class InjectedCrash(BaseException):
    """Ends a program without a goodbye. Not an `Exception`, so that no program catches it."""


class Fault(ABC):
    """One rule. Times are seconds on the comm's clock."""

    @abstractmethod
    def delay(self, src: int, dst: int, tag: Tag, nbytes: int, now: float) -> float | None:
        """Seconds by which this message is held back; None loses it; 0 leaves it alone."""

    def crashes(self, rank: int, step: int) -> bool:
        """Whether `rank` dies as it begins `step`."""
        return False


def _matches(wanted: int, rank: int) -> bool:
    return wanted in (ANY, rank)


def _check_window(start: float, end: float) -> None:
    if not 0 <= start < end:
        raise InputError(f"fault from {start} to {end} s: 0 <= start < end is needed")


@dataclass(frozen=True, kw_only=True)
class Delay(Fault):
    """Hold messages back.

    Args:
        seconds: at least 0.
        src: sender, or ANY.
        dst: receiver, or ANY.
        start: first second at which the rule holds.
        end: the second from which it no longer holds.
    """

    seconds: float
    src: int = ANY
    dst: int = ANY
    start: float = 0.0
    end: float = math.inf

    def __post_init__(self) -> None:
        if not self.seconds >= 0:
            raise InputError(f"delay seconds = {self.seconds}: at least 0 is needed")
        _check_window(self.start, self.end)

    def delay(self, src: int, dst: int, tag: Tag, nbytes: int, now: float) -> float | None:
        """See `Fault`."""
        hit = _matches(self.src, src) and _matches(self.dst, dst) and self.start <= now < self.end
        return self.seconds if hit else 0.0


@dataclass(frozen=True, kw_only=True)
class Drop(Fault):
    """Lose messages with a probability, repeatably: the n-th message of a pair has its own draw.

    Args:
        probability: 0..1.
        src: sender, or ANY.
        dst: receiver, or ANY.
        seed: of the draws.
    """

    probability: float
    src: int = ANY
    dst: int = ANY
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise InputError(f"drop probability = {self.probability}: 0..1 is needed")

    def delay(self, src: int, dst: int, tag: Tag, nbytes: int, now: float) -> float | None:
        """See `Fault`. The draw depends on the message and the time, not on a counter."""
        if not (_matches(self.src, src) and _matches(self.dst, dst)):
            return 0.0
        seed = seed_for(self.seed, "drop", src, dst, repr(tag), nbytes, repr(now))
        return None if np.random.default_rng(seed).random() < self.probability else 0.0


@dataclass(frozen=True, kw_only=True)
class Partition(Fault):
    """Lose every message between a group of endpoints and the rest, for a while.

    Args:
        group: endpoints on one side.
        start: first second of the cut.
        end: the second at which it is mended.
    """

    group: tuple[int, ...]
    start: float = 0.0
    end: float = math.inf

    def __post_init__(self) -> None:
        _check_window(self.start, self.end)

    def delay(self, src: int, dst: int, tag: Tag, nbytes: int, now: float) -> float | None:
        """See `Fault`."""
        apart = (src in self.group) != (dst in self.group)
        return None if apart and self.start <= now < self.end else 0.0


@dataclass(frozen=True, kw_only=True)
class Crash(Fault):
    """End an endpoint without a goodbye as it begins a step.

    Args:
        rank: the endpoint.
        step: the first step it does not do.
    """

    rank: int
    step: int

    def delay(self, src: int, dst: int, tag: Tag, nbytes: int, now: float) -> float | None:
        """See `Fault`: messages are left alone."""
        return 0.0

    def crashes(self, rank: int, step: int) -> bool:
        """See `Fault`."""
        return rank == self.rank and step == self.step


class FaultPlan:
    """The rules of a run, asked in order; delays add up, one loss is enough."""

    def __init__(self, faults: Sequence[Fault] = ()):
        self.faults = tuple(faults)

    def on_post(self, src: int, dst: int, tag: Tag, nbytes: int, now: float) -> float | None:
        """Seconds by which the message is held back, or None if it is lost."""
        total = 0.0
        for fault in self.faults:
            delay = fault.delay(src, dst, tag, nbytes, now)
            if delay is None:
                return None
            total += delay
        return total

    def on_step(self, rank: int, step: int) -> None:
        """Raises `InjectedCrash` when `rank` is to die as it begins `step`."""
        for fault in self.faults:
            if fault.crashes(rank, step):
                raise InjectedCrash(f"rank {rank} crashed at step {step}, as planned")
