"""An address on the virtual cluster, with what has arrived there and who waits for what."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from thinwire.errors import PeerDiedError
from thinwire.wire.base import ANY, Arrival, Posted
from thinwire.wire.meter import Meter

if TYPE_CHECKING:
    from thinwire.wire.virtual.comm import VirtualComm

__all__ = ["Endpoint", "Waiter", "died_error"]


class Waiter:
    """A suspended wait."""

    __slots__ = ("comm", "resume", "src", "tag")

    def __init__(self, comm: VirtualComm, src: int, tag: Any, resume: Callable[[Any], None]):
        self.comm = comm
        self.src = src
        self.tag = tag
        self.resume = resume


class Endpoint:
    """An address: what has arrived there and who waits for what.

    Attributes:
        gone: "" while it lives, then "finished" or "died".
        missed: whether the others have noticed that it died.
        in_flight: messages posted here that have not arrived yet.
        held: by destination, the last packet that waits for an earlier one to leave.
    """

    def __init__(self, rank: int, node: int):
        self.rank = rank
        self.node = node
        self.meter = Meter()
        self.boxes: dict[Any, deque[Arrival]] = {}
        self.waiters: dict[Any, Waiter] = {}
        self.gone = ""
        self.missed = False
        self.in_flight = 0
        self.held: dict[int, Posted] = {}
        self.programs = 0
        self.departures: deque[int] = deque()
        self.step = 0

    def take(self, src: int, tag: Any) -> Arrival | None:
        """The earliest arrival that a wait for (src, tag) would get."""
        box = self.boxes.get(tag)
        if not box:
            return None
        if src == ANY or box[0].src == src:
            return box.popleft()
        for i, arrival in enumerate(box):
            if arrival.src == src:
                del box[i]
                return arrival
        return None


def died_error(dead: Endpoint, name: str, why: str) -> PeerDiedError:
    """The error every wait raises once an endpoint has died under strict losses."""
    return PeerDiedError(dead.rank, f"{name} died at step {dead.step}: {why}")
