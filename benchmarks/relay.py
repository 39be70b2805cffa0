"""Latency for a lab of network namespaces, where the kernel has no netem: a switch in user space.

Each host's interface is a TAP device whose other end is here. A frame that a host sends is handed
to the host it is for after a one-way delay, and not faster than that host's link takes it; what
would wait longer than a switch's buffer is dropped, as there. It all happens on whole frames, so
TCP and everything above it see a real round trip, whoever's they are.

    with Relay(rate=12.5e6, delay=0.02) as relay:
        relay.attach("tap0")
        ...

The relay is one thread of this process. It needs Linux and root.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import select
import struct
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["DelayLine", "Relay"]

TUNSETIFF = 0x400454CA
TUNSETOFFLOAD = 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
CHECKSUM, TSO4 = 0x01, 0x02
HEADER = 10
"""Bytes before each frame that say what is left of its checksum and how to cut it: whole segments
of 64 KiB pass through, which a machine of two cores could not handle in pieces."""

BUFFER = 0.05
"""Seconds that a frame may wait for its turn on a link, besides the delay."""

BROADCAST = 1
"""Bit of the first byte of an address that is for all."""


@dataclass
class DelayLine:
    """Frames on their way: when each arrives, and in which order. No clock of its own.

    Args:
        rate: bytes per second of each receiver's link, above 0.
        delay: seconds one way, 0 or more.
    """

    rate: float
    delay: float
    dropped: int = 0
    _heap: list[tuple[float, int, int, bytes]] = field(default_factory=list)
    _free: dict[int, float] = field(default_factory=dict)
    _serial: int = 0

    def __post_init__(self) -> None:
        if not self.rate > 0 or not self.delay >= 0:
            raise ValueError(
                f"rate = {self.rate!r}, delay = {self.delay!r}: above 0, and 0 or more are needed"
            )

    def put(self, now: float, to: int, frame: bytes) -> None:
        """A frame for a receiver has been sent; it is dropped where its link's buffer is full."""
        earliest = now + self.delay
        start = max(earliest, self._free.get(to, 0.0))
        if start - earliest > BUFFER:
            self.dropped += 1
            return
        self._free[to] = start + len(frame) / self.rate
        self._serial += 1
        heapq.heappush(self._heap, (self._free[to], self._serial, to, frame))

    def due(self, now: float) -> Iterable[tuple[int, bytes]]:
        """Receivers and frames that have arrived by now, in that order."""
        while self._heap and self._heap[0][0] <= now:
            _, _, to, frame = heapq.heappop(self._heap)
            yield to, frame

    def pause(self, now: float, longest: float) -> float:
        """Seconds until the next arrival, at most `longest`."""
        return max(0.0, min(longest, self._heap[0][0] - now)) if self._heap else longest


class Relay:
    """The switch; runs from `__enter__` to `close`.

    Args:
        rate: bytes per second at which a host receives.
        delay: seconds one way.
    """

    def __init__(self, rate: float, delay: float):
        self._line = DelayLine(rate, delay)
        self._taps: list[int] = []
        self._places: dict[bytes, int] = {}
        self._stop, self._stopping = os.pipe()
        self._thread: threading.Thread | None = None

    def attach(self, name: str) -> None:
        """Make a TAP device of that name; it may be moved to a namespace afterwards."""
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR
        fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
        fcntl.ioctl(tap, TUNSETOFFLOAD, CHECKSUM | TSO4)
        self._taps.append(tap)

    def start(self) -> None:
        """Begin to pass frames on; all devices are attached."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop within a moment, and remove the devices."""
        if self._thread is not None:
            os.write(self._stopping, b"x")
            self._thread.join(timeout=5)
        for handle in (*self._taps, self._stop, self._stopping):
            with contextlib.suppress(OSError):
                os.close(handle)
        self._taps = []

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        waiting = [*self._taps, self._stop]
        while True:
            pause = self._line.pause(time.monotonic(), 1.0)
            ready, _, _ = select.select(waiting, [], [], pause)
            if self._stop in ready:
                return
            for tap in ready:
                self._take(self._taps.index(tap))
            for to, frame in self._line.due(time.monotonic()):
                with contextlib.suppress(OSError):  # an interface that is down loses frames
                    os.write(self._taps[to], frame)

    def _take(self, source: int) -> None:
        """Everything that a host has sent so far."""
        for _ in range(64):
            try:
                frame = os.read(self._taps[source], 1 << 17)
            except OSError:
                return
            target, sender = frame[HEADER : HEADER + 6], frame[HEADER + 6 : HEADER + 12]
            self._places[sender] = source
            known = None if target[0] & BROADCAST else self._places.get(target)
            others = [i for i in range(len(self._taps)) if i != source]
            for to in others if known is None else [known]:
                self._line.put(time.monotonic(), to, frame)
