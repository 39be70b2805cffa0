"""The real wire: each rank a process, TCP between them.

    with connect(expected={"method": "ssgd"}) as comm:
        comm.post(1, packet, "hello")
        arrival = comm.wait(1, "hello")

`connect` finds the other processes through the environment that torchrun sets; without one it is
alone, at size 1. Leaving the `with` block says goodbye; leaving it by an exception tells the others
which rank failed and how. Why plain TCP and no messaging library: docs/decisions/0002-real-wire.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from thinwire.errors import InputError
from thinwire.wire._socket_comm import SocketComm
from thinwire.wire._station import Station
from thinwire.wire._task import Run
from thinwire.wire.base import Losses, Work
from thinwire.wire.faults import FaultPlan
from thinwire.wire.rendezvous import meet

__all__ = ["SocketComm", "connect"]


def connect(
    *,
    losses: Losses = "strict",
    deadline: float = 300.0,
    warn_after: float = 10.0,
    num_servers: int = 0,
    interface: str | None = None,
    expected: Mapping[str, str] | None = None,
    faults: FaultPlan | None = None,
    spend: Callable[[Work], float] | None = None,
    meeting_deadline: float = 60.0,
    max_queued: int = 4 << 30,
    watch: Callable[[list[int], int], None] | None = None,
) -> SocketComm:
    """Join the run that the environment describes; alone (size 1) without one.

    Args:
        losses: `strict` or `elastic`, see `wire/base.py`.
        deadline: seconds that a wait without a deadline of its own may take.
        warn_after: seconds after which a wait says who is missing.
        num_servers: servers; they live in the process of rank 0, see `SocketComm.serve`.
        interface: name or address of the network to use; by default THINWIRE_INTERFACE, else the
            one that leads to MASTER_ADDR.
        expected: settings that must be equal on all ranks, by name (the method, its settings).
        faults: what goes wrong and when.
        spend: seconds that `spend` is to sleep for some work, to emulate a slower node.
        meeting_deadline: seconds until all ranks must have come.
        max_queued: bytes posted to one process that its link has not taken, at most.
        watch: called while ranks are waited for, with those that have come and the world size.

    Raises:
        RendezvousError: the ranks cannot find or accept each other.
        InputError: a bad argument.
    """
    if losses not in ("strict", "elastic"):
        raise InputError(f"losses = {losses!r}; valid: strict, elastic")
    for name, value in {"deadline": deadline, "warn_after": warn_after}.items():
        if not value > 0:
            raise InputError(f"{name} = {value!r} s: more than 0 is needed")
    if num_servers < 0:
        raise InputError(f"num_servers = {num_servers}; valid: 0 or more")
    common = {"losses": losses, "number of servers": str(num_servers)}
    meeting = meet(
        {**common, **(expected or {})},
        interface=interface,
        deadline=meeting_deadline,
        watch=watch,
    )
    station = Station(meeting, num_servers, losses, max_queued)
    run = Run(station, deadline, warn_after, faults, spend, meeting.store)
    station.loop.begin()
    run.stop.install()
    return SocketComm(run, station.endpoints[station.rank])
