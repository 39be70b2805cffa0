"""Sockets of a probe: who may call, streams that fill a wire, and what a receiver sees of one.

A stream goes on until its receiver has seen enough and resets the connection: what is still queued
on a slow wire is thrown away and not waited for.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import socket
import statistics
import struct
import time
from collections.abc import Sequence

import msgspec

from thinwire.run.doctor.pairs import Target
from thinwire.run.doctor.timely import read_exactly, set_time
from thinwire.run.probe.report import Flow
from thinwire.run.probe.stats import spread_of

__all__ = [
    "CONTROL",
    "DATA",
    "accept",
    "dial",
    "flow_of",
    "hang_up",
    "pour",
    "ramp_of",
    "receive",
]

CONTROL, DATA = b"C", b"D"
_HELLO = struct.Struct("<qc")
_PIECE = bytes(1 << 18)
_RAMP_TRIPS, _RAMP_MOST = 12, 2.0

_SLICES = 20
_LEFT_OUT = 2
_GREETING = 2.0


def dial(target: Target, rank: int, address: str, kind: bytes, timeout: float) -> socket.socket:
    """Call another rank.

    Args:
        target: who, and where it listens.
        rank: of the caller.
        address: of the caller, to dial from.
        kind: CONTROL or DATA.
        timeout: seconds.

    Raises:
        OSError: it cannot be reached.
    """
    sock = socket.create_connection(
        (target.address, target.port), timeout=timeout, source_address=(address, 0)
    )
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(target.token + _HELLO.pack(rank, kind))
    return sock


def accept(
    listener: socket.socket, token: bytes, ranks: Sequence[int], kind: bytes, until: float
) -> tuple[int, socket.socket]:
    """Take a call from one of these ranks; others are turned away.

    Args:
        listener: bound and listening.
        token: what a caller must know.
        ranks: who may call.
        kind: CONTROL or DATA.
        until: on `time.monotonic()`.

    Raises:
        TimeoutError: nobody came.
    """
    while (left := until - time.monotonic()) > 0:
        listener.settimeout(left)
        sock, _ = listener.accept()
        with contextlib.suppress(OSError):
            said = read_exactly(sock, len(token) + _HELLO.size, time.monotonic() + _GREETING)
            if said.startswith(token):
                rank, asked = _HELLO.unpack(said[len(token) :])
                if rank in ranks and asked == kind:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    return rank, sock
        sock.close()  # a stranger, or one that has given up
    raise TimeoutError("nobody called")


def ramp_of(trip: float) -> float:
    """Seconds that TCP is given to come up to speed: twelve round trips, and 2 s at most. A stream
    that is looked at from its first byte makes every far line seem slow.

    Args:
        trip: seconds of a round trip.
    """
    return min(_RAMP_MOST, _RAMP_TRIPS * trip)


def pour(sock: socket.socket, until: float) -> None:
    """Send until the receiver has enough and resets the connection, or until the deadline."""
    with contextlib.suppress(ConnectionError, TimeoutError):
        while True:
            set_time(sock, until)
            sock.send(_PIECE)


def receive(sock: socket.socket, seconds: float, until: float, ramp: float = 0.0) -> Flow:
    """Take what comes for so many seconds, once TCP has come up to speed.

    Args:
        sock: on which it comes.
        seconds: for which it is looked at.
        until: on `time.monotonic()`.
        ramp: seconds from the first byte until then.

    Raises:
        OSError: nothing came before the deadline, or the other side ended early.
    """
    room = bytearray(len(_PIECE))
    moments: list[float] = []
    counts: list[int] = []
    total = 0
    whole = seconds + ramp
    while not moments or moments[-1] - moments[0] < whole:
        set_time(sock, until if not moments else min(until, time.monotonic() + whole))
        try:
            came = sock.recv_into(room)
        except TimeoutError:
            if not moments:
                raise
            break  # too slow for another piece: what came until now counts
        if not came:
            raise ConnectionError("closed by the other side")
        total += came
        moments.append(time.perf_counter())
        counts.append(total)
    return flow_of(moments, counts, ramp)


def flow_of(moments: Sequence[float], counts: Sequence[int], ramp: float = 0.0) -> Flow:
    """Rate and head of a stream, from the bytes that had come at each moment.

    The time after the ramp is cut into 20 slices. Rates are those of all but the first two, in
    which TCP speeds up and empty buckets and buffers on the way fill; the rate is the mean of the
    middle half of them.

    Args:
        moments: seconds, rising.
        counts: bytes that had come by then, rising.
        ramp: seconds from the first moment that are not looked at.

    >>> flow = flow_of([0.0, 1.0, 2.0], [5000, 15000, 25000])
    >>> flow.rate.median, flow.head
    (10000.0, 5000.0)
    """
    if len(moments) < 2 or moments[-1] <= moments[0]:
        return Flow(nbytes=counts[-1] if counts else 0)
    ramp = min(ramp, (moments[-1] - moments[0]) / 2)  # of a stream that ended early
    began, seconds = moments[0] + ramp, moments[-1] - moments[0] - ramp
    width = seconds / _SLICES
    marks = [_count_at(moments, counts, began + width * i) for i in range(_SLICES + 1)]
    steady = marks[_LEFT_OUT:]
    rates = sorted((b - a) / width for a, b in itertools.pairwise(steady))
    spread = spread_of(rates)
    # The mean of the middle half: a stall of a busy processor is not the wire's, nor what comes at
    # once after it; and of a stream that comes in jerks a median says little.
    cut = len(rates) // 4
    mean = statistics.fmean(rates[cut:-cut])
    head = marks[_LEFT_OUT] - mean * (ramp + width * _LEFT_OUT)
    return Flow(
        rate=msgspec.structs.replace(spread, median=mean),
        nbytes=counts[-1],
        seconds=moments[-1] - moments[0],
        head=max(0.0, head),
    )


def _count_at(moments: Sequence[float], counts: Sequence[int], moment: float) -> float:
    """Bytes at a moment, between two that are known in proportion."""
    i = bisect.bisect_right(moments, moment)
    if i >= len(moments):
        return float(counts[-1])
    if i == 0:
        return float(counts[0])
    t0, t1 = moments[i - 1], moments[i]
    return counts[i - 1] + (counts[i] - counts[i - 1]) * (moment - t0) / (t1 - t0)


def hang_up(sock: socket.socket) -> None:
    """Reset the connection: nothing more is wanted, and nothing that waits is sent."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
