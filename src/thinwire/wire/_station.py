"""The post office of one process: its endpoints, its connections, and who is gone."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import deque

import msgspec

from thinwire.errors import (
    DeadlockError,
    PeerDiedError,
    PeerFinishedError,
    ThinwireError,
    WorkerFailedError,
)
from thinwire.wire._channel import ABORT, ACK, FINISHED, LEAVE, Channel, encode
from thinwire.wire._loop import Loop, Waiter
from thinwire.wire._outbox import Outbox, Soon
from thinwire.wire.base import ANY, Arrival, Losses, Posted, Tag
from thinwire.wire.meter import Meter, PeerMeter
from thinwire.wire.packet import Packet
from thinwire.wire.rendezvous import Meeting

__all__ = ["Endpoint", "Loss", "Station"]

HEALTH_EVERY = 2.0


class Endpoint:
    """An address in this process: what has arrived there and who waits for what.

    Attributes:
        boxes: by key (the tag as it travels), in the order of arrival.
        waiters: by key.
        departures: endpoints whose departure no wait for anyone has reported yet (elastic).
        tasks: keys of running tasks.
    """

    def __init__(self, rank: int):
        self.rank = rank
        self.meter = Meter()
        self.boxes: dict[bytes, deque[tuple[int, Packet, float]]] = {}
        self.waiters: dict[bytes, Waiter] = {}
        self.departures: deque[int] = deque()
        self.tasks: dict[str, None] = {}
        self.step = 0

    def take(self, src: int, key: bytes) -> tuple[int, Packet, float] | None:
        """The earliest arrival that a wait for (src, key) would get."""
        box = self.boxes.get(key)
        if box is None:
            return None
        for i, found in enumerate(box):
            if src in (ANY, found[0]):
                del box[i]
                if not box:
                    del self.boxes[key]
                return found
        return None

    def put_back(self, key: bytes, found: tuple[int, Packet, float]) -> None:
        """Undo a take: it is the earliest arrival again."""
        self.boxes.setdefault(key, deque()).appendleft(found)


class Loss(msgspec.Struct, frozen=True):
    """The first death that this process learned of: which endpoint, what happened, and when."""

    rank: int
    text: str
    time: float


class Station:
    """Everything that the endpoints of a process share. Methods want the loop's lock held.

    Args:
        meeting: who takes part, with a connection to each.
        num_servers: servers; they live in process 0.
        losses: `strict` or `elastic`.

    Attributes:
        gone: endpoints that have left: "finished" or "died".
        loss: the first death, under strict losses.
        broken: what a program of this process raised that nobody waits for.
        away: by endpoint of another process: the connection to it.
        waiters: of no endpoint: woken at every change of who is here.
        forgotten: whether this is a forked child's copy, which must not be used.
    """

    def __init__(self, meeting: Meeting, num_servers: int, losses: Losses, max_queued: int):
        self.rank = meeting.rank
        self.size = meeting.size
        self.num_endpoints = meeting.size + num_servers
        self.losses: Losses = losses
        self.max_queued = max_queued
        self.began = time.monotonic()
        self.loop = Loop(self._loop_failed)
        self.gone: dict[int, str] = {}
        self.loss: Loss | None = None
        self.broken: BaseException | None = None
        self.waiters: list[Waiter] = []
        self.forgotten = False
        here = [self.rank, *(range(self.size, self.num_endpoints) if self.rank == 0 else ())]
        self.endpoints = {rank: Endpoint(rank) for rank in here}
        soon = Soon()
        self._local = {rank: Outbox(self._emit_local, self.loop, soon) for rank in here}
        self._names = meeting.names
        self.channels = {
            peer: Channel(peer, sock, self._came, self._told, self._lost, self.loop, soon)
            for peer, sock in meeting.sockets.items()
        }
        self.away = {
            dst: self.channels[dst if dst < self.size else 0]
            for dst in range(self.num_endpoints)
            if dst not in self.endpoints
        }
        for channel in self.channels.values():
            self.loop.register(channel.sock.fileno(), channel.handle)
        if self.channels:
            self.loop.after(HEALTH_EVERY, self._check_health)
        _stations.add(self)

    def name(self, endpoint: int) -> str:
        """How messages call an endpoint."""
        if endpoint == ANY:
            return "anyone"
        return f"rank {endpoint}" if endpoint < self.size else f"server {endpoint - self.size}"

    def full_name(self, endpoint: int) -> str:
        """Its name with process and host."""
        where = self._names.get(endpoint if endpoint < self.size else 0, "")
        return f"{self.name(endpoint)} ({where})" if where else self.name(endpoint)

    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.began

    # Out.

    def post(
        self,
        src: Endpoint,
        dst: int,
        pieces: list[bytes | memoryview],
        packet: Packet,
        posted: Posted,
        after: Posted | None,
        delay: float,
    ) -> None:
        """Send a packet, whose pieces these are, on its way to another process."""
        if dst in self.gone:
            posted.mark_left()
            return
        channel = self.away[dst]
        if channel.queued > self.max_queued:
            self._refuse_flood(src, dst, channel)
        channel.send(pieces, posted, after, time.monotonic() + delay if delay else 0.0)
        counter = src.meter.peers[dst]
        counter.sent += packet.nbytes
        counter.messages_sent += 1

    def post_here(
        self,
        src: Endpoint,
        dst: int,
        key: bytes,
        packet: Packet,
        posted: Posted,
        after: Posted | None,
        delay: float,
    ) -> None:
        """Hand a packet to another endpoint of this process."""
        if dst in self.gone:
            posted.mark_left()
            return
        not_before = time.monotonic() + delay if delay else 0.0
        self._local[dst].send((src.rank, dst, key, packet), posted, after, not_before)
        src.meter.local.sent += packet.nbytes
        src.meter.local.messages_sent += 1

    def _refuse_flood(self, src: Endpoint, dst: int, channel: Channel) -> None:
        raise ThinwireError(
            f"{self.name(src.rank)} has posted {channel.queued / 2**30:.1f} GiB to "
            f"{self.full_name(dst)} that the link has not taken yet (step {src.step}); a "
            "program that posts without ever waiting outruns its link"
        )

    def finish(self, endpoint: int) -> None:
        """Say goodbye for an endpoint of this process."""
        if endpoint in self.gone:
            return
        self._depart(endpoint, "finished")
        self._broadcast(FINISHED, endpoint, b"")

    def leave(self) -> None:
        """Tell every process that this one will close its connections."""
        self._broadcast(LEAVE, self.rank, b"")

    def abort(self, cause: Loss) -> None:
        """Tell every process why this one ends early."""
        text = cause.text.encode()[:60_000].decode(errors="ignore")
        self._broadcast(ABORT, self.rank, msgspec.msgpack.encode((cause.rank, text)))

    def _broadcast(self, kind: int, src: int, payload: bytes) -> None:
        for channel in self.channels.values():
            if channel.open:
                channel.send(encode(kind, src, 0, payload))

    # In.

    def _came(self, src: int, dst: int, key: bytes, packet: Packet) -> None:
        endpoint = self.endpoints[dst]
        counter = endpoint.meter.peers[src]
        counter.received += packet.nbytes
        self._arrive(endpoint, src, key, packet, counter)

    def _told(self, channel: Channel, kind: int, src: int, payload: bytes) -> None:
        if kind == FINISHED:
            self._depart(src, "finished")
        elif kind == LEAVE:
            channel.leaving = True
            channel.send(encode(ACK, self.rank, 0, b""))
        elif kind == ACK:
            channel.acked = True
            self._wake_all()
        elif kind == ABORT:
            channel.leaving = True
            rank, text = msgspec.msgpack.decode(payload, type=tuple[int, str])
            self._died(channel.peer, rank, text)

    def _emit_local(self, item: tuple[int, int, bytes, Packet]) -> bool:
        src, dst, key, packet = item
        endpoint = self.endpoints[dst]
        endpoint.meter.local.received += packet.nbytes
        self._arrive(endpoint, src, key, packet, endpoint.meter.local)
        return True

    def _arrive(
        self, endpoint: Endpoint, src: int, key: bytes, packet: Packet, counter: PeerMeter
    ) -> None:
        if endpoint.rank in self.gone:
            return
        counter.messages_received += 1
        found = (src, packet, time.monotonic() - self.began)
        waiter = endpoint.waiters.get(key)
        if waiter is not None and waiter.src in (src, ANY):
            del endpoint.waiters[key]
            waiter.found = found
            waiter.wake()
            return
        box = endpoint.boxes.get(key)
        if box is None:
            box = endpoint.boxes[key] = deque()
        box.append(found)

    # Waiting.

    def take(self, endpoint: Endpoint, src: int, key: bytes, tag: Tag) -> Arrival | None:
        """What a wait gets now: an arrival, a departure, an error raised, or None. What came before
        a loss is given before it is told: a rank that can see for itself what is wrong says it."""
        if self.broken is not None:
            self._raise_loss(endpoint, src, tag)
        found = endpoint.take(src, key)
        if found is not None:
            return Arrival(found[0], tag, found[1], found[2])
        if self.loss is not None:
            self._raise_loss(endpoint, src, tag)
        if not self.gone:
            if self.num_endpoints == 1:
                raise DeadlockError(f"{self.name(endpoint.rank)} is alone and waits for a message")
            return None
        return self._departure(endpoint, src, tag)

    def look(
        self, channel: Channel, endpoint: Endpoint, src: int, key: bytes, head: bytes
    ) -> tuple[int, Packet, float] | None:
        """What has come on a connection for a wait that nobody else knows of yet.

        Args:
            channel: on which it comes.
            endpoint: who waits.
            src: for whom, another process's.
            key: for what.
            head: `head_of` it.
        """
        if key in endpoint.boxes:  # read by the other thread
            found = endpoint.take(src, key)
            if found is not None:
                return found
        packet = channel.look(head)
        if packet is None:
            return None
        counter = endpoint.meter.peers[src]
        counter.received += packet.nbytes
        counter.messages_received += 1
        return src, packet, time.monotonic() - self.began

    def _raise_loss(self, endpoint: Endpoint, src: int, tag: Tag) -> None:
        where = (
            f"{self.name(endpoint.rank)} was waiting for {self.name(src)} "
            f"(tag {tag!r}, step {endpoint.step})"
        )
        if self.loss is not None:
            raise PeerDiedError(self.loss.rank, f"{self.loss.text}; {where}")
        error = self.broken
        raise WorkerFailedError(
            endpoint.rank, f"a task of this process failed: {type(error).__name__}: {error}"
        ) from error

    def _departure(self, endpoint: Endpoint, src: int, tag: Tag) -> Arrival | None:
        if src != ANY:
            if src not in self.gone:
                return None
            if self.losses == "elastic":
                return Arrival(src, tag, None, self.now())
        else:
            if self.losses == "elastic" and endpoint.departures:
                return Arrival(endpoint.departures.popleft(), tag, None, self.now())
            others = [e for e in range(self.num_endpoints) if e != endpoint.rank]
            if not all(e in self.gone for e in others):
                return None
        who = "every other endpoint" if src == ANY else self.name(src)
        raise PeerFinishedError(
            f"{self.name(endpoint.rank)} waits for {who} (tag {tag!r}, step {endpoint.step}), "
            "which has finished and will never send it"
        )

    def missing(self, endpoint: Endpoint, src: int) -> str:
        """Who has not sent, and when each was last heard of."""
        if src == ANY:
            absent = [e for e in range(self.num_endpoints) if e != endpoint.rank]
        else:
            absent = [src]
        parts = []
        for rank in [e for e in absent if e not in self.gone]:
            if rank in self.endpoints:
                parts.append(f"{self.name(rank)} (in this process)")
            else:
                silence = time.monotonic() - self.away[rank].last_heard
                parts.append(f"{self.full_name(rank)}, last heard of {silence:.1f} s ago")
        return "; ".join(parts[:8]) + ("; ..." if len(parts) > 8 else "")

    def _wake_all(self) -> None:
        for endpoint in self.endpoints.values():
            for waiter in list(endpoint.waiters.values()):
                waiter.wake()
        for waiter in self.waiters:
            waiter.wake()

    # Losses.

    def _depart(self, endpoint: int, how: str) -> None:
        if endpoint in self.gone:
            return
        self.gone[endpoint] = how
        if self.losses == "elastic":
            for other in self.endpoints.values():
                if other.rank != endpoint:
                    other.departures.append(endpoint)
        self._wake_all()

    def _living(self, process: int) -> list[int]:
        """Endpoints of another process that have not said goodbye."""
        servers = range(self.size, self.num_endpoints) if process == 0 else ()
        return [e for e in (process, *servers) if e not in self.gone]

    def _lost(self, channel: Channel, how: str) -> None:
        channel.close()
        if not channel.leaving and self._living(channel.peer):
            self._died(channel.peer, channel.peer, f"{self.full_name(channel.peer)} {how}")
        self._wake_all()

    def _died(self, process: int, cause: int, text: str) -> None:
        """A process has died or aborted; `cause` is the endpoint that began it."""
        living = self._living(process)
        if self.losses == "strict" and self.loss is None and living:
            self.loss = Loss(cause, text, time.monotonic())
        for endpoint in living:
            self._depart(endpoint, "died")
        self._wake_all()

    def fail(self, error: BaseException) -> None:
        """A program of this process failed and nobody waits for its end: fail the waits."""
        if self.broken is None:
            self.broken = error
            self._wake_all()

    def _loop_failed(self, error: BaseException) -> None:
        self.broken = error
        self.loop.interrupt()

    def _check_health(self) -> None:
        for channel in self.channels.values():
            channel.check()
        self.loop.after(HEALTH_EVERY, self._check_health)

    def close(self) -> None:
        """Close every connection."""
        for channel in self.channels.values():
            channel.close()

    def forget_in_child(self) -> None:
        """In a forked child: give up the copies of the connections, or a parent's death would stay
        unseen for as long as the child lives."""
        self.loop.lock = threading.Lock()  # whoever held it is not in the child
        self.forgotten = True
        for channel in self.channels.values():
            with contextlib.suppress(OSError):
                channel.sock.close()


_stations: weakref.WeakSet[Station] = weakref.WeakSet()


def _after_fork() -> None:
    for station in list(_stations):
        station.forget_in_child()


os.register_at_fork(after_in_child=_after_fork)
