"""One pair of ranks, alone: round trips over plain TCP and through thinwire's wire, and a stream in
each direction.

The higher rank dials and measures, the lower one answers. A control connection carries requests;
every stream has a connection of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import struct
import time
from collections.abc import Callable

import msgspec
import torch

from thinwire.errors import ThinwireError
from thinwire.run.doctor.pairs import Target
from thinwire.run.doctor.timely import read_exactly, set_time
from thinwire.run.probe.report import Flow, Wire
from thinwire.run.probe.stats import Spread, spread_of
from thinwire.run.probe.streams import (
    CONTROL,
    DATA,
    accept,
    dial,
    hang_up,
    pour,
    ramp_of,
    receive,
)
from thinwire.wire._address import HOW_TO_CHOOSE
from thinwire.wire._channel import tune
from thinwire.wire._station import Station
from thinwire.wire._task import Run
from thinwire.wire.packet import Packet
from thinwire.wire.rendezvous import Meeting
from thinwire.wire.sockets import SocketComm

__all__ = ["WireLimits", "answer", "measure"]

_REQUEST = struct.Struct("<cdd")
_REPLY = struct.Struct("<q")
_PINGS, _PINGS_LAST, _PINGS_WARM = 200, 0.6, 5
_PACKETS, _PACKETS_LAST, _PACKETS_WARM = 60, 0.6, 5
_SMALL = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class WireLimits:
    """Seconds.

    Args:
        connect: to reach the other.
        stream: of a stream, in each direction.
        extra: beyond the streams, for everything else with a pair.
    """

    connect: float = 3.0
    stream: float = 1.0
    extra: float = 8.0

    @property
    def pair(self) -> float:
        """For a pair as a whole."""
        return self.connect + 2 * (self.stream + 1.0) + self.extra


def measure(target: Target, rank: int, address: str, limits: WireLimits) -> Wire:
    """Dial a lower rank and measure; never raises for what the network does.

    Args:
        target: the lower rank.
        rank: of the caller.
        address: of the caller, to dial from.
        limits: in seconds.
    """
    wire = Wire(low=target.rank, high=rank)
    until = time.monotonic() + limits.pair
    try:
        control = dial(target, rank, address, CONTROL, limits.connect)
    except OSError as error:
        return _with(
            wire,
            problem=f"rank {rank} ({address}) cannot reach rank {target.rank} at "
            f"{target.address}:{target.port} ({error}); a firewall, or the wrong interface? "
            f"{HOW_TO_CHOOSE}",
        )

    def call() -> socket.socket:
        return dial(target, rank, address, DATA, limits.connect)

    with control:
        try:
            wire = _with(wire, trip=_pings(control, until))
            wire = _with(wire, packets=_packets(control, call, until))
            ramp = ramp_of(wire.trip.median)
            wire = _with(wire, up=_up(control, call, limits.stream, ramp, until))
            wire = _with(wire, down=_down(control, call, limits.stream, ramp, until))
            _ask(control, b"E", until)
        except (OSError, ThinwireError) as error:
            return _with(wire, problem=_lost(wire, target, limits, error))
    return wire


def _lost(wire: Wire, target: Target, limits: WireLimits, error: Exception) -> str:
    who = f"rank {wire.high} and rank {target.rank} at {target.address}"
    if not wire.trip.count:
        return f"{who}: connected, but no answer within {limits.pair:g} s ({error})"
    if isinstance(error, TimeoutError) and not wire.up.nbytes:
        return (
            f"{who}: small messages pass, larger ones did not get through within {limits.pair:g} "
            "s: packets of full size get lost (MTU), or the link is far too slow"
        )
    return f"{who}: the connection broke while it was measured ({error})"


def _ask(
    control: socket.socket, kind: bytes, until: float, seconds: float = 0.0, ramp: float = 0.0
) -> None:
    set_time(control, until)
    control.sendall(_REQUEST.pack(kind, seconds, ramp))


def _pings(control: socket.socket, until: float) -> Spread:
    trips: list[float] = []
    began = time.monotonic()
    for i in range(_PINGS):
        start = time.perf_counter()
        _ask(control, b"P", until)
        read_exactly(control, _REPLY.size, until)
        if i >= _PINGS_WARM or time.monotonic() - began > _PINGS_LAST:
            trips.append(time.perf_counter() - start)
        if time.monotonic() - began > _PINGS_LAST:
            break
    return spread_of(trips)


def _up(
    control: socket.socket,
    call: Callable[[], socket.socket],
    seconds: float,
    ramp: float,
    until: float,
) -> Flow:
    """To the lower rank, which tells what it saw."""
    _ask(control, b"U", until, seconds, ramp)
    with call() as sock:
        pour(sock, min(until, time.monotonic() + seconds + ramp + 2.0))
    (size,) = _REPLY.unpack(read_exactly(control, _REPLY.size, until))
    return msgspec.json.decode(read_exactly(control, size, until), type=Flow)


def _down(
    control: socket.socket,
    call: Callable[[], socket.socket],
    seconds: float,
    ramp: float,
    until: float,
) -> Flow:
    _ask(control, b"D", until, seconds, ramp)
    sock = call()
    try:
        return receive(sock, seconds, until, ramp)
    finally:
        hang_up(sock)


def _packets(control: socket.socket, call: Callable[[], socket.socket], until: float) -> Spread:
    """Round trips of a small packet from one program to the other and back."""
    _ask(control, b"K", until)
    trips: list[float] = []
    with _comm(call(), 1, until) as comm:
        began = time.monotonic()
        for i in range(_PACKETS):
            last = i == _PACKETS - 1 or time.monotonic() - began > _PACKETS_LAST
            start = time.perf_counter()
            comm.post(0, Packet((torch.full((_SMALL,), float(last)),)), i)
            comm.wait(0, i)
            if i >= _PACKETS_WARM or last:
                trips.append(time.perf_counter() - start)
            if last:
                break
    return spread_of(trips)


def _echo(sock: socket.socket, until: float) -> None:
    with _comm(sock, 0, until) as comm:
        for i in range(_PACKETS):
            arrival = comm.wait(1, i)
            comm.post(1, Packet((torch.zeros(_SMALL),)), i)
            if arrival.packet is None or int(arrival.packet.buffers[0][0]):
                break


def _comm(sock: socket.socket, rank: int, until: float) -> SocketComm:
    """The wire of a run, for two ranks on a connection that is there."""
    tune(sock)
    left = max(0.5, until - time.monotonic())
    meeting = Meeting(rank=rank, size=2, sockets={1 - rank: sock}, names={0: "low", 1: "high"})
    station = Station(meeting, 0, "strict", 1 << 20)
    run = Run(station, left, left, None, None, None)
    station.loop.begin()
    return SocketComm(run, station.endpoints[rank])


def answer(listener: socket.socket, token: bytes, low: int, high: int, limits: WireLimits) -> Wire:
    """Wait for a higher rank's call and answer it; what went wrong, as this side knows it.

    Args:
        listener: bound and listening.
        token: what the caller must know.
        low: this rank.
        high: the rank that is to call; others are turned away.
        limits: in seconds.
    """
    wire = Wire(low=low, high=high)
    until = time.monotonic() + limits.pair

    def take(kind: bytes) -> socket.socket:
        within = min(until, time.monotonic() + limits.connect + 1.0)
        return accept(listener, token, [high], kind, within)[1]

    try:
        control = take(CONTROL)
    except OSError:
        return _with(
            wire,
            problem=f"no connection from rank {high} came to rank {low}; a firewall, or the wrong "
            f"interface? {HOW_TO_CHOOSE}",
        )
    with control:
        try:
            _serve(control, take, until)
        except (OSError, ThinwireError) as error:
            return _with(wire, problem=f"rank {low} lost rank {high} while measuring ({error})")
    return wire


def _serve(control: socket.socket, take: Callable[[bytes], socket.socket], until: float) -> None:
    while True:
        kind, seconds, ramp = _REQUEST.unpack(read_exactly(control, _REQUEST.size, until))
        if kind == b"P":
            control.sendall(_REPLY.pack(0))
        elif kind == b"K":
            _echo(take(DATA), until)
        elif kind == b"U":
            sock = take(DATA)
            try:
                flow = receive(sock, seconds, until, ramp)
            finally:
                hang_up(sock)
            told = msgspec.json.encode(flow)
            control.sendall(_REPLY.pack(len(told)) + told)
        elif kind == b"D":
            with contextlib.closing(take(DATA)) as sock:
                pour(sock, min(until, time.monotonic() + seconds + ramp + 2.0))
        else:
            return


def _with(wire: Wire, **fields: object) -> Wire:
    return msgspec.structs.replace(wire, **fields)
