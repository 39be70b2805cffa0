"""One TCP connection to another process, and the frames on it.

A frame is a prefix (kind, number of buffers, key length, source and destination endpoints), the key
(the tag as msgpack), the byte length of each buffer, then the packet as `Packet.frames` gives it:
header and buffers. Control frames have no packet; their payload is the key. Large buffers are
written from, and read into, their final memory: nothing is copied in between.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from thinwire.wire._loop import Loop
from thinwire.wire._outbox import Outbox, Soon
from thinwire.wire.base import Posted
from thinwire.wire.packet import header_nbytes

__all__ = ["ABORT", "ACK", "FINISHED", "LEAVE", "PACKET", "Channel", "encode", "tune"]

PACKET, FINISHED, LEAVE, ACK, ABORT = range(5)

_PREFIX = struct.Struct("<BBHII")
_STAGE = 128 * 1024
_JOIN = 16 * 1024  # below this copying into one piece is cheaper than one more system call's iovec
_BUDGET = 4 << 20  # bytes read from one connection before the others have their turn
_UNSENT = 128 * 1024
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 4}
_SILENCE = 15.0
_SIOCOUTQ = 0x5411


def encode(
    kind: int, src: int, dst: int, key: bytes, frames: Sequence[bytes | memoryview] = ()
) -> list[memoryview]:
    """The pieces of a frame, in order; pieces of a small one are joined."""
    buffers = frames[1:]
    sizes = [len(buffer) for buffer in buffers]
    head = _PREFIX.pack(kind, len(buffers), len(key), src, dst) + key
    if frames:
        head += struct.pack(f"<{len(sizes)}Q", *sizes) + frames[0]
    if sum(sizes) <= _JOIN:
        return [memoryview(b"".join([head, *buffers]))]
    return [memoryview(head), *(memoryview(b) for b, n in zip(buffers, sizes, strict=True) if n)]


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
        deliver: called with (channel, kind, src, dst, key, frames) for each frame that came.
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
        deliver: Callable[[Channel, int, int, int, bytes, list[Any]], None],
        loop: Loop,
        soon: Soon,
    ):
        self.peer = peer
        self.sock = sock
        self.open = True
        self.leaving = False
        self.acked = False
        self.last_heard = time.monotonic()
        self.queued = 0
        self._deliver = deliver
        self._loop = loop
        self._blocked = False
        self.outbox = Outbox(self._write, loop, soon)
        self._stage = bytearray(_STAGE)
        self._view = memoryview(self._stage)
        self._start = self._end = 0
        self._todo: deque[memoryview] = deque()
        self._arriving: tuple[int, int, bytes, list[Any]] | None = None

    # Out.

    def send(
        self,
        pieces: list[memoryview],
        posted: Posted | None = None,
        after: Posted | None = None,
        not_before: float = 0.0,
    ) -> None:
        """Accept a frame; see `Outbox.send`."""
        self.queued += sum(map(len, pieces))
        self.outbox.send(pieces, posted, after, not_before)

    def _write(self, pieces: list[memoryview]) -> bool:
        """Give the kernel what it takes; whether it took all."""
        if not self.open:
            return True
        taken = True
        while pieces:
            try:
                sent = self.sock.sendmsg(pieces)
            except BlockingIOError:
                taken = False
                break
            except OSError:
                # The reading side learns of the loss too, after what has already come.
                pieces.clear()
                break
            self.queued -= sent
            while pieces and sent >= len(pieces[0]):
                sent -= len(pieces[0])
                del pieces[0]
            if sent:
                pieces[0] = pieces[0][sent:]
        if taken is self._blocked:
            self._blocked = not taken
            self._loop.want_write(self.sock, self._blocked)
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

    def receive(self) -> bool:
        """Read what has come and deliver its frames; False at the end of the connection."""
        budget = _BUDGET
        while budget > 0:
            try:
                if self._todo:
                    room = sum(len(piece) for piece in self._todo)
                    came = self.sock.recvmsg_into([*self._todo, self._view])[0]
                    room += _STAGE
                else:
                    room = _STAGE - self._end
                    came = self.sock.recv_into(self._view[self._end :])
            except BlockingIOError:
                return True
            except OSError:
                return False
            if came == 0:
                return False
            self.last_heard = time.monotonic()
            budget -= came
            self._take(came)
            if came < room:
                return True
        return True

    def _take(self, came: int) -> None:
        todo = self._todo
        while todo and came >= len(todo[0]):
            came -= len(todo.popleft())
        if todo:
            todo[0] = todo[0][came:]
            return
        if self._arriving is not None:
            src, dst, key, frames = self._arriving
            self._arriving = None
            self._deliver(self, PACKET, src, dst, key, frames)
        self._end += came
        while self._parse():
            pass
        self._compact()

    def _compact(self) -> None:
        left = self._end - self._start
        if self._start and left:
            self._view[:left] = self._view[self._start : self._end].tobytes()
        self._start, self._end = 0, left

    def _parse(self) -> bool:
        """Take one frame off the stage; False when there is no whole one (or its head)."""
        start, there = self._start, self._end - self._start
        if there < _PREFIX.size:
            return False
        kind, num_buffers, key_length, src, dst = _PREFIX.unpack_from(self._stage, start)
        sizes_at = _PREFIX.size + key_length
        if kind != PACKET:
            if there < sizes_at:
                return False
            self._start += sizes_at
            key = self._bytes(start + _PREFIX.size, key_length)
            self._deliver(self, kind, src, dst, key, [])
            return True
        head_at = sizes_at + 8 * num_buffers
        body_at = head_at + header_nbytes(num_buffers)
        if there < body_at:
            return False
        key = self._bytes(start + _PREFIX.size, key_length)
        sizes = struct.unpack_from(f"<{num_buffers}Q", self._stage, start + sizes_at)
        frames: list[Any] = [self._bytes(start + head_at, body_at - head_at)]
        self._start += body_at
        if there >= body_at + sum(sizes):
            for size in sizes:
                frames.append(self._stage[self._start : self._start + size])
                self._start += size
            self._deliver(self, PACKET, src, dst, key, frames)
            return True
        self._expect(src, dst, key, frames, sizes)
        return False

    def _bytes(self, start: int, length: int) -> bytes:
        return bytes(self._view[start : start + length])

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

    def silent(self) -> bool:
        """Whether the other host has stopped answering, while something is on its way to it.

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
        self._loop.unregister(self.sock)
        with contextlib.suppress(OSError):
            self.sock.close()
        self.outbox.flush()
