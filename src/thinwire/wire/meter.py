"""What went over the wire and where the time went, counted once."""

from __future__ import annotations

from dataclasses import dataclass, field

from thinwire.phases import Phases

__all__ = ["Meter", "PeerMeter"]


@dataclass(slots=True)
class PeerMeter:
    """Traffic with one peer: bytes and messages in each direction, seconds waited for it."""

    sent: int = 0
    received: int = 0
    messages_sent: int = 0
    messages_received: int = 0
    waited: float = 0.0


class _Peers(dict[int, PeerMeter]):
    """Counters that begin at zero when first asked for."""

    def __missing__(self, rank: int) -> PeerMeter:
        found = self[rank] = PeerMeter()
        return found


@dataclass(slots=True)
class Meter:
    """Counters of one endpoint, per peer (key -1: a wait for anyone).

    Packets between endpoints of one machine cross no wire and are counted apart, in `local`.
    `phases` is of the endpoint's own program; all else is of the tasks started by it, too. Sums may
    be read beside the thread that counts, which may be meeting a peer for the first time.
    """

    peers: dict[int, PeerMeter] = field(default_factory=_Peers)
    local: PeerMeter = field(default_factory=PeerMeter)
    computed: float = 0.0
    phases: Phases = field(default_factory=Phases)

    def peer(self, rank: int) -> PeerMeter:
        """The counters of one peer."""
        return self.peers[rank]

    def _each(self) -> list[PeerMeter]:
        return list(self.peers.values())  # at once: a loop would see the dict grow

    @property
    def sent(self) -> int:
        """Bytes sent over the wire."""
        return sum(p.sent for p in self._each())

    @property
    def received(self) -> int:
        """Bytes received over the wire."""
        return sum(p.received for p in self._each())

    @property
    def messages_sent(self) -> int:
        """Messages sent over the wire."""
        return sum(p.messages_sent for p in self._each())

    @property
    def waited(self) -> float:
        """Seconds in which the endpoint's program waited for a message."""
        return sum(p.waited for p in self._each()) + self.local.waited
