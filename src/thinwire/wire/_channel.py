"""One TCP connection to another process, and the frames on it.

A frame is a prefix (kind, number of buffers, key length, source and destination endpoints), the key
(the tag as msgpack), the byte length of each buffer, then the packet as `Packet.frames` gives it:
header and buffers. Control frames have no packet; their payload is the key. Large buffers are
written from, and read into, their final memory: nothing is copied in between.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import select
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import msgspec
import numpy as np

from thinwire.errors import InputError
from thinwire.wire._loop import Loop
from thinwire.wire._outbox import Outbox, Soon
from thinwire.wire.base import Posted
from thinwire.wire.packet import SMALL_HEAD, Packet, header_nbytes

__all__ = [
    "ABORT",
    "ACK",
    "FINISHED",
    "LEAVE",
    "PACKET",
    "Channel",
    "encode",
    "encode_packet",
    "head_of",
    "tune",
]

PACKET, FINISHED, LEAVE, ACK, ABORT = range(5)

_PREFIX = struct.Struct("<BBHII")
_SIZES = [struct.Struct(f"<{n}Q") for n in range(256)]
_STAGE = 128 * 1024
_JOIN = 16 * 1024  # below this copying into one piece is cheaper than one more system call's iovec
_BUDGET = 4 << 20  # bytes read from one connection before the others have their turn
_UNSENT = 128 * 1024
_WAKE = 64 * 1024
"""Bytes of a large buffer that are to have come before the reader is woken for them: on a slow line
every frame would wake it, and take a core from the training beside it."""
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 4}
_UNREACHABLE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
_SILENCE = 15.0
_CLOSED = "died without a goodbye: its connection closed"
_SILENT = "no longer answers: its host or the link to it was lost"
_SIOCOUTQ = 0x5411


def encode(kind: int, src: int, dst: int, payload: bytes) -> list[bytes | memoryview]:
    """The one piece of a control frame."""
    return [_PREFIX.pack(kind, 0, len(payload), src, dst) + payload]


def head_of(src: int, dst: int, key: bytes) -> bytes:
    """What the frame of a packet of one buffer begins with."""
    return _PREFIX.pack(PACKET, 1, len(key), src, dst) + key


def encode_packet(src: int, dst: int, key: bytes, packet: Packet) -> list[bytes | memoryview]:
    """The pieces of a packet's frame, in order; pieces of a small one are joined."""
    small = packet.small(_JOIN)
    if small is not None:
        return [head_of(src, dst, key) + small]
    frames = packet.frames()
    num_buffers = len(frames) - 1
    prefix = _PREFIX.pack(PACKET, num_buffers, len(key), src, dst)
    sizes = list(map(len, frames[1:]))
    lengths = _SIZES[num_buffers].pack(*sizes)
    if sum(sizes) <= _JOIN:
        return [b"".join((prefix, key, lengths, *frames))]
    head = b"".join((prefix, key, lengths, frames[0]))
    return [head, *(buffer for buffer, size in zip(frames[1:], sizes, strict=True) if size)]


def tune(sock: socket.socket) -> None:
    """No delay for small frames, little unsent data in the kernel, and a dead host is noticed.

    Few unsent bytes make `Posted` mean something: what the kernel has taken has nearly left. The
    send buffer itself stays the kernel's to size, so long fat links are filled.
    """
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {**_KEEPALIVE, "TCP_NOTSENT_LOWAT": _UNSENT}
    for name, value in options.items():
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


class Channel:
    """A connection; every method is called with the loop's lock held.

    Args:
        peer: the process at the other end.
        sock: connected and tuned.
        came: called with (src, dst, key, packet) for each packet that came.
        told: called with (channel, kind, src, payload) for each control frame.
        lost: called with (channel, how) when the connection is of no more use.
        loop: polls the connection.
        soon: see `Outbox`.

    Attributes:
        open: whether bytes can still go.
        leaving: whether the peer has said that it will close.
        acked: whether the peer knows that we will close.
        last_heard: `time.monotonic()` of the last byte that came.
        queued: bytes accepted by `send` that the kernel has not taken.
    """

    def __init__(
        self,
        peer: int,
        sock: socket.socket,
        came: Callable[[int, int, bytes, Packet], None],
        told: Callable[[Channel, int, int, bytes], None],
        lost: Callable[[Channel, str], None],
        loop: Loop,
        soon: Soon,
    ):
        self.peer = peer
        self.sock = sock
        self.open = True
        self.leaving = False
        self.acked = False
        self.last_heard = monotonic()
        self.queued = 0
        self._came = came
        self._told = told
        self._lost = lost
        self._loop = loop
        self._blocked = False
        self.outbox = Outbox(self._emit, loop, soon)
        self._stage = bytearray(_STAGE)
        self._view = memoryview(self._stage)
        self._start = self._end = 0
        self._wake = 1
        self._todo: deque[memoryview] = deque()
        self._arriving: tuple[int, int, bytes, list[Any]] | None = None

    # Out.

    def send(
        self,
        pieces: list[bytes | memoryview],
        posted: Posted | None = None,
        after: Posted | None = None,
        not_before: float = 0.0,
    ) -> None:
        """Accept a frame; see `Outbox.send`."""
        if self.outbox.empty and not not_before and (after is None or after.left):
            # The usual case, without a queue; a small frame is one piece that the kernel takes.
            if len(pieces) == 1 and self.open and not self._blocked:
                try:
                    sent = self.sock.send(pieces[0])
                except OSError:
                    sent = 0  # it will be seen again
                gone = sent == len(pieces[0])
                if not gone:
                    pieces[0] = memoryview(pieces[0])[sent:]
            else:
                gone = False
            if gone or self._write(pieces):
                if posted is not None:
                    posted.mark_left()
                return
            after = None
        self.queued += sum(map(len, pieces))
        self.outbox.send(pieces, posted, after, not_before)

    def _emit(self, pieces: list[bytes | memoryview]) -> bool:
        before = sum(map(len, pieces))
        gone = self._write(pieces)
        self.queued -= before - sum(map(len, pieces))
        return gone

    def _write(self, pieces: list[bytes | memoryview]) -> bool:
        """Give the kernel what it takes; whether it took all."""
        taken = True
        while pieces and self.open:
            try:
                single = len(pieces) == 1
                sent = self.sock.send(pieces[0]) if single else self.sock.sendmsg(pieces)
            except BlockingIOError:
                taken = False
                break
            except OSError:
                pieces.clear()  # the reading side learns of the loss, after what has already come
                break
            while pieces and sent >= len(pieces[0]):
                sent -= len(pieces[0])
                del pieces[0]
            if sent:
                pieces[0] = memoryview(pieces[0])[sent:]
        if taken is self._blocked and self.open:
            self._blocked = not taken
            self._loop.want_write(self.sock.fileno(), self._blocked)
        return taken

    @property
    def drained(self) -> bool:
        """Whether the other side's kernel has everything that was sent."""
        if not self.outbox.empty:
            return False
        try:
            return not any(fcntl.ioctl(self.sock, _SIOCOUTQ, b"\0\0\0\0"))
        except OSError:
            return True

    # In.

    def handle(self, mask: int) -> None:
        """Read and write what can be, as the poll says."""
        if mask & select.POLLOUT:
            self.outbox.flush()
        if mask & ~select.POLLOUT and self.open:  # to be read, or an error to be learned of
            self._receive()

    def look(self, head: bytes) -> Packet | None:
        """Read what has come without waiting for it. A packet that came alone and small, in a frame
        that begins with `head`, is returned; anything else is delivered."""
        if self._end or self._arriving is not None:  # in the midst of a frame
            self._receive()
            return None
        try:
            came = self.sock.recv_into(self._stage)
        except OSError:
            return None  # nothing there; of a loss the poll tells
        stage, at = self._stage, len(head)
        if came >= at + SMALL_HEAD and stage.startswith(head):
            packet = Packet.read_small(stage, at, came)
            if packet is not None and at + 8 + packet.nbytes == came:
                self.last_heard = monotonic()
                return packet
        if came:  # of the end the poll tells, too
            self._take_in(came)
        return None

    def _receive(self) -> None:
        """Read what has come and deliver its frames."""
        budget = _BUDGET
        while budget > 0 and self.open:
            try:
                if self._todo:
                    room = sum(map(len, self._todo)) + _STAGE
                    came = self.sock.recvmsg_into([*self._todo, self._view])[0]
                else:
                    room = _STAGE - self._end
                    came = self.sock.recv_into(self._view[self._end :] if self._end else self._view)
            except BlockingIOError:
                return
            except OSError as error:
                self._lost(self, _SILENT if error.errno in _UNREACHABLE else _CLOSED)
                return
            if came == 0:
                self._lost(self, _CLOSED)
                return
            self._take_in(came)
            budget -= came
            if came < room:
                return

    def _take_in(self, came: int) -> None:
        """Deliver the frames that are whole now that so many bytes have come."""
        self.last_heard = monotonic()
        try:
            self._end += came if self._arriving is None else self._fill(came)
            while self._end - self._start >= _PREFIX.size and self._parse():
                pass
        except (InputError, msgspec.MsgspecError) as error:
            self._lost(self, f"sent what cannot be read ({error})")
            return
        if self._start == self._end:
            self._start = self._end = 0
        else:
            self._compact()
        if (self._todo or self._wake > 1) and self.open:
            self._wake_at(max(1, sum(map(len, self._todo))))

    def _wake_at(self, due: int) -> None:
        """Wake for no fewer bytes than these, or than are worth it."""
        wake = min(due, _WAKE)
        if wake != self._wake:
            self._wake = wake
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake)

    def _fill(self, came: int) -> int:
        """Count what has come into the awaited buffers; how much of it lies on the stage."""
        todo = self._todo
        while todo and came >= len(todo[0]):
            came -= len(todo.popleft())
        if todo:
            todo[0] = todo[0][came:]
            return 0
        if self._arriving is not None:
            src, dst, key, frames = self._arriving
            self._arriving = None
            self._came(src, dst, key, Packet.from_frames(frames))
        return came

    def _compact(self) -> None:
        left = self._end - self._start
        if self._start and left:
            self._view[:left] = self._view[self._start : self._end].tobytes()
        self._start, self._end = 0, left

    def _parse(self) -> bool:
        """Take one frame off the stage, where there is a whole prefix; False when there is no whole
        frame (or its head)."""
        start, end, stage = self._start, self._end, self._stage
        kind, num_buffers, key_length, src, dst = _PREFIX.unpack_from(stage, start)
        key_at = start + _PREFIX.size
        sizes_at = key_at + key_length
        view = self._view
        if num_buffers == 1 and kind == PACKET and end >= sizes_at + SMALL_HEAD:
            packet = Packet.read_small(stage, sizes_at, end)
            if packet is not None:
                self._start = sizes_at + 8 + packet.nbytes
                self._came(src, dst, view[key_at:sizes_at].tobytes(), packet)
                return True
        head_at = sizes_at + 8 * num_buffers
        body_at = head_at + header_nbytes(num_buffers) if kind == PACKET else sizes_at
        if end < body_at:
            return False
        self._start = body_at
        key = view[key_at:sizes_at].tobytes()
        if kind != PACKET:
            self._told(self, kind, src, key)
            return True
        sizes = _SIZES[num_buffers].unpack_from(stage, sizes_at)
        frames: list[Any] = [view[head_at:body_at].tobytes()]
        if end - body_at < sum(sizes):
            self._expect(src, dst, key, frames, sizes)
            return False
        for size in sizes:
            frames.append(stage[body_at : body_at + size])
            body_at += size
        self._start = body_at
        self._came(src, dst, key, Packet.from_frames(frames))
        return True

    def _expect(
        self, src: int, dst: int, key: bytes, frames: list[Any], sizes: Sequence[int]
    ) -> None:
        """Make room for buffers that are still coming, and take what has come of them."""
        for size in sizes:
            buffer = np.empty(size, np.uint8).data  # not cleared, as a bytearray would be
            frames.append(buffer)
            have = min(size, self._end - self._start)
            buffer[:have] = self._view[self._start : self._start + have]
            self._start += have
            if have < size:
                self._todo.append(buffer[have:])
        self._arriving = (src, dst, key, frames)

    # The end.

    def check(self) -> None:
        """Give the connection up if the other host has stopped answering."""
        if self.open and self._silent():
            self._lost(self, _SILENT)

    def _silent(self) -> bool:
        """Whether it has, while something is on its way to it.

        An idle connection is watched by the kernel (keepalive). With data in flight the kernel
        would try for a quarter of an hour, and TCP_USER_TIMEOUT would also kill a peer that is
        merely stopped: it answers probes without taking data.
        """
        option = getattr(socket, "TCP_INFO", None)
        if option is None:
            return False
        info = self.sock.getsockopt(socket.IPPROTO_TCP, option, 104)
        retransmits, probes = info[2], info[3]
        last_ack = struct.unpack_from("<I", info, 56)[0] / 1e3
        return max(retransmits, probes) >= 2 and last_ack >= _SILENCE

    def close(self) -> None:
        """Forget what has not gone; whoever waited for it to leave goes on."""
        if not self.open:
            return
        self.open = False
        self.queued = 0
        self._loop.unregister(self.sock.fileno())
        with contextlib.suppress(OSError):
            self.sock.close()
        self.outbox.flush()
