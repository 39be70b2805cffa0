"""What the ranks of a loop tell each other beside the method: settings, digests, who has ended."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec
import torch

from thinwire.errors import DeadlineError, InputError, ThinwireError
from thinwire.wire.base import ANY, Comm, Tag
from thinwire.wire.packet import Packet

__all__ = [
    "DIFFER",
    "AbstractEnds",
    "Ends",
    "Settings",
    "adopt",
    "check_digests",
    "compare_settings",
    "facts_of",
    "gather",
    "settings_of",
    "share",
]

Settings: TypeAlias = list[dict[str, Any]]

DIFFER = (
    "the optimizers differ: {key} is {a} on rank {rank_a} and {b} on rank {rank_b}; load the same "
    "checkpoint on every rank, or on none"
)
"""What is said where settings are not equal."""

_START = 60.0
"""Seconds that a task may take to begin."""


def share(comm: Comm, value: Any, tag: Tag) -> list[Any]:
    """Every rank's value, by rank; all ranks call. Blocks.

    Args:
        comm: this rank's endpoint.
        value: numbers, texts, lists and dicts.
        tag: equal on all ranks.
    """
    packet = _packed(value)
    others = [r for r in range(comm.size) if r != comm.rank]
    for peer in others:
        comm.post(peer, packet, tag)
    found = {comm.rank: value}
    for peer in others:
        found[peer] = _unpacked(comm.wait(peer, tag).packet)
    return [found[r] for r in range(comm.size)]


def gather(comm: Comm, value: Any, tag: Tag) -> list[Any]:
    """Every rank's value, by rank, at rank 0; nothing elsewhere. All ranks call. Rank 0 blocks
    until the last has: they may end at very different times.

    Args:
        comm: this rank's endpoint.
        value: numbers, texts, lists and dicts.
        tag: equal on all ranks.
    """
    if comm.rank:
        comm.post(0, _packed(value), tag)
        return []
    others = range(1, comm.size)
    return [value, *(_unpacked(comm.wait(r, tag, math.inf).packet) for r in others)]


def _packed(value: Any) -> Packet:
    data = bytearray(msgspec.msgpack.encode(value))
    return Packet((torch.frombuffer(data, dtype=torch.uint8),), kind="control")


def _unpacked(packet: Packet | None) -> Any:
    assert packet is not None
    return msgspec.msgpack.decode(packet.buffers[0].numpy().tobytes())


def settings_of(optimizer: torch.optim.Optimizer) -> Settings:
    """The numbers, flags and texts of each parameter group; one-element tensors as numbers."""
    return [
        {k: plain for k, v in group.items() if (plain := _plain(v)) is not None}
        for group in optimizer.param_groups
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return float(value) if value.numel() == 1 else None
    if isinstance(value, tuple):
        return list(value) if all(isinstance(v, (int, float)) for v in value) else None
    return value if isinstance(value, (bool, int, float, str)) else None


def adopt(optimizer: torch.optim.Optimizer, settings: Settings) -> None:
    """Give an optimizer the settings of another rank's."""
    for group, theirs in zip(optimizer.param_groups, settings, strict=True):
        for key, value in theirs.items():
            own = group.get(key)
            if isinstance(own, torch.Tensor):
                own.fill_(value)
            else:
                group[key] = tuple(value) if isinstance(own, tuple) else value


def facts_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What must be equal on all ranks, by its name in messages."""
    groups = settings_of(optimizer)
    return {
        "the number of groups": len(groups),
        **{
            f"{key!r} of parameter group {i}": value
            for i, group in enumerate(groups)
            for key, value in group.items()
        },
        "the number of tensors with a state": len(optimizer.state),
    }


def compare_settings(comm: Comm, optimizer: torch.optim.Optimizer) -> None:
    """Hold the optimizers of all ranks to equal settings. Blocks.

    Raises:
        InputError: naming what differs, the ranks and their values.
    """
    first, *others = share(comm, facts_of(optimizer), "settings")
    for rank, other in enumerate(others, start=1):
        for what in {**first, **other}:
            a, b = first.get(what), other.get(what)
            if a != b:
                raise InputError(
                    DIFFER.format(key=what, a=repr(a), b=repr(b), rank_a=0, rank_b=rank)
                )


class _Word(msgspec.Struct, array_like=True):
    """How far a rank is: it has ended after `step` steps, or is about to complete step `step`.

    `begun` is one more than `step` where an ended rank's method has begun a step in vain.
    `settings` are its optimizer's at that moment.
    """

    ended: bool
    step: int
    begun: int
    settings: Settings


class AbstractEnds(ABC):
    """Lets loops of unequal length take equally many steps."""

    @abstractmethod
    def begin(self, step: int) -> None:
        """This rank is about to complete a step, counted from 1."""

    @abstractmethod
    def leave(self, step: int, begun: int) -> None:
        """This rank's loop has ended after so many steps."""

    @abstractmethod
    def beyond(self, step: int) -> bool:
        """Block until it is known whether some rank goes further than `step`."""

    @abstractmethod
    def settings_at(self, step: int) -> Settings:
        """The optimizer settings of a rank that went so far, for that step."""

    @property
    @abstractmethod
    def last_settings(self) -> Settings:
        """Those of the lowest rank of those that went furthest, as far as known."""

    @property
    @abstractmethod
    def begun(self) -> int:
        """Steps that some rank's method has begun, once all have ended."""


class Ends(AbstractEnds):
    """As `AbstractEnds`, by messages.

    A rank whose loop has ended tells the others and goes on with empty steps for as long as any
    other takes real ones. While no loop has ended nothing is sent and nobody waits: a task listens
    beside the training, for a rank may be blocked in the very exchange that the ended one lacks.

    Args:
        comm: this rank's endpoint; size 2 or more.
        settings: this rank's optimizer settings now.
    """

    def __init__(self, comm: Comm, settings: Callable[[], Settings]):
        self._comm = comm
        self._settings = settings
        self._step = 0
        self._watching: list[int] = []
        self._known: dict[int, _Word] = {}
        self._settings_at: dict[int, Settings] = {}
        self._listening = threading.Event()
        self._inner: Comm | None = None
        comm.start(self._listen, "loop ends")

    def _listen(self, comm: Comm) -> None:
        self._inner = comm
        self._listening.set()
        for _ in range(comm.size - 1):
            src = comm.wait(ANY, "ended", math.inf).src
            # In this order, and the other way round in `begin`: no step goes unsaid.
            self._watching.append(src)
            if self._step:
                self._tell([src], self._going())

    def _tell(self, ranks: list[int], word: _Word) -> None:
        assert self._inner is not None
        packet = _packed(word)
        for rank in ranks:
            self._inner.post(rank, packet, "word")

    def begin(self, step: int) -> None:
        """See `AbstractEnds`."""
        self._step = step
        if self._watching:
            self._tell(self._watching, self._going())

    def _going(self) -> _Word:
        return _Word(False, self._step, self._step, self._settings())

    def leave(self, step: int, begun: int) -> None:
        """See `AbstractEnds`."""
        if not self._listening.wait(_START):
            raise DeadlineError(f"rank {self._comm.rank}: the communication thread does not answer")
        comm = self._inner
        assert comm is not None
        others = [r for r in range(comm.size) if r != comm.rank]
        own = self._known[comm.rank] = _Word(True, step, begun, self._settings())
        self._tell(others, own)
        for rank in others:
            comm.post(rank, Packet((), kind="control"), "ended")

    def beyond(self, step: int) -> bool:
        """See `AbstractEnds`."""
        comm = self._inner
        assert comm is not None
        while all(w.step <= step for w in self._known.values()):
            if len(self._known) == comm.size and all(w.ended for w in self._known.values()):
                return False
            arrival = comm.wait(ANY, "word")
            word = msgspec.convert(_unpacked(arrival.packet), type=_Word)
            if not word.ended:
                self._settings_at[word.step] = word.settings
            before = self._known.get(arrival.src)
            if before is None or not before.ended:
                self._known[arrival.src] = word
        return True

    def settings_at(self, step: int) -> Settings:
        """See `AbstractEnds`."""
        return self._settings_at.get(step) or self.last_settings

    @property
    def last_settings(self) -> Settings:
        """See `AbstractEnds`."""
        return max(sorted(self._known.items()), key=lambda item: item[1].step)[1].settings

    @property
    def begun(self) -> int:
        """See `AbstractEnds`."""
        return max(w.begun for w in self._known.values())


def check_digests(found: Sequence[str]) -> None:
    """Hold the replicas of all ranks to equal parameters.

    Args:
        found: their digests, by rank.

    Raises:
        ThinwireError: naming the ranks that differ from rank 0.
    """
    wrong = [str(r) for r, d in enumerate(found) if d != found[0]]
    if wrong:
        raise ThinwireError(
            f"the parameters of rank {', '.join(wrong)} differ from rank 0's at the end "
            f"({', '.join(found)}): were they, the optimizer's settings or its state changed on "
            "some ranks only?"
        )
