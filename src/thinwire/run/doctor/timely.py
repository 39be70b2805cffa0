"""Sockets whose every call has a deadline, in `time.monotonic()`."""

from __future__ import annotations

import socket
import time

__all__ = ["read_exactly", "set_time"]


def read_exactly(sock: socket.socket, size: int, until: float) -> bytes:
    """So many bytes.

    Raises:
        OSError: they do not come before the deadline, or the other side closes.
    """
    came = b""
    while len(came) < size:
        set_time(sock, until)
        piece = sock.recv(size - len(came))
        if not piece:
            raise ConnectionError("closed by the other side")
        came += piece
    return came


def set_time(sock: socket.socket, until: float) -> None:
    """Give the socket's next call until then.

    Raises:
        TimeoutError: that has passed.
    """
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    sock.settimeout(left)
