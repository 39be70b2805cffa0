"""How the processes of a run find and accept each other.

torchrun (or whatever set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT) gives a key-value store.
Each process publishes where it listens and what it has been told; all compare, then connect. What
differs is named on every rank: the first that sees it leaves a verdict in the store for the others.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

import msgspec
from torch.distributed import PrefixStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from thinwire._version import __version__
from thinwire.errors import RendezvousError
from thinwire.wire._address import HOW_TO_CHOOSE, choose_address, host_id, is_loopback
from thinwire.wire._channel import tune

__all__ = ["Meeting", "Place", "meet", "open_store", "place_from_environment", "reachable_master"]

_SLICE = 0.25
_FAREWELL = 3.0
_num_meetings = 0


@dataclass(frozen=True, kw_only=True)
class Place:
    """What the environment says about this process."""

    rank: int
    size: int
    master: str
    port: int
    attempt: str
    agent_store: bool
    one_host: bool


@dataclass(kw_only=True)
class Meeting:
    """Who takes part, with an open connection to each.

    Attributes:
        sockets: by process, non-blocking.
        names: process and host of each rank, for messages.
        store: the run's key-value store under a prefix of this meeting; None when alone.
    """

    rank: int = 0
    size: int = 1
    sockets: dict[int, socket.socket] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    store: Store | None = None


class _Card(msgspec.Struct, kw_only=True):
    """What a process tells the others."""

    rank: int
    address: str
    port: int
    host: str
    pid: int
    token: bytes
    settings: dict[str, str]


def place_from_environment() -> Place | None:
    """The place of this process, or None when nothing has started it as part of a group."""
    if "WORLD_SIZE" not in os.environ and "RANK" not in os.environ:
        return None
    rank, size = _env_int("RANK"), _env_int("WORLD_SIZE")
    if not 0 <= rank < size:
        raise RendezvousError(f"RANK = {rank} with WORLD_SIZE = {size}; valid: 0..{size - 1}")
    if size == 1 and "MASTER_ADDR" not in os.environ:
        return None
    return Place(
        rank=rank,
        size=size,
        master=os.environ.get("MASTER_ADDR", "127.0.0.1"),
        port=_env_int("MASTER_PORT"),
        attempt=os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
        agent_store=os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        one_host=os.environ.get("LOCAL_WORLD_SIZE") == str(size),
    )


def _env_int(name: str) -> int:
    value = os.environ.get(name)
    if value is None:
        raise RendezvousError(
            f"the variable {name} is not set although others of a group are; start the run by "
            "torchrun, or unset RANK and WORLD_SIZE to run alone"
        )
    try:
        return int(value)
    except ValueError:
        raise RendezvousError(f"{name} = {value!r} is not an integer") from None


def meet(
    settings: Mapping[str, str],
    *,
    interface: str | None = None,
    deadline: float = 60.0,
    watch: Callable[[list[int], int], None] | None = None,
) -> Meeting:
    """Find all processes of the run and connect to each.

    Args:
        settings: what must be equal on all ranks; the version of thinwire and the world size are
            added.
        interface: name or address of the network to use; by default THINWIRE_INTERFACE, else the
            one that leads to MASTER_ADDR.
        deadline: seconds.
        watch: called while ranks are waited for, with those that have come and the world size.

    Raises:
        RendezvousError: naming who never came or cannot be reached, or what differs and where.
    """
    global _num_meetings
    place = place_from_environment()
    if place is None or place.size == 1:
        return Meeting(size=1)
    until = time.monotonic() + deadline
    _num_meetings += 1
    prefix = f"thinwire/{place.attempt}/{_num_meetings}"
    master = reachable_master(place)
    store = PrefixStore(prefix, open_store(place, master, until))
    return _Rendezvous(place, store, until, watch).run(settings, interface, master)


def reachable_master(place: Place) -> str:
    """MASTER_ADDR, or loopback where it is this host's own name and nobody resolves that."""
    try:
        socket.getaddrinfo(place.master, place.port)
    except OSError as error:
        if place.one_host:
            return "127.0.0.1"
        raise RendezvousError(
            f"MASTER_ADDR = {place.master!r} cannot be resolved ({error}); give torchrun the "
            "first host's address by --master-addr or --rdzv-endpoint"
        ) from error
    return place.master


def open_store(place: Place, master: str, until: float) -> TCPStore:
    """The run's key-value store, hosted by rank 0 where no launcher does.

    Raises:
        RendezvousError: nobody answers there in time, or the port is in use.
    """
    hosts = place.rank == 0 and not place.agent_store
    where = f"MASTER_ADDR:MASTER_PORT = {place.master}:{place.port}"
    if not hosts:
        _await_listener(place, master, where, until)
    try:
        return TCPStore(
            master,
            place.port,
            is_master=hosts,
            timeout=timedelta(seconds=max(2.0, until - time.monotonic())),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        if hosts:
            raise RendezvousError(
                f"rank 0 cannot listen at {where}: the port is in use, by another run or another "
                f"program, or the address is another machine's; choose another port by "
                f"--master-port or --rdzv-endpoint ({reason})"
            ) from error
        raise RendezvousError(
            f"rank {place.rank}: what answers at {where} is not this run's meeting point ({reason})"
        ) from error


def _await_listener(place: Place, master: str, where: str, until: float) -> None:
    """Wait until somebody listens there: torch's own waiting fills the terminal with traces."""
    while True:
        try:
            left = max(0.5, until - time.monotonic())
            socket.create_connection((master, place.port), timeout=left).close()
            return
        except OSError as error:
            if time.monotonic() > until:
                raise RendezvousError(
                    f"rank {place.rank} finds no meeting point at {where}: is rank 0 running, and "
                    f"is the port open? ({error})"
                ) from error
            time.sleep(0.1)


class _Rendezvous:
    """One meeting, step by step."""

    def __init__(
        self,
        place: Place,
        store: PrefixStore,
        until: float,
        watch: Callable[[list[int], int], None] | None,
    ):
        self._place = place
        self._store = store
        self._until = until
        self._watch = watch

    def run(self, settings: Mapping[str, str], interface: str | None, master: str) -> Meeting:
        place = self._place
        self._claim()
        interface = interface or os.environ.get("THINWIRE_INTERFACE") or None
        try:
            address = choose_address(interface, master)
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            with socket.socket(family, socket.SOCK_STREAM) as listener:
                listener.bind((address, 0))
                listener.listen(place.size)
                cards = self._exchange(self._card(address, listener, settings))
                self._compare_hosts(cards)
                sockets = self._connect(cards, listener)
        except RendezvousError as error:
            raise RendezvousError(self._tell_all(str(error))) from error
        names = {card.rank: f"pid {card.pid} at {card.address}" for card in cards}
        return Meeting(
            rank=place.rank, size=place.size, sockets=sockets, names=names, store=self._store
        )

    def _claim(self) -> None:
        """Two processes with one rank: the later one stops, and does not disturb the others."""
        if self._store.add(f"claim/{self._place.rank}", 1) > 1:
            raise RendezvousError(
                f"another process has already come as rank {self._place.rank}; does another run "
                f"use MASTER_PORT = {self._place.port}?"
            )

    def _card(self, address: str, listener: socket.socket, settings: Mapping[str, str]) -> _Card:
        common = {
            "version of thinwire": __version__,
            "world size": str(self._place.size),
            "byte order": sys.byteorder,
        }
        return _Card(
            rank=self._place.rank,
            address=address,
            port=listener.getsockname()[1],
            host=os.environ.get("THINWIRE_HOST_ID") or host_id(),
            pid=os.getpid(),
            token=os.urandom(16),
            settings={**common, **settings},
        )

    def _exchange(self, mine: _Card) -> list[_Card]:
        size = self._place.size
        self._set(f"card/{mine.rank}", msgspec.json.encode(mine))
        cards: dict[int, _Card] = {mine.rank: mine}
        pause = 0.005
        while True:
            for rank in [r for r in range(size) if r not in cards]:
                text = self._get(f"card/{rank}")
                if text is not None:
                    cards[rank] = msgspec.json.decode(text, type=_Card)
            # Compared as they come: a rank that was told another world size waits in vain.
            listed = [cards[r] for r in sorted(cards)]
            self._compare(listed)
            if self._watch is not None:
                self._watch(sorted(cards), size)
            if len(cards) == size:
                return listed
            self._check_verdict()
            if time.monotonic() > self._until:
                absent = ", ".join(str(r) for r in range(size) if r not in cards)
                raise RendezvousError(
                    f"rank {mine.rank} of {size}: these ranks never came: {absent}"
                )
            time.sleep(pause)
            pause = min(0.1, 2 * pause)

    # The store: asked, never waited on, because torch logs every wait that times out.

    def _get(self, key: str) -> bytes | None:
        try:
            return self._store.get(key) if self._store.check([key]) else None
        except RuntimeError as error:
            raise self._store_lost() from error

    def _set(self, key: str, value: bytes) -> None:
        try:
            self._store.set(key, value)  # pyright: ignore[reportArgumentType]
        except RuntimeError as error:
            raise self._store_lost() from error

    def _store_lost(self) -> RendezvousError:
        place = self._place
        return RendezvousError(
            f"rank {place.rank} lost the meeting point at {place.master}:{place.port}: did rank 0 "
            "end?"
        )

    def _compare(self, cards: list[_Card]) -> None:
        first = cards[0]
        for card in cards[1:]:
            for key in [*first.settings, *(k for k in card.settings if k not in first.settings)]:
                ours, theirs = first.settings.get(key), card.settings.get(key)
                if ours != theirs:
                    raise RendezvousError(
                        f"the ranks differ in {key}: {ours!r} on rank {first.rank} "
                        f"({first.address}), {theirs!r} on rank {card.rank} ({card.address})"
                    )

    def _compare_hosts(self, cards: list[_Card]) -> None:
        hosts = dict.fromkeys(card.host for card in cards)
        unreachable = [str(card.rank) for card in cards if is_loopback(card.address)]
        if len(hosts) > 1 and unreachable:
            raise RendezvousError(
                f"the run spans {len(hosts)} hosts, but rank {', '.join(unreachable)} would "
                f"listen on the loopback address, which other hosts cannot reach; {HOW_TO_CHOOSE}"
            )

    def _connect(self, cards: list[_Card], listener: socket.socket) -> dict[int, socket.socket]:
        """Connect to lower ranks, accept higher ones; each proves that it has read the cards."""
        rank, sockets = self._place.rank, {}
        try:
            for card in cards[:rank]:
                sockets[card.rank] = self._dial(card, cards[rank])
            while len(sockets) < len(cards) - 1:
                self._accept(listener, cards, sockets)
            for sock in sockets.values():
                tune(sock)
        except BaseException:
            for sock in sockets.values():
                sock.close()
            raise
        return sockets

    def _dial(self, card: _Card, mine: _Card) -> socket.socket:
        try:
            left = max(1.0, self._until - time.monotonic())
            sock = socket.create_connection(
                (card.address, card.port), timeout=left, source_address=(mine.address, 0)
            )
            sock.sendall(card.token + mine.rank.to_bytes(4, "little"))
        except OSError as error:
            raise RendezvousError(
                f"rank {mine.rank} ({mine.address}) cannot reach rank {card.rank} at "
                f"{card.address}:{card.port} ({error}); a firewall, or the wrong interface? "
                f"{HOW_TO_CHOOSE}"
            ) from error
        return sock

    def _accept(
        self, listener: socket.socket, cards: list[_Card], sockets: dict[int, socket.socket]
    ) -> None:
        listener.settimeout(_SLICE)
        try:
            sock, _ = listener.accept()
        except TimeoutError:
            self._check_verdict()
            if time.monotonic() > self._until:
                absent = [c for c in cards if c.rank not in sockets and c.rank > self._place.rank]
                listed = ", ".join(f"{c.rank} ({c.address})" for c in absent)
                raise RendezvousError(
                    f"rank {self._place.rank}: no connection came from rank {listed}; a firewall, "
                    f"or the wrong interface? {HOW_TO_CHOOSE}"
                ) from None
            return
        peer = self._greeting(sock, cards[self._place.rank].token)
        if peer is None or not self._place.rank < peer < len(cards) or peer in sockets:
            sock.close()  # a stranger
        else:
            sockets[peer] = sock

    def _greeting(self, sock: socket.socket, token: bytes) -> int | None:
        sock.settimeout(2.0)
        came = b""
        try:
            while len(came) < len(token) + 4:
                piece = sock.recv(len(token) + 4 - len(came))
                if not piece:
                    return None
                came += piece
        except OSError:
            return None
        return int.from_bytes(came[-4:], "little") if came.startswith(token) else None

    # The verdict: the first error is told to all, so that each names the same.

    def _check_verdict(self) -> None:
        text = self._get("verdict")
        if text is not None:
            raise RendezvousError(text.decode())

    def _tell_all(self, text: str) -> str:
        """Leave a verdict, unless there is one, and return it; whoever hosts the store stays until
        the others have read it."""
        store, size = self._store, self._place.size
        try:
            text = store.compare_set("verdict", "", text).decode()
            store.add("told", 1)
            if self._place.rank == 0 and not self._place.agent_store:
                # Ranks that are still starting are to find the verdict, not a closed door.
                until = min(self._until, time.monotonic() + _FAREWELL)
                while store.add("told", 0) < size and time.monotonic() < until:
                    time.sleep(0.02)
        except RuntimeError:
            pass  # the store is gone, and with it whoever could have read
        return text
