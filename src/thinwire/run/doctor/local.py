"""What a process can learn about itself and its machine, in a few seconds at most."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from thinwire._version import __version__
from thinwire.errors import RendezvousError
from thinwire.run.doctor.report import Facts, Interface, Lookup, MeterState
from thinwire.wire._address import choose_address, host_id, interface_addresses, is_loopback
from thinwire.wire.rendezvous import Place

__all__ = [
    "gather_facts",
    "in_time",
    "interface_facts",
    "memory_facts",
    "meter_states",
    "stuck",
]

T = TypeVar("T")
ROOT = Path("/")
TORCHRUN_PORT = 29500
_ELSEWHERE = "203.0.113.1"  # an address set aside for documentation: only its route is asked for
_VIRTUAL = ("docker", "br-", "virbr", "veth", "tun", "tap", "wg", "tailscale", "zt", "cni", "vbox")
_SLOW = 5.0
_given_up: list[threading.Thread] = []


def stuck() -> bool:
    """Whether something given up still goes on: the process must then end without waiting."""
    return any(thread.is_alive() for thread in _given_up)


def in_time(do: Callable[[], T], seconds: float) -> T:
    """What `do` returns or raises; a TimeoutError where that takes longer.

    It then goes on in a thread of its own: a name server or driver that hangs cannot be stopped.
    """
    outcome: list[tuple[bool, Any]] = []

    def attempt() -> None:
        try:
            outcome.append((True, do()))
        except BaseException as error:
            outcome.append((False, error))

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    try:
        thread.join(seconds)
    except KeyboardInterrupt:
        _given_up.append(thread)
        raise
    if not outcome:
        _given_up.append(thread)
        raise TimeoutError(f"no answer within {seconds:g} s")
    good, value = outcome[0]
    if not good:
        raise value
    return value


def gather_facts(place: Place | None, wanted: str | None) -> Facts:
    """The facts of this process.

    Args:
        place: in a group of processes; None alone.
        wanted: interface or address to use; None is the one that leads to the master.
    """
    interface = interface_facts(place.master if place else None, wanted)
    total, available = memory_facts()
    hostname = socket.gethostname()
    return Facts(
        rank=place.rank if place else 0,
        size=place.size if place else 1,
        hostname=hostname,
        host=os.environ.get("THINWIRE_HOST_ID") or host_id(),
        pid=os.getpid(),
        versions=_versions(),
        byte_order=sys.byteorder,
        interface=interface,
        own_name=_look_up(hostname),
        master_name=_look_up(place.master) if place else None,
        cores=len(os.sched_getaffinity(0)),
        threads=torch.get_num_threads(),
        load=os.getloadavg()[0],
        ports=_port_range(),
        port_problem="" if place else _port_problem(TORCHRUN_PORT),
        memory_total=total,
        memory_available=available,
        shared_memory=_shared_memory(),
        gpus=_gpus(),
        meters=meter_states(interface.name),
    )


def _versions() -> dict[str, str]:
    return {
        "thinwire": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def _look_up(name: str) -> Lookup:
    try:
        found = in_time(lambda: socket.getaddrinfo(name, None, type=socket.SOCK_STREAM), _SLOW)
    except OSError as error:  # a TimeoutError is one
        return Lookup(name=name, problem=str(error))
    return Lookup(name=name, addresses=list(dict.fromkeys(str(entry[4][0]) for entry in found)))


def _port_problem(port: int) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return f"port {port}: {error.strerror or error}"
    return ""


def _port_range() -> str:
    with contextlib.suppress(OSError):
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return f"{low}-{high}"
    return ""


def interface_facts(master: str | None, wanted: str | None, root: Path = ROOT) -> Interface:
    """The interface a run would use from here, and the others.

    Args:
        master: the meeting point; None: the way out of this machine.
        wanted: an interface or address instead.
        root: where /sys lies.
    """
    here = interface_addresses()
    wanted = wanted or os.environ.get("THINWIRE_INTERFACE") or None
    try:
        address = choose_address(wanted, master or _ELSEWHERE)
    except RendezvousError as error:
        if master is None and wanted is None:
            return Interface(problem="no way out of this machine", others=_listed(here, ""))
        return Interface(problem=str(error), others=_listed(here, ""))
    name = wanted if wanted in here else next((n for n, a in here.items() if a == address), "")
    if not name and is_loopback(address):
        name = "lo"
    files = root / "sys/class/net" / name
    # A virtual interface states a speed that means nothing.
    speed = _number(files / "speed") if name and (files / "device").exists() else 0
    return Interface(
        name=name,
        address=address,
        speed=max(0, speed) * 1e6 / 8,
        mtu=_number(files / "mtu") if name else 0,
        kind=_kind(name, address, files),
        others=_listed(here, address),
    )


def _listed(here: dict[str, str], without: str) -> list[str]:
    return [f"{n} {a}" for n, a in here.items() if a != without and not is_loopback(a)]


def _kind(name: str, address: str, files: Path) -> str:
    if is_loopback(address):
        return "loopback"
    if (files / "wireless").exists():
        return "radio"
    return "virtual" if name.startswith(_VIRTUAL) else "wire"


def _number(file: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(file.read_text())
    return 0


def memory_facts(root: Path = ROOT) -> tuple[int, int]:
    """Total and available bytes: the machine's, or its container's where that has less."""
    sizes = {}
    with contextlib.suppress(OSError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            key, _, rest = line.partition(":")
            sizes[key] = int(rest.split()[0]) * 1024
    total, available = sizes.get("MemTotal", 0), sizes.get("MemAvailable", 0)
    limit = _number(root / "sys/fs/cgroup/memory.max")
    if 0 < limit < total:
        used = _number(root / "sys/fs/cgroup/memory.current")
        return limit, min(available, max(0, limit - used))
    return total, available


def _shared_memory() -> int:
    with contextlib.suppress(OSError):
        found = os.statvfs("/dev/shm")
        return found.f_frsize * found.f_blocks
    return 0


def _gpus() -> list[str]:
    def names() -> list[str]:
        if not torch.cuda.is_available():
            return []
        return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]

    with contextlib.suppress(Exception):  # a broken driver is no reason to stop
        return in_time(names, 2 * _SLOW)
    return []


def meter_states(interface: str, root: Path = ROOT) -> list[MeterState]:
    """Which meters of energy and traffic can be read from this process.

    Args:
        interface: whose byte counters; may be empty.
        root: where /sys lies.
    """
    states = [_rapl(root / "sys/class/powercap"), _nvml()]
    if interface:
        states.append(_counters(interface, root / "sys/class/net" / interface / "statistics"))
    return states


def _rapl(folder: Path) -> MeterState:
    files = sorted(folder.glob("intel-rapl:*/energy_uj"))
    if not files:
        return MeterState(
            name="CPU energy (RAPL)", readable=False, detail="this machine or container has none"
        )
    try:
        for file in files:
            int(file.read_text())
    except (OSError, ValueError) as error:
        return MeterState(
            name="CPU energy (RAPL)",
            readable=False,
            detail=f"{files[0]}: {error}",
            todo=f"sudo chmod o+r {files[0].parent.parent}/intel-rapl:*/energy_uj (until reboot)",
        )
    counters = f"{len(files)} counter{'s' if len(files) > 1 else ''}"
    return MeterState(name="CPU energy (RAPL)", readable=True, detail=counters)


def _nvml() -> MeterState:
    try:
        detail = in_time(_nvml_energy, _SLOW)
    except OSError as error:
        why = "no NVIDIA driver" if "libnvidia-ml" in str(error) else str(error)
        return MeterState(name="GPU energy (NVML)", readable=False, detail=why)
    return MeterState(name="GPU energy (NVML)", readable=True, detail=detail)


def _nvml_energy() -> str:
    library = ctypes.CDLL("libnvidia-ml.so.1")
    if code := library.nvmlInit_v2():
        raise OSError(f"nvmlInit returned {code}")
    count = ctypes.c_uint()
    library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for i in range(count.value):
        device, energy = ctypes.c_void_p(), ctypes.c_ulonglong()
        library.nvmlDeviceGetHandleByIndex_v2(i, ctypes.byref(device))
        if code := library.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(energy)):
            raise OSError(f"device {i} does not tell its energy (code {code})")
    return f"{count.value} device{'s' if count.value != 1 else ''}"


def _counters(interface: str, folder: Path) -> MeterState:
    name = f"bytes of {interface}"
    try:
        for direction in ("tx", "rx"):
            int((folder / f"{direction}_bytes").read_text())
    except (OSError, ValueError) as error:
        return MeterState(name=name, readable=False, detail=str(error))
    return MeterState(name=name, readable=True, detail="sent and received")
