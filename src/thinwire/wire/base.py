"""The seam: everything a training method can do to the outside world.

`Comm` is implemented twice, on the virtual cluster (`wire/virtual`) and between processes
(`wire/sockets`); `thinwire.testing.check_comm` holds both to the same behaviour.

* `post` never blocks; `wait` does, and nothing else here does but `Task.wait`.
* Addresses are endpoints: workers 0..size-1, then servers size..size+num_servers-1.
* Packets of one pair of endpoints with one tag arrive in the order in which they were posted.
* `strict` losses: any death fails every wait at once with `PeerDiedError`, naming the rank.
  `elastic` losses: a departure is an `Arrival` with `packet=None`; posts to the gone are dropped.
* A goodbye (a program that returned) is not a death; waiting for what a finished endpoint never
  sent raises `PeerFinishedError` under `strict`, and is a departure under `elastic`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from thinwire.phases import Phases, within
from thinwire.wire.meter import Meter
from thinwire.wire.packet import Packet

__all__ = ["ANY", "Arrival", "Comm", "Losses", "Move", "Posted", "Tag", "Task", "Work"]

ANY = -1
"""As the source of a wait: whoever comes first."""

Tag: TypeAlias = str | int | tuple["str | int", ...]
Losses: TypeAlias = Literal["strict", "elastic"]


class Work(msgspec.Struct, frozen=True):
    """Computation to be charged to a node; the parts add up.

    Args:
        flops: floating-point operations, run at the node's effective rate.
        memory_bytes: bytes read and written by memory-bound kernels, run at its memory rate.
        kind: a key of `passes.KERNELS`: the node may do these bytes at a rate of their own.
        elapsed: seconds on the node's own clock at its nominal speed, as measured there.
    """

    flops: float = 0.0
    memory_bytes: float = 0.0
    elapsed: float = 0.0
    kind: str = ""


class Arrival(NamedTuple):
    """What a wait returns.

    Args:
        src: the endpoint it came from, or that has left.
        tag: the tag waited for.
        packet: None says that `src` has left (elastic losses only).
        time: seconds on `now()`'s clock at which it arrived.
    """

    src: int
    tag: Tag
    packet: Packet | None
    time: float

    @property
    def departed(self) -> bool:
        """Whether this is a departure, not a message."""
        return self.packet is None


class Move(NamedTuple):
    """A post or a wait that is known beforehand, see `Comm.play`.

    Args:
        peer: posted to or waited for.
        packet: None is a wait.
        after: the earlier move whose packet must have left before this one goes; -1 is none.
    """

    peer: int
    packet: Packet | None
    after: int = -1


class Posted:
    """A posted packet, to be named by the `after` of a later post. Opaque."""

    left = False
    _next: list[Callable[[], None]] | None = None

    def then(self, action: Callable[[], None]) -> None:
        """Run `action` when the packet has left; at once if it has."""
        if self.left:
            action()
        elif self._next is None:
            self._next = [action]
        else:
            self._next.append(action)

    @property
    def awaited(self) -> bool:
        """Whether a later post waits for this one to leave."""
        return self._next is not None

    def mark_left(self) -> None:
        """Called by the wire, once."""
        self.left = True
        if self._next is not None:
            actions, self._next = self._next, None
            for action in actions:
                action()


class Task(ABC):
    """A program that goes on beside its starter."""

    @abstractmethod
    def wait(self, deadline: float | None = None) -> Any:
        """Block until the program has ended; returns what it returned, raises what it raised.

        Args:
            deadline: seconds from now.
        """

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether the program has ended."""


class Comm(ABC):
    """The endpoint of one program.

    Attributes:
        rank: this endpoint.
        size: number of workers.
        num_servers: number of servers; their endpoints follow the workers'.
        losses: `strict` or `elastic`.
        meter: what this endpoint sent, received and waited.
        step: where the program is, set by it; errors and injected faults name it.
        simulated: whether time is virtual, so that computation must be charged by `spend`.
        in_hook: set while a hook of the backward pass is called after it, on the virtual cluster:
            a wait raises, as it does on the real wire.
        meetings: where the workers of one process may leave things for each other, so that a
            collective's arithmetic is done once; None where they share no memory.
        phases: where this program's time goes; None where nobody counts.
    """

    simulated: bool = False
    in_hook: bool = False
    meetings: dict[Any, Any] | None = None
    phases: Phases | None = None
    rank: int
    size: int
    num_servers: int
    losses: Losses
    meter: Meter
    step: int

    @abstractmethod
    def now(self) -> float:
        """Seconds since the run began: virtual, or of a monotonic clock."""

    @abstractmethod
    def post(
        self, dst: int, packet: Packet, tag: Tag = 0, *, after: Posted | None = None
    ) -> Posted:
        """Hand a packet to the wire; never blocks. Its buffers must not be written any more.

        Packets to different peers share this node's link. A program that wants one to go first
        (the far half of a tree, the urgent layer) says so with `after`.

        Args:
            dst: endpoint, 0..size+num_servers-1, not this one.
            packet: what travels.
            tag: what the receiver waits for.
            after: this packet starts to leave only when that one has left this node.

        Raises:
            InputError: a destination that does not exist.
        """

    @abstractmethod
    def wait(self, src: int = ANY, tag: Tag = 0, deadline: float | None = None) -> Arrival:
        """Block until a packet with this tag has come.

        Args:
            src: endpoint or `ANY` (the earliest arrival wins).
            tag: what the sender gave.
            deadline: seconds from now; None is the wire's own limit (virtual: none, since a
                deadlock is detected; real: the run's `deadline`).

        Raises:
            DeadlineError: nothing came in time.
            PeerDiedError: a peer died (strict losses).
            PeerFinishedError: the awaited peers have finished without sending it.
            WaitInBackwardError: called inside an autograd hook.
        """

    def play(self, moves: Sequence[Move], tag: Tag) -> None:
        """Post and wait as told, dropping what comes: for those who need only the time it takes.

        Strict losses only, for a departure would be dropped, too.

        Raises:
            as `wait`.
        """
        posted: dict[int, Posted] = {}
        for i, move in enumerate(moves):
            if move.packet is None:
                self.wait(move.peer, tag)
            else:
                posted[i] = self.post(move.peer, move.packet, tag, after=posted.get(move.after))

    @abstractmethod
    def spend(self, work: Work) -> None:
        """Charge computation to this node: virtual time passes, contending with whatever else
        the node computes; on the real wire nothing happens, for the work itself took the time.
        Inside an autograd hook it only charges, without suspending."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """A block whose time is counted as a phase's: what is spent in it on the virtual cluster,
        what it takes on the real wire. Posts and waits in it count as "send" and "wait", and an
        inner block as its own phase.

        Args:
            name: a key of `thinwire.phases.PHASES`.

        Raises:
            InputError: no such phase.
        """
        return within(self.phases, name)

    @abstractmethod
    def start(self, program: Callable[[Comm], Any], key: str) -> Task:
        """Run `program(comm)` beside the caller, on an endpoint of the same rank whose tags live
        under `key`.

        Args:
            program: may block on its comm; runs without gradients; must not draw from global
                random generators.
            key: equal on all ranks for tasks that talk to each other; unique among this rank's
                running tasks.
        """
