"""Performs the requests of one program of a worker's process on the virtual communicator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from thinwire.errors import InputError, RendezvousError, ThinwireError
from thinwire.fibers import pause
from thinwire.wire.base import Posted, Task, Work
from thinwire.wire.packet import Packet
from thinwire.wire.virtual._council import Shared
from thinwire.wire.virtual.clock import NS
from thinwire.wire.virtual.comm import VirtualComm, Waiter
from thinwire.wire.virtual.compute import Job

if TYPE_CHECKING:
    from thinwire.wire.virtual.clock_server import ClockServer, Peer

__all__ = ["Parcel", "Proxy"]

_DIFFER = "the ranks differ in {key}: {a} on rank {rank_a}, {b} on rank {rank_b}"


class Parcel:
    """A packet on its way through the server, which never looks inside."""

    __slots__ = ("frames", "nbytes", "payload_nbytes")

    def __init__(self, frames: Sequence[memoryview]):
        self.frames = frames
        self.payload_nbytes = sum(map(len, frames[1:]))
        self.nbytes = self.payload_nbytes + len(frames[0])


class Proxy:
    """A program of the world that does what a program elsewhere asks for.

    Args:
        server: has the lines.
        peer: the process.
        number: which of its programs.
        comm: as which the world runs it; the process may use others of its endpoints beside it.
    """

    def __init__(self, server: ClockServer, peer: Peer, number: int, comm: VirtualComm):
        self._server = server
        self._peer = peer
        self._number = number
        self._comm = comm
        self._views: dict[tuple[int, str | None], VirtualComm] = {}
        self._view = comm
        self._posted: dict[int, Posted] = peer.posted
        self._tasks: dict[int, Task] = peer.tasks
        self._frames: Sequence[memoryview] = ()
        self._owed: Work | None = None
        self._job: Job | None = None

    def run(self) -> None:
        """Perform requests until the program, or its process, has ended."""
        while True:
            message = self._server.next(self._peer, self._number)
            if message is None:
                self._settle()
                return
            (operation, _, endpoint, key, step, *arguments), self._frames = message
            if operation == "end":
                self._settle()
                return
            self._look_from(endpoint, key)
            if endpoint >= 0:
                self._view.step = step
                if endpoint < self._server.size:
                    self._peer.step = step
            getattr(self, f"_{operation}")(*arguments)

    def _look_from(self, endpoint: int, key: str | None) -> None:
        """Make the communicator that the program uses now the current one."""
        place = endpoint, key
        view = self._views.get(place)
        if view is None:
            world = self._server.world
            assert world is not None
            view = self._comm
            if endpoint >= 0 and (endpoint, key) != (view.rank, view._key):
                view = VirtualComm(world, world.endpoints[endpoint], key)
                view.resume = self._comm.resume
            self._views[place] = view
        if view is not self._view:
            self._settle()
            self._view = view

    def _answer(self, *values: Any, frames: Sequence[memoryview] = ()) -> None:
        head = ["answer", self._number, self._server._now(), *values]
        self._server.send(self._peer, head, frames)

    def _refuse(self, error: ThinwireError) -> None:
        rank = getattr(error, "rank", -1)
        head = [type(error).__name__, rank, str(error)]
        self._server.send(self._peer, ["error", self._number, self._server._now(), *head])

    # The requests, by their names.

    def _post(
        self, dst: int, tag: Any, number: int, after: int | None, dropped: Sequence[int]
    ) -> None:
        self._settle()
        for old in dropped:
            self._posted.pop(old, None)
        before = None if after is None else self._posted.get(after)
        packet = cast(Packet, Parcel(self._frames))
        self._posted[number] = self._view.post(dst, packet, as_tag(tag), after=before)

    def _spend(self, flops: float, memory_bytes: float, elapsed: float, kind: str) -> None:
        owed, world = self._owed or Work(), self._server.world
        if kind and world is not None:
            node = world.processors[self._view.endpoint.node].node
            memory_bytes *= node.passes(kind)
        self._owed = Work(
            owed.flops + flops, owed.memory_bytes + memory_bytes, owed.elapsed + elapsed
        )

    def _announce(self, flops: float, memory_bytes: float, elapsed: float, kind: str) -> None:
        self._spend(flops, memory_bytes, elapsed, kind)
        self._compute()

    def _compute(self) -> None:
        """Let the time of what is owed pass. What is spent next, before anything visible, goes on
        from there as part of the same work: `VirtualComm` would let it pass in one piece."""
        work, self._owed = self._owed, None
        world = self._server.world
        if work is None or world is None:
            return
        endpoint, began = self._view.endpoint, world.clock.now
        processor = world.processors[endpoint.node]
        self._job = processor.submit(work, self._comm.resume, self._job)
        pause()
        elapsed = world.clock.now - began
        endpoint.meter.computed += elapsed / NS
        if world.spans is not None and elapsed:
            world.spans.append((endpoint.rank, "compute", began, world.clock.now, -1, 0))

    def _settle(self) -> None:
        self._compute()
        self._job = None

    def _wait(self, src: int, tag: Any, deadline: float | None) -> None:
        self._settle()
        view, comm, whole = self._view, self._comm, as_tag(tag)
        if view is not comm:  # deadlocks are described by the program's own
            comm.waiting = Waiter(comm, src, whole, comm.resume)
        try:
            arrival = view.wait(src, whole, deadline)
        except ThinwireError as error:
            self._refuse(error)
            return
        finally:
            if view is not comm:
                comm.waiting = None
        frames = () if arrival.packet is None else cast(Parcel, arrival.packet).frames
        self._answer(arrival.src, arrival.time, frames=frames)

    def _sync(self) -> None:
        self._settle()
        self._answer()

    def _meter(self) -> None:
        self._settle()
        meter = self._view.meter
        peers = {rank: _counts(peer) for rank, peer in meter.peers.items()}
        self._answer(peers, _counts(meter.local), meter.computed)

    def _start(self, number: int, key: str) -> None:
        self._settle()
        server, peer = self._server, self._peer
        self._tasks[number] = self._view.start(
            lambda comm: server.task(peer, number, cast(VirtualComm, comm)), key
        )

    def _join(self, number: int, deadline: float | None) -> None:
        self._settle()
        try:
            if number in self._tasks:
                self._tasks[number].wait(deadline)
            else:
                self._server.join(self._comm, number)
        except ThinwireError as error:
            self._refuse(error)
        else:
            self._answer()

    def _serve(self, index: int, number: int) -> None:
        self._settle()
        self._server.serve(index, number)

    def _close(self) -> None:
        self._settle()

    # What costs nothing.

    def _meet(
        self, num_servers: int, key: str | None, expected: dict[str, str], about: dict[str, Any]
    ) -> None:
        server = self._server
        assert server.world is not None
        facts = {**expected, "number of servers": str(num_servers)}
        server.council(key).compare(
            self._peer.rank, "meeting", facts, _DIFFER, RendezvousError.__name__
        )
        if num_servers > server.world.num_servers:
            raise InputError(
                f"this tw.distribute() needs {num_servers} servers, the first of the script "
                f"{server.world.num_servers}: call the one with most servers first"
            )
        server.about = about
        self._share(key, "meeting", None)

    def _barrier(self) -> None:
        self._share("barrier", "barrier", None)

    def _share(self, key: str | None, name: str, value: Any) -> None:
        server, comm = self._server, self._comm
        self._settle()
        council, frames = server.council(key), self._frames
        council.share(
            self._peer.rank, name, value, frames, lambda shared: server.wake(comm, shared)
        )
        shared: Shared = server.block(comm, f"{name} of all ranks")
        if name == "digest":
            server.digests = shared.values
        self._answer(shared.values, frames=() if self._peer.rank == 0 else shared.frames)
        server.step_back(comm)  # all get their answers before any one's next request is awaited

    def _compare(
        self, key: str | None, name: str, facts: dict[str, Any], words: str, error: str
    ) -> None:
        self._server.council(key).compare(self._peer.rank, name, facts, words, error)

    def _log(self, kind: str, step: int, values: dict[str, float]) -> None:
        self._compute()
        self._server.log(self._view, kind, step, values)

    def _begin(self, key: str | None, step: int, settings: Any) -> None:
        self._server.council(key).begin(self._peer.rank, step, settings)

    def _leave(self, key: str | None, step: int, begun: int, settings: Any) -> None:
        self._settle()
        self._server.council(key).leave(self._peer.rank, step, begun, settings)

    def _beyond(self, key: str | None, step: int) -> None:
        server, comm = self._server, self._comm
        self._settle()
        council = server.council(key)
        council.beyond(self._peer.rank, step, lambda found: server.wake(comm, found))
        self._answer(*server.block(comm, "the end of the other loops"))
        server.step_back(comm)


def as_tag(value: Any) -> Any:
    """A tag as it was before it travelled: msgpack knows no tuples."""
    return tuple(as_tag(v) for v in value) if isinstance(value, list) else value


def _counts(peer: Any) -> list[Any]:
    sent, received = peer.sent, peer.received
    return [sent, received, peer.messages_sent, peer.messages_received, peer.waited]
