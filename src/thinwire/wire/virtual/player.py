"""Posts and waits that are known beforehand, carried out by the event loop alone.

A wait costs two switches between fibres and all that a program does around them. A collective's
moves don't depend on what comes, so its program may sleep from the first wait to the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from thinwire.errors import ThinwireError
from thinwire.fibers import pause
from thinwire.wire.base import Arrival, Move
from thinwire.wire.virtual.clock import NS
from thinwire.wire.virtual.endpoint import Waiter
from thinwire.wire.virtual.network import Message

if TYPE_CHECKING:
    from thinwire.wire.virtual.comm import VirtualComm
    from thinwire.wire.virtual.world import World

__all__ = ["Player"]


class Player:
    """One program's moves, from where it is now.

    Args:
        world: nobody in it has left, nothing in it fails, and losses are strict.
        comm: the program's; it owes no time.
        moves: what to do.
        tag: of all packets, with the program's key.
    """

    __slots__ = (
        "_began", "_comm", "_endpoint", "_moves", "_next", "_posted", "_tag", "_waiter", "_world",
    )  # fmt: skip

    def __init__(self, world: World, comm: VirtualComm, moves: Sequence[Move], tag: Any):
        self._world = world
        self._endpoint = comm.endpoint
        self._comm = comm
        self._moves = moves
        self._tag = tag
        self._next = 0
        self._began = 0
        self._posted: dict[int, Message] = {}
        self._waiter = Waiter(comm, 0, tag, self._arrived)

    def run(self) -> None:
        """Carry out all moves; pauses the calling program unless nothing has to be waited for."""
        if self._go():
            return
        outcome = pause()
        if isinstance(outcome, ThinwireError):
            raise outcome

    def _go(self) -> bool:
        """Move on to the next wait that is not over yet; whether there was none."""
        endpoint, moves, tag, at = self._endpoint, self._moves, self._tag, self._next
        for peer, packet, after in moves[at:] if at else moves:
            if packet is not None:
                first = None if after < 0 else self._posted[after]
                self._posted[at] = self._comm.post_tagged(peer, packet, tag, first)
            elif not endpoint.boxes.get(tag) or endpoint.take(peer, tag) is None:
                waiter = self._waiter
                waiter.src = peer
                endpoint.waiters[tag] = self._comm.waiting = waiter
                self._began = self._world.clock.now
                self._next = at + 1
                return False
            at += 1
        return True

    def _arrived(self, outcome: Any) -> None:
        """A wait is over, by a message or an error."""
        comm, world = self._comm, self._world
        comm.waiting = None
        now, sender = world.clock.now, self._waiter.src
        comm.meter.peers[sender].waited += (now - self._began) / NS
        comm.phases.spent["wait"] += now - self._began
        if world.spans is not None:
            world.spans.append((comm.rank, "wait", self._began, now, sender, 0))
        if outcome.__class__ is not Arrival:
            comm.resume(outcome)
        elif self._go():
            comm.resume(None)
