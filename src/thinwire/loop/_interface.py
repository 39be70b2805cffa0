"""The system's own counters of a network interface, to be held against the wire's count."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import NamedTuple

from thinwire.wire._address import interface_addresses

__all__ = ["Counted", "counters", "interface_of"]

_SYSTEM = Path("/sys/class/net")


class Counted(NamedTuple):
    """Bytes that an interface has sent and received since it came up."""

    sent: int
    received: int


def interface_of(address: str) -> str | None:
    """The name of the interface that has an address; None where it can't be told."""
    if ":" in address:
        return _interface_of_six(address)
    for name, own in interface_addresses().items():
        if own == address:
            return name
    # The whole of 127.0.0.0/8 is one interface's.
    return "lo" if address.startswith("127.") else None


def _interface_of_six(address: str) -> str | None:
    """From the kernel's table: an address, four numbers and a name a line."""
    wanted = socket.inet_pton(socket.AF_INET6, address.partition("%")[0]).hex()
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            found, *_, name = line.split()
            if found == wanted:
                return name
    return None


def counters(interface: str, system: Path = _SYSTEM) -> Counted | None:
    """What an interface has carried so far, of all programs; None where it can't be read."""
    folder = system / interface / "statistics"
    try:
        sent, received = (int((folder / f"{way}_bytes").read_text()) for way in ("tx", "rx"))
    except (OSError, ValueError):
        return None
    return Counted(sent, received)
