"""The line between a worker's process and the clock server: messages over a local socket.

A message is a head (a msgpack list that ends with the sizes of the frames) and the raw frames of a
packet. The worker's side blocks; the server's never does, for whoever it waits for may itself be
waiting to write to it.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

__all__ = ["Frames", "Line", "LineEnded", "Message", "Reader", "encode"]

Frames: TypeAlias = Sequence[bytes | memoryview]
Message: TypeAlias = tuple[list[Any], list[memoryview]]
"""A head without the sizes, and the frames."""

_PREFIX = struct.Struct("<IQ")  # bytes of the head, of all frames
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_JOIN = 64 * 1024
_CHUNK = 1 << 18


class LineEnded(Exception):
    """The other side has closed the line, or is gone."""


def encode(head: Sequence[Any], frames: Frames = ()) -> list[bytes | memoryview]:
    """The pieces of a message, in order."""
    sizes = [len(frame) for frame in frames]
    data = _encode([*head, sizes])
    return [_PREFIX.pack(len(data), sum(sizes)) + data, *(f for f in frames if len(f))]


class Line:
    """The worker's side.

    Args:
        sock: connected, blocking.
    """

    def __init__(self, sock: socket.socket):
        self._sock = sock
        self._pieces: list[bytes | memoryview] = []

    def put(self, head: Sequence[Any], frames: Frames = ()) -> None:
        """Keep a message until the next `flush`; its frames must not be written to till then."""
        self._pieces += encode(head, frames)

    def flush(self) -> bool:
        """Hand over what was put; whether somebody took it."""
        pieces, self._pieces = self._pieces, []
        if sum(map(len, pieces)) <= _JOIN:
            pieces = [b"".join(pieces)]
        try:
            for piece in pieces:
                self._sock.sendall(piece)
        except OSError:
            return False
        return True

    def take(self) -> Message | None:
        """The next message; None when the line has ended. Blocks."""
        prefix = self._read(_PREFIX.size)
        if prefix is None:
            return None
        data = self._read(_PREFIX.unpack(prefix)[0])
        if data is None:
            return None
        *head, sizes = _decode(data)
        frames = []
        for size in sizes:
            frame = self._read(size)
            if frame is None:
                return None
            frames.append(memoryview(frame))
        return head, frames

    def _read(self, size: int) -> bytearray | None:
        data = bytearray(size)
        view, got = memoryview(data), 0
        while got < size:
            try:
                count = self._sock.recv_into(view[got:])
            except OSError:
                count = 0
            if not count:
                return None
            got += count
        return data

    def close(self) -> None:
        """Hang up."""
        self._sock.close()


class Reader:
    """The server's reading of one line: what has come, cut into messages.

    Args:
        sock: connected, non-blocking.
    """

    def __init__(self, sock: socket.socket):
        self._sock = sock
        self._data = bytearray()

    def read(self) -> list[Message]:
        """The messages that are complete by now; never blocks.

        Raises:
            LineEnded: the line has ended and everything that came before has been given out.
        """
        found: list[Message] = []
        while True:
            try:
                chunk = self._sock.recv(_CHUNK)
            except BlockingIOError:
                return found
            except OSError:
                chunk = b""
            if not chunk:
                if found:
                    return found  # the next call says that it has ended
                raise LineEnded
            self._data += chunk
            self._cut(found)
            if len(chunk) < _CHUNK:
                return found

    def _cut(self, found: list[Message]) -> None:
        data, start = self._data, 0
        while len(data) - start >= _PREFIX.size:
            head_size, body_size = _PREFIX.unpack_from(data, start)
            begin = start + _PREFIX.size
            end = begin + head_size + body_size
            if len(data) < end:
                break
            *head, sizes = _decode(data[begin : begin + head_size])
            begin += head_size
            frames = []
            for size in sizes:
                frames.append(memoryview(data[begin : begin + size]))
                begin += size
            found.append((head, frames))
            start = end
        if start:
            del data[:start]
