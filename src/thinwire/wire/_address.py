"""Which of this machine's addresses the others can reach, and which machine this is."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
import uuid

from thinwire.errors import RendezvousError, nearest

__all__ = ["HOW_TO_CHOOSE", "choose_address", "host_id", "interface_addresses", "is_loopback"]

HOW_TO_CHOOSE = (
    "choose another by THINWIRE_INTERFACE or --interface (a name such as eth0, or an address)"
)
_SIOCGIFADDR = 0x8915


def host_id() -> str:
    """The same for all processes that share loopback, different for any others."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        # Containers and namespaces of one machine share the boot but not the loopback.
        return f"{file.read().strip()}/{os.stat('/proc/self/ns/net').st_ino}"
    return f"{uuid.getnode():x}"


def is_loopback(address: str) -> bool:
    """Whether only processes of the same host can reach it."""
    return ipaddress.ip_address(address).is_loopback


def choose_address(wanted: str | None, master: str) -> str:
    """An address of this machine.

    Args:
        wanted: an interface or address, or None: the one from which the route to `master` leaves.
        master: host name or address of the run's meeting point.

    Raises:
        RendezvousError: no such interface or address here, or no route.
    """
    if wanted:
        return _address_of(wanted)
    try:
        family, _, _, _, target = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # sends nothing: it only asks for the route
            return probe.getsockname()[0]
    except OSError as error:
        raise RendezvousError(
            f"no route to MASTER_ADDR {master!r} ({error}); {HOW_TO_CHOOSE}"
        ) from (error)


def _address_of(wanted: str) -> str:
    with contextlib.suppress(ValueError):
        address = str(ipaddress.ip_address(wanted))
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind((address, 0))
        except OSError as error:
            raise RendezvousError(
                f"interface = {wanted!r}: this machine has no such address ({error}); here are "
                f"{', '.join(_interfaces())}"
            ) from error
        return address
    try:
        return _ipv4_of(wanted)
    except OSError as error:
        raise RendezvousError(
            f"interface = {wanted!r} has no IPv4 address here ({error.strerror}); "
            f"{nearest(wanted, _interfaces())}"
        ) from error


def interface_addresses() -> dict[str, str]:
    """The IPv4 addresses of this machine's interfaces, by name; those without are left out."""
    found: dict[str, str] = {}
    for name in _interfaces():
        with contextlib.suppress(OSError):
            found[name] = _ipv4_of(name)
    return found


def _ipv4_of(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        packed = struct.pack("256s", interface.encode()[:15])
        return socket.inet_ntoa(fcntl.ioctl(probe, _SIOCGIFADDR, packed)[20:24])


def _interfaces() -> list[str]:
    return [name for _, name in socket.if_nameindex()]
