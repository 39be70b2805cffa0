"""All ranks sending to all at once: what lines share shows only then."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable, Sequence

from thinwire.run.doctor.pairs import Target
from thinwire.run.probe.streams import DATA, accept, dial, hang_up

__all__ = ["Gathering", "gather", "talk"]

_PIECE = bytes(1 << 16)
FROM, TO = 0.2, 0.8
"""Part of the time in which received bytes are counted: TCP is up to speed, and none has ended."""

_PATIENCE = 5.0


class Gathering:
    """A rank's open connections to the others, by their ranks; closed on leaving the block."""

    def __init__(self) -> None:
        self.sockets: dict[int, socket.socket] = {}
        self.problems: list[str] = []

    def __enter__(self) -> Gathering:
        return self

    def __exit__(self, *_: object) -> None:
        for sock in self.sockets.values():
            hang_up(sock)


def gather(
    listener: socket.socket | None,
    token: bytes,
    rank: int,
    address: str,
    lower: Sequence[Target],
    higher: Sequence[int],
    timeout: float,
) -> Gathering:
    """Dial the lower ranks and take the calls of the higher ones.

    Args:
        listener: bound and listening; None takes no calls.
        token: what a caller must know.
        rank: of this process.
        address: to dial from.
        lower: whom to dial.
        higher: who will call.
        timeout: seconds for a call, and for all others' calls.

    Returns:
        The connections that came about; what did not is among its problems.
    """
    found = Gathering()
    for target in lower:
        try:
            found.sockets[target.rank] = dial(target, rank, address, DATA, timeout)
        except OSError as error:
            found.problems.append(f"rank {rank} cannot reach rank {target.rank} again ({error})")
    until, awaited = time.monotonic() + timeout, list(higher)
    while awaited and listener is not None:
        try:
            peer, sock = accept(listener, token, awaited, DATA, until)
        except OSError:
            listed = ", ".join(map(str, awaited))
            found.problems.append(f"rank {rank} waited in vain for calls from rank {listed}")
            break
        awaited.remove(peer)
        found.sockets[peer] = sock
    return found


def talk(
    gathering: Gathering, seconds: float, clock: Callable[[], float] = time.perf_counter
) -> dict[int, float]:
    """Send to all and receive from all.

    The time runs from the moment at which something has come from each: then all are sending, and
    no clocks need to be compared. A peer that sends nothing is waited for 5 s.

    Args:
        gathering: with whom.
        seconds: for which; the middle part is counted.
        clock: seconds that pass.

    Returns:
        Bytes per second received from each rank meanwhile.
    """
    counts = dict.fromkeys(gathering.sockets, 0)
    silent = list(gathering.sockets)
    room = bytearray(1 << 18)
    with contextlib.closing(selectors.DefaultSelector()) as selector:
        for peer, sock in gathering.sockets.items():
            sock.setblocking(False)
            selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, peer)
        give_up = clock() + _PATIENCE
        while silent and clock() < give_up and selector.get_map():
            for key, mask in selector.select(0.05):
                if _serve(selector, key, mask, room, gathering.problems) and key.data in silent:
                    silent.remove(key.data)
        start = clock() + FROM * seconds
        end, over = start + (TO - FROM) * seconds, start + (1 - FROM) * seconds
        opened = closed = 0.0
        while (now := clock()) < over:
            counting = start <= now < end
            opened = opened or (now if counting else 0.0)
            closed = closed or (now if now >= end else 0.0)
            for key, mask in selector.select(min(0.05, seconds / 20)):
                # The first to reach its end hangs up on the others.
                problems = gathering.problems if now < end else []
                came = _serve(selector, key, mask, room, problems)
                if counting:
                    counts[key.data] += came
    counted = (closed or clock()) - opened
    return {peer: count / counted for peer, count in counts.items()}


def _serve(
    selector: selectors.BaseSelector,
    key: selectors.SelectorKey,
    mask: int,
    room: bytearray,
    problems: list[str],
) -> int:
    sock, came = key.fileobj, 0
    assert isinstance(sock, socket.socket)
    try:
        if mask & selectors.EVENT_READ:
            came = sock.recv_into(room)
            if not came:
                raise ConnectionError("closed")
        if mask & selectors.EVENT_WRITE:
            sock.send(_PIECE)
    except BlockingIOError:
        pass
    except OSError as error:
        selector.unregister(sock)
        problems.append(f"the stream with rank {key.data} ended early ({error})")
    return came
