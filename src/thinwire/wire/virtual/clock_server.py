"""Scripts on the virtual cluster: each worker a process of its own, one clock for all.

The world is an ordinary one, but the program of each endpoint is a proxy: a fibre that takes the
requests of a worker's process from its line, performs them on the virtual communicator, and sends
back the answers. A proxy that needs its process's next request blocks the world until it has come;
so virtual time never runs ahead of a process, and requests are performed in the order of virtual
time, then of ranks, whatever the machine's own timing. Processes run at the same time because a
worker says beforehand how much it is about to compute (`RemoteComm.announce`): until that virtual
time nobody needs to hear from it.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from thinwire.cluster import Cluster
from thinwire.errors import DeadlineError, InputError, ThinwireError, WorkerFailedError
from thinwire.fibers import pause
from thinwire.wire.base import ANY, Comm, Posted, Task
from thinwire.wire.meter import Meter
from thinwire.wire.virtual._council import Council
from thinwire.wire.virtual._line import Frames, LineEnded, Message, Reader, encode
from thinwire.wire.virtual._proxy import Proxy
from thinwire.wire.virtual.clock import NS
from thinwire.wire.virtual.comm import VirtualComm, Waiter
from thinwire.wire.virtual.world import LinkModel, World

__all__ = ["ClockServer", "Logged", "Peer"]

_SLICE = 0.25
_LAST_WORDS = 1.0
_STARTING = 3
"""Times `warn_after` that ranks get to import their libraries and read their data."""


class Peer:
    """A worker's process as the server sees it.

    Attributes:
        inbox: messages that came, by the number of the program that sent them.
        ended: whether nothing more can come.
        open: meetings that it has joined and not left.
        step: its last known step.
        posted: its packets that a later post may name, by number.
        tasks: its started programs, by number.
    """

    def __init__(self, rank: int, sock: socket.socket):
        sock.setblocking(False)
        self.rank = rank
        self.sock = sock
        self.reader = Reader(sock)
        self.inbox: dict[int, deque[Message]] = {}
        self.ended = False
        self.open = 0
        self.step = 0
        self.posted: dict[int, Posted] = {}
        self.tasks: dict[int, Task] = {}


class Logged(NamedTuple):
    """What a rank told of a step or an evaluation, and where it was then: virtual seconds, bytes
    sent, and virtual seconds waited."""

    kind: str
    step: int
    time: float
    sent: int
    waited: float
    values: dict[str, float]


class ClockServer:
    """The world of a script's processes.

    Args:
        cluster: where the script runs; rank r is node r.
        sockets: the line of each rank.
        ended: called with a rank whose line has ended; says how its process did ("was killed by
            SIGKILL"), or "" if well.
        warn: called with a warning.
        link_model: see `World`.
        seed: see `World`.
        trace: see `World`.
        max_spans: spans are kept up to so many.
        warn_after: real seconds that a rank may be busy with its own code, while all others wait
            for it, before a warning names it.
        deadline: real seconds after which that ends the run.

    Attributes:
        world: None until all ranks have come.
        about: what each rank's last meeting said of itself.
        digests: the parameters' digests that the ranks shared last, by rank.
        logged: what rank 0 had to tell, in the order of virtual time.
    """

    def __init__(
        self,
        cluster: Cluster,
        sockets: Sequence[socket.socket],
        *,
        ended: Callable[[int], str],
        warn: Callable[[str], None],
        link_model: LinkModel = "fair",
        seed: int = 0,
        trace: bool = False,
        max_spans: int = 0,
        warn_after: float = 10.0,
        deadline: float = 1800.0,
    ):
        self._cluster = cluster
        self._peers = [Peer(rank, sock) for rank, sock in enumerate(sockets)]
        self._how_ended = ended
        self._warn = warn
        self._options = {"link_model": link_model, "seed": seed, "trace": trace}
        self._max_spans = max_spans
        self._warn_after = warn_after
        self._deadline = deadline
        self._poll = select.poll()
        self._by_fd = {peer.sock.fileno(): peer for peer in self._peers}
        for peer in self._peers:
            self._poll.register(peer.sock, select.POLLIN)
        self._councils: dict[str, Council] = {}
        self._serves: dict[int, deque[int]] = {}
        self._idle: dict[int, VirtualComm] = {}
        self._served: dict[int, None] = {}
        self._joiners: dict[int, list[VirtualComm]] = {}
        self._spans: list[Any] | None = None
        self.world: World | None = None
        self.about: dict[str, Any] = {}
        self.digests: list[str] = []
        self.logged: list[Logged] = []

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self._peers)

    @property
    def spans(self) -> list[tuple[int, str, int, int, int, int]]:
        """As `World.spans`, as far as they were kept."""
        return self._spans or (self.world.spans if self.world else None) or []

    @property
    def meters(self) -> list[Meter]:
        """Of each endpoint."""
        return [e.meter for e in self.world.endpoints] if self.world else []

    @property
    def steps(self) -> int:
        """The furthest rank's step."""
        return max(peer.step for peer in self._peers)

    @property
    def elapsed(self) -> float:
        """Virtual seconds so far."""
        return self.world.elapsed if self.world else 0.0

    def run(self) -> None:
        """Serve until every process has ended.

        Raises:
            WorkerFailedError: a rank raised or died; the others have been told.
            DeadlineError: a rank was busy with its own code for too long.
            ThinwireError: what else ended the run.
        """
        try:
            num_servers = self._first_meeting()
            self.world = World(self._cluster, num_servers=num_servers, **self._options)
            self.world.run(self._worker, self._server)
            for peer in self._peers:
                assert peer.ended
        except ThinwireError as error:
            known = error.__cause__ if isinstance(error.__cause__, ThinwireError) else error
            self._tell_all(known)
            raise known from None
        finally:
            for peer in self._peers:
                peer.sock.close()

    def _first_meeting(self) -> int:
        """Wait until every rank has called `distribute`; the number of servers it needs."""
        while True:
            for peer in self._peers:
                self._await(peer, 0)
            firsts = [peer.inbox[0][0][0] if peer.inbox.get(0) else None for peer in self._peers]
            operations = [None if head is None else head[0] for head in firsts]
            if operations == ["barrier"] * self.size:
                for peer in self._peers:
                    peer.inbox[0].popleft()
                    self.send(peer, ["answer", 0, 0, None])
                continue
            absent = [str(r) for r, op in enumerate(operations) if op is None]
            if len(absent) == self.size:
                raise InputError(
                    "the script has ended without tw.distribute(): there is nothing to simulate. "
                    "Put the three lines into its loop: docs/howto/own_loop.md"
                )
            if absent:
                raise InputError(
                    f"rank {', '.join(absent)} ended without tw.distribute(), which every rank "
                    "must call"
                )
            meeting = next(head for head in firsts if head is not None and head[0] == "meet")
            return int(meeting[5])

    # Programs of the world.

    def _worker(self, comm: Comm) -> None:
        assert isinstance(comm, VirtualComm)
        Proxy(self, self._peers[comm.rank], 0, comm).run()
        if comm.rank == 0:
            for index, idle in list(self._idle.items()):
                self._serves[index].append(-1)
                self.wake(idle, None)

    def _server(self, comm: Comm) -> None:
        """A server endpoint lives as long as rank 0's process, which runs its programs."""
        assert isinstance(comm, VirtualComm)
        index = comm.rank - self.size
        queue = self._serves.setdefault(index, deque())
        while True:
            if not queue:
                self._idle[index] = comm
                self.block(comm, "the start of its program")
                del self._idle[index]
            number = queue.popleft()
            if number < 0:
                return
            self.task(self._peers[0], number, comm)
            self._served[number] = None
            for joiner in self._joiners.pop(number, []):
                self.wake(joiner, None)

    def join(self, comm: VirtualComm, number: int) -> None:
        """Suspend a proxy's fibre until a program given to `serve` has ended."""
        if number not in self._served:
            self._joiners.setdefault(number, []).append(comm)
            self.block(comm, "the end of a server")

    def serve(self, index: int, number: int) -> None:
        """Run program `number` of rank 0's process on a server endpoint."""
        self._serves.setdefault(index, deque()).append(number)
        idle = self._idle.get(index)
        if idle is not None:
            self.wake(idle, None)

    def task(self, peer: Peer, number: int, comm: VirtualComm) -> None:
        """Perform what a started program of a process asks for, to its end."""
        self.send(peer, ["run", number, self._now()])
        Proxy(self, peer, number, comm).run()

    def log(self, comm: VirtualComm, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Something for the record.

        Args:
            comm: whose.
            kind: "measure", a step is over; "step", numbers of the step measured last;
                "evaluation".
            step: so many are done.
            values: numbers.
        """
        if kind != "step":
            waited, sent = comm.meter.waited, comm.meter.sent
            self.logged.append(Logged(kind, step, self._now() / NS, sent, waited, dict(values)))
            return
        for last in reversed(self.logged):
            if last.kind == "measure":
                last.values.update(values)
                break

    def council(self, key: str | None) -> Council:
        """Of the meeting with this key."""
        return self._councils.setdefault(key or "", Council(self.size))

    def block(self, comm: VirtualComm, what: str) -> Any:
        """Suspend a proxy's fibre until `wake`."""
        comm.waiting = Waiter(comm, ANY, what, comm.resume)
        try:
            return pause()
        finally:
            comm.waiting = None

    def step_back(self, comm: VirtualComm) -> None:
        """Let what else happens at this virtual time happen first."""
        self.wake(comm, None)
        self.block(comm, "its turn")

    def wake(self, comm: VirtualComm, value: Any) -> None:
        """Let a suspended proxy go on at this virtual time, after what was asked for before."""
        assert self.world is not None
        self.world.clock.at(self.world.clock.now, comm.resume, value)

    def _now(self) -> int:
        return self.world.clock.now if self.world else 0

    # The lines.

    def next(self, peer: Peer, number: int) -> Message | None:
        """The next request of a program; None when its process has ended. Blocks the world."""
        if self.world is not None and len(self.world.spans or ()) > self._max_spans:
            self._spans, self.world.spans = self.world.spans, None
        self._await(peer, number)
        box = peer.inbox.get(number)
        return box.popleft() if box else None

    def _await(self, peer: Peer, number: int) -> None:
        box = peer.inbox.setdefault(number, deque())
        if box or peer.ended:
            return
        began = time.monotonic()
        starting = _STARTING if self.world is None else 1
        warn_at = began + starting * self._warn_after
        while not box and not peer.ended:
            self._pump(_SLICE)
            busy = time.monotonic() - began
            if busy > self._deadline:
                raise DeadlineError(
                    f"{self._busy(peer, busy)}: the deadline ({self._deadline:g} s) has passed"
                )
            if began + busy > warn_at:
                self._warn(f"{self._busy(peer, busy)}; the others wait for it")
                warn_at = began + 2 * busy

    def _busy(self, peer: Peer, seconds: float) -> str:
        if self.world is None:
            return f"rank {peer.rank} has not called tw.distribute() in {seconds:.0f} s"
        return (
            f"rank {peer.rank} has been busy with its own code for {seconds:.0f} s (step "
            f"{peer.step}, virtual time {self.elapsed:.3f} s)"
        )

    def _pump(self, timeout: float) -> None:
        """Take in what has come on any line."""
        for fd, _ in self._poll.poll(timeout * 1000):
            peer = self._by_fd[fd]
            try:
                messages = peer.reader.read()
            except LineEnded:
                self._hung_up(peer)
                continue
            for head, frames in messages:
                operation, number, *rest = head
                if operation == "failed":
                    raise WorkerFailedError(peer.rank, rest[-1])
                peer.open += (operation == "meet") - (operation == "close")
                peer.inbox.setdefault(number, deque()).append((head, frames))

    def _hung_up(self, peer: Peer) -> None:
        peer.ended = True
        self._poll.unregister(peer.sock)
        how = self._how_ended(peer.rank)
        if not how and peer.open:
            how = "ended without tw.finish()"
        if how:
            when = f", after {peer.step} steps" if peer.step else ""
            raise WorkerFailedError(peer.rank, f"rank {peer.rank} {how}{when}")

    def send(self, peer: Peer, head: Sequence[Any], frames: Frames = ()) -> None:
        """Send to a process, taking in what comes meanwhile: it may be sending, too."""
        for piece in encode(head, frames):
            view = memoryview(piece)
            while view and not peer.ended:
                try:
                    view = view[peer.sock.send(view) :]
                except BlockingIOError:
                    self._poll.modify(peer.sock, select.POLLIN | select.POLLOUT)
                    self._pump(_SLICE)
                    if not peer.ended:
                        self._poll.modify(peer.sock, select.POLLIN)
                except OSError:
                    self._pump(_SLICE)  # says how it ended

    def _tell_all(self, error: ThinwireError) -> None:
        """Tell every process that is left why the run has ended, as far as its line takes it."""
        kind, rank = type(error).__name__, getattr(error, "rank", -1)
        if isinstance(error, WorkerFailedError):
            kind = "PeerDiedError"
        until = time.monotonic() + _LAST_WORDS
        for peer in self._peers:
            if peer.ended or peer.rank == rank:
                continue
            data = b"".join(encode(["lost", -1, self._now(), kind, rank, str(error)]))
            view = memoryview(data)
            while view and time.monotonic() < until:
                try:
                    view = view[peer.sock.send(view) :]
                except BlockingIOError:
                    time.sleep(0.01)
                except OSError:
                    break
