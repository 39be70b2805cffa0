"""Latency, bandwidth and clocks between two ranks, over plain TCP as a run would use it.

The higher rank dials and measures, the lower one answers. Bursts grow until one takes long enough
to be timed or is large enough, so that a pair takes a moment on a fast wire and a second or two on
a slow one; a limit ends what goes wrong.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import socket
import struct
import time
from collections.abc import Sequence

import msgspec

from thinwire.run.doctor.report import Facts, Pair
from thinwire.run.doctor.timely import read_exactly, set_time
from thinwire.wire._address import HOW_TO_CHOOSE

__all__ = ["Card", "PairLimits", "Target", "answer", "measure", "open_listener", "rounds"]

BURSTS = (16 << 10, 128 << 10, 1 << 20, 8 << 20)
ALONE_UP_TO = 28
_LONG_ENOUGH = 0.25
_PINGS = 20
_PINGS_LAST = 1.0
_REQUEST = struct.Struct("<cq")
_CLOCK = struct.Struct("<q")
_PIECE = bytes(1 << 18)
_BACKLOG = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairLimits:
    """Seconds: to connect, and for a pair as a whole."""

    connect: float = 3.0
    pair: float = 12.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """Where a rank listens; the token shows that a caller knows it from the meeting."""

    rank: int
    address: str
    port: int
    token: bytes


class Card(msgspec.Struct, kw_only=True):
    """What a rank tells the others first: about itself, and how its pairs reach it."""

    facts: Facts
    port: int
    token: bytes

    def target(self) -> Target:
        """Where the rank listens."""
        facts = self.facts
        return Target(
            rank=facts.rank, address=facts.interface.address, port=self.port, token=self.token
        )


def rounds(ranks: Sequence[int]) -> list[list[tuple[int, int]]]:
    """All pairs (low, high), in rounds of pairs to measure at once.

    One at a time up to 28 pairs, so that none disturbs another; then in rounds in which each rank
    is in one pair at most.

    >>> rounds([0, 1, 3])
    [[(0, 1)], [(0, 3)], [(1, 3)]]
    """
    pairs = list(itertools.combinations(sorted(ranks), 2))
    if len(pairs) <= ALONE_UP_TO:
        return [[pair] for pair in pairs]
    seats: list[int | None] = list(sorted(ranks))
    if len(seats) % 2:
        seats.append(None)
    found = []
    for _ in range(len(seats) - 1):
        met = zip(seats[: len(seats) // 2], reversed(seats), strict=False)
        found.append([(min(a, b), max(a, b)) for a, b in met if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found


def measure(target: Target, rank: int, address: str, limits: PairLimits) -> Pair:
    """Dial a lower rank and measure; never raises for what the network does.

    Args:
        target: the lower rank.
        rank: of the caller.
        address: of the caller, to dial from.
        limits: in seconds.
    """
    until = time.monotonic() + limits.pair
    pair = Pair(low=target.rank, high=rank)
    try:
        sock = socket.create_connection(
            (target.address, target.port), timeout=limits.connect, source_address=(address, 0)
        )
    except OSError as error:
        return _with(
            pair,
            problem=f"rank {rank} ({address}) cannot reach rank {target.rank} at "
            f"{target.address}:{target.port} ({error}); a firewall, or the wrong interface? "
            f"{HOW_TO_CHOOSE}",
        )
    with sock:
        try:
            _no_delay(sock)
            set_time(sock, until)
            sock.sendall(target.token + _CLOCK.pack(rank))
            pair = _pings(sock, pair, until)
            pair = _with(pair, up=_rate(sock, b"U", pair.round_trip, until))
            pair = _with(pair, down=_rate(sock, b"D", pair.round_trip, until))
            sock.sendall(_REQUEST.pack(b"E", 0))
        except OSError as error:
            return _with(pair, problem=_lost(pair, target, limits, error))
    return pair


def _lost(pair: Pair, target: Target, limits: PairLimits, error: OSError) -> str:
    who = f"rank {pair.high} and rank {target.rank} at {target.address}"
    if not isinstance(error, TimeoutError):
        return f"{who}: the connection broke while it was measured ({error})"
    if not pair.round_trip:
        return f"{who}: connected, but no answer within {limits.pair:g} s"
    return (
        f"{who}: small messages pass, larger ones did not get through within {limits.pair:g} s: "
        "packets of full size get lost (MTU), or the link is far too slow"
    )


def answer(listener: socket.socket, token: bytes, low: int, high: int, limits: PairLimits) -> Pair:
    """Wait for a higher rank's call and answer it; the pair as far as this side knows.

    Args:
        listener: bound and listening.
        token: what the caller must know.
        low: this rank.
        high: the rank that is to call; others are turned away.
        limits: in seconds.
    """
    until = time.monotonic() + limits.pair
    pair = Pair(low=low, high=high)
    sock = _accept(listener, token, high, time.monotonic() + limits.connect + 1.0)
    if sock is None:
        return _with(
            pair,
            problem=f"no connection from rank {high} came to rank {low}; a firewall, or the wrong "
            f"interface? {HOW_TO_CHOOSE}",
        )
    with sock:
        try:
            _no_delay(sock)
            _serve(sock, until)
        except OSError as error:
            return _with(pair, problem=f"rank {low} lost rank {high} while measuring ({error})")
    return pair


def _accept(listener: socket.socket, token: bytes, high: int, until: float) -> socket.socket | None:
    while (left := until - time.monotonic()) > 0:
        listener.settimeout(left)
        try:
            sock, _ = listener.accept()
        except OSError:
            return None
        with contextlib.suppress(OSError):
            sock.settimeout(2.0)
            said = read_exactly(sock, len(token) + _CLOCK.size, time.monotonic() + 2.0)
            if said == token + _CLOCK.pack(high):
                return sock
        sock.close()  # a stranger, or one that has given up
    return None


def _serve(sock: socket.socket, until: float) -> None:
    while True:
        kind, size = _REQUEST.unpack(read_exactly(sock, _REQUEST.size, until))
        if kind == b"P":
            sock.sendall(_CLOCK.pack(time.time_ns()))
        elif kind == b"U":
            _drain(sock, size, until)
            sock.sendall(b".")
        elif kind == b"D":
            _pour(sock, size, until)
        else:
            return


def _pings(sock: socket.socket, pair: Pair, until: float) -> Pair:
    """The quickest round trip; its moment of answer tells the other's clock best."""
    began = time.monotonic()
    for _ in range(_PINGS):
        sent, start = time.time_ns(), time.perf_counter()
        sock.sendall(_REQUEST.pack(b"P", 0))
        (theirs,) = _CLOCK.unpack(read_exactly(sock, _CLOCK.size, until))
        trip = time.perf_counter() - start
        if not pair.round_trip or trip < pair.round_trip:
            offset = (theirs - sent) / 1e9 - trip / 2
            pair = _with(pair, round_trip=trip, clock_offset=offset)
        if time.monotonic() - began > _PINGS_LAST:
            break
    return pair


def _rate(sock: socket.socket, kind: bytes, round_trip: float, until: float) -> float:
    """Bytes per second of the last burst."""
    rate = 0.0
    for size in BURSTS:
        start = time.perf_counter()
        sock.sendall(_REQUEST.pack(kind, size))
        if kind == b"U":
            _pour(sock, size, until)
            read_exactly(sock, 1, until)
        else:
            _drain(sock, size, until)
        elapsed = time.perf_counter() - start
        rate = size / max(elapsed - round_trip, elapsed / 10, 1e-9)
        if elapsed > _LONG_ENOUGH:
            break
    return rate


def _pour(sock: socket.socket, size: int, until: float) -> None:
    while size:
        set_time(sock, until)
        size -= sock.send(memoryview(_PIECE)[: min(size, len(_PIECE))])


def _drain(sock: socket.socket, size: int, until: float) -> None:
    room = bytearray(len(_PIECE))
    while size:
        set_time(sock, until)
        came = sock.recv_into(room, min(size, len(room)))
        if not came:
            raise ConnectionError("closed by the other side")
        size -= came


def _no_delay(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _with(pair: Pair, **fields: object) -> Pair:
    return msgspec.structs.replace(pair, **fields)


def open_listener(address: str) -> socket.socket | None:
    """A socket that listens at a free port of an address of this machine; None without one."""
    if not address:
        return None
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind((address, 0))
    listener.listen(_BACKLOG)
    return listener
