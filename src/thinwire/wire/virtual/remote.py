"""The worker's side of a script on the virtual cluster: a communicator whose world is elsewhere.

The process has one line to the clock server and runs one program at a time: the script itself, and
tasks and servers as fibres that go on while the script is blocked. Requests without an answer are
sent on the way; an answer always says which program goes on. So the order in which programs of a
process run follows from virtual time alone.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import torch

from thinwire.errors import InputError, PeerDiedError, ThinwireError
from thinwire.fibers import Fiber, FiberExit, pause, refuse_in_backward
from thinwire.wire.base import ANY, Arrival, Comm, Losses, Posted, Tag, Task, Work
from thinwire.wire.meter import Meter, PeerMeter
from thinwire.wire.packet import Packet
from thinwire.wire.virtual._council import Shared, error_of
from thinwire.wire.virtual._line import Frames, Line
from thinwire.wire.virtual.clock import NS

__all__ = ["RemoteComm", "RemoteTask", "Session", "attach", "session"]

_MAIN = 0


class Session:
    """This process's line to the clock server, and the programs that run here.

    Args:
        sock: the line, connected.
        rank: of this process.
        size: number of ranks.
    """

    def __init__(self, sock: socket.socket, rank: int, size: int):
        self.rank, self.size = rank, size
        self.steps: dict[int, int] = {}
        self.lost: ThinwireError | None = None
        self._line = Line(sock)
        self._owner = os.getpid(), threading.get_ident()
        self._current = _MAIN
        self._ahead: dict[int, bool] = {}
        self._time = 0
        self._tasks: dict[int, RemoteTask] = {}
        self._num_tasks = self._num_meetings = self._num_posts = 0
        self._late: list[tuple[RemoteComm, str, Work]] = []
        self.dropped: list[int] = []

    # Meetings.

    def meet(
        self, num_servers: int, expected: Mapping[str, str], about: Mapping[str, Any]
    ) -> RemoteComm:
        """Wait until all ranks have come, with equal settings; see `sockets.connect`."""
        number = self._num_meetings
        self._num_meetings += 1
        key = f"meeting {number}" if number else None
        self.call(None, "meet", num_servers, key, dict(expected), dict(about))
        return RemoteComm(self, self.rank, key, num_servers)

    def barrier(self) -> None:
        """Wait until all ranks have called. Costs no virtual time of its own."""
        self.call(None, "barrier")

    # Requests.

    def tell(self, comm: RemoteComm | None, operation: str, *arguments: Any,
             frames: Frames = ()) -> None:  # fmt: skip
        """Put a request that has no answer; it leaves with the next `flush` or `call`."""
        if self.lost is not None:
            raise self.lost
        if self._late:
            self._catch_up()
        self._put(comm, operation, arguments, frames)

    def _put(
        self, comm: RemoteComm | None, operation: str, arguments: Sequence[Any], frames: Frames
    ) -> None:
        place = (-1, None, 0) if comm is None else (comm.rank, comm.key, comm.step)
        self._line.put([operation, self._current, *place, *arguments], frames)

    def flush(self) -> None:
        """Send what was told."""
        if not self._line.flush():
            self._read_loss()

    def call(
        self, comm: RemoteComm | None, operation: str, *arguments: Any, frames: Frames = ()
    ) -> tuple[list[Any], Sequence[memoryview]]:
        """Make a request and block until its answer: values and frames.

        Raises:
            ThinwireError: the answer is an error, or the run has ended.
        """
        if (os.getpid(), threading.get_ident()) != self._owner:
            raise InputError(
                f"rank {self.rank}: only the script's main thread can talk to other ranks on the "
                "virtual cluster, no other thread and no process that it has forked"
            )
        self.tell(comm, operation, *arguments, frames=frames)
        self.flush()
        self._ahead.pop(self._current, None)
        kind, values, found = pause() if self._current else self._drive()
        if kind == "error":
            raise error_of(values[0], values[2], values[1])
        return values, found

    def spend(self, comm: RemoteComm, work: Work, operation: str) -> None:
        """Charge work. From another thread, in a backward pass of an accelerator, it is charged
        with the next request."""
        if threading.get_ident() != self._owner[1]:
            self._late.append((comm, operation, work))
            return
        self._ahead[self._current] = True
        self.tell(comm, operation, work.flops, work.memory_bytes, work.elapsed, work.kind)

    def _catch_up(self) -> None:
        late, self._late = self._late, []
        for comm, operation, work in late:
            numbers = work.flops, work.memory_bytes, work.elapsed, work.kind
            self._put(comm, operation, numbers, ())

    def now(self, comm: RemoteComm | None) -> float:
        """Virtual seconds, as far as the running program has come."""
        if self._ahead.get(self._current) or self._late:
            self.call(comm, "sync")
        return self._time / NS

    def post_number(self) -> int:
        """A new number for a posted packet."""
        self._num_posts += 1
        return self._num_posts

    # Programs.

    def start(self, comm: RemoteComm, program: Callable[[Comm], Any], name: str) -> RemoteTask:
        """A new program, not yet running, of the given communicator."""
        if any(t.comm.rank == comm.rank and t.name == name for t in self._tasks.values()):
            raise InputError(f"rank {comm.rank}: a task {name!r} is still running")
        self._num_tasks += 1
        task = self._tasks[self._num_tasks] = RemoteTask(self, self._num_tasks, comm, program, name)
        return task

    def _drive(self) -> tuple[str, list[Any], Sequence[memoryview]]:
        """Let the other programs go on as they are told until the script itself is."""
        while True:
            message = self._line.take()
            if message is None:
                raise self._end(ThinwireError("the clock server is gone"))
            (kind, number, self._time, *values), frames = message
            if kind == "lost":
                raise self._end(error_of(values[0], values[2], values[1]))
            if number == _MAIN:
                return kind, values, frames
            self._run(self._tasks[number], (kind, values, frames))

    def _run(self, task: RemoteTask, answer: Any) -> None:
        self._current = task.number
        try:
            task.fiber.resume_anywhere(answer)
            if not task.fiber.alive:
                del self._tasks[task.number]
                self.tell(task.comm, "end")
                self.flush()
        finally:
            self._current = _MAIN

    def _read_loss(self) -> None:
        """The line has broken while writing: what came before says why."""
        while (message := self._line.take()) is not None:
            kind, _, _, *values = message[0]
            if kind == "lost":
                raise self._end(error_of(values[0], values[2], values[1]))
        raise self._end(ThinwireError("the clock server is gone"))

    def _end(self, error: ThinwireError) -> ThinwireError:
        self.lost = error
        self._line.close()
        for task in list(self._tasks.values()):
            task.fiber.kill()
        self._tasks.clear()
        return error

    def fail(self, text: str) -> None:
        """Tell the server that this rank has failed, and hang up."""
        if self.lost is None:
            self._current = _MAIN
            self._put(None, "failed", [text], ())
            self.flush()
            self._end(ThinwireError(f"this rank has failed before: {text}"))


class RemoteComm(Comm):
    """An endpoint of the virtual cluster, for one program of a process of its own.

    `spend` does not suspend here: the program runs ahead until it needs an answer, while its
    requests are performed in virtual time one after the other.

    Args:
        session: the process's line.
        rank: the endpoint.
        key: prefix of this program's tags.
        num_servers: of its meeting.
    """

    simulated = True
    losses: Losses = "strict"

    def __init__(self, session: Session, rank: int, key: str | None, num_servers: int):
        self.rank = rank
        self.size = session.size
        self.num_servers = num_servers
        self.key = key
        self._session = session
        self._begun: list[RemoteTask] = []

    @property
    def step(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Where the program is."""
        return self._session.steps.get(self.rank, 0)

    @step.setter
    def step(self, value: int) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._session.steps[self.rank] = value

    @property
    def meter(self) -> Meter:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The counters at this moment, a copy. Blocks in real, not in virtual time."""
        (peers, local, computed), _ = self._session.call(self, "meter")
        meter = Meter(local=PeerMeter(*local), computed=computed)
        meter.peers.update({int(rank): PeerMeter(*counts) for rank, counts in peers.items()})
        return meter

    def now(self) -> float:
        """See `Comm`: virtual seconds."""
        return self._session.now(self)

    def post(
        self, dst: int, packet: Packet, tag: Tag = 0, *, after: Posted | None = None
    ) -> Posted:
        """See `Comm`."""
        last = self.size + self.num_servers - 1
        if not 0 <= dst <= last or dst == self.rank:
            raise InputError(f"rank {self.rank}: post to {dst}; valid: 0..{last}, not itself")
        if packet.is_meta:
            raise InputError("a packet of meta tensors has nothing to send")
        session = self._session
        posted = _RemotePosted(session)
        before = after.number if isinstance(after, _RemotePosted) else None
        dropped, session.dropped = session.dropped, []
        session.tell(self, "post", dst, tag, posted.number, before, dropped, frames=packet.frames())
        return posted

    def wait(self, src: int = ANY, tag: Tag = 0, deadline: float | None = None) -> Arrival:
        """See `Comm`; the deadline is in virtual seconds, without one there is none."""
        refuse_in_backward(f"rank {self.rank}: wait({src}, {tag!r})", self.in_hook)
        (found, time), frames = self._session.call(self, "wait", src, tag, deadline)
        return Arrival(found, tag, Packet.from_frames(frames) if frames else None, time)

    def spend(self, work: Work) -> None:
        """See `Comm`."""
        self._session.spend(self, work, "spend")

    def announce(self, work: Work) -> None:
        """As `spend`, for work that this process is about to do: till then no other rank, nor
        virtual time, waits for it."""
        self._session.spend(self, work, "announce")
        if not self._session._late:
            self._session.flush()

    def start(self, program: Callable[[Comm], Any], key: str) -> RemoteTask:
        """See `Comm`: the program goes on while the others of this process are blocked."""
        whole = key if self.key is None else f"{self.key}/{key}"
        comm = RemoteComm(self._session, self.rank, whole, self.num_servers)
        task = self._session.start(comm, program, whole)
        self._begun.append(task)
        self._session.tell(self, "start", task.number, key)
        return task

    def serve(self, program: Callable[[Comm], Any], index: int = 0) -> RemoteTask:
        """See `SocketComm.serve`."""
        if self.rank != 0 or not 0 <= index < self.num_servers:
            raise InputError(
                f"rank {self.rank}: serve({index}); servers 0..{self.num_servers - 1} live in the "
                "process of rank 0"
            )
        comm = RemoteComm(self._session, self.size + index, self.key, self.num_servers)
        task = self._session.start(comm, program, f"server {index}/{self.key}")
        self._begun.append(task)
        self._session.tell(self, "serve", index, task.number)
        return task

    # What costs no virtual time, see `_council.py`.

    def share(self, name: str, value: Any, frames: Frames = ()) -> Shared:
        """Every rank's value, by rank, and rank 0's frames; all ranks call. Blocks."""
        (values,), found = self._session.call(self, "share", self.key, name, value, frames=frames)
        return Shared(values, found)

    def compare(self, name: str, facts: Mapping[str, Any], words: str, error: str) -> None:
        """See `Council.compare`; what differs ends the run."""
        self._session.tell(self, "compare", self.key, name, dict(facts), words, error)

    def log(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """See `ClockServer.log`."""
        self._session.tell(self, "log", kind, step, dict(values))
        self._session.flush()

    def begin_step(self, step: int, settings: Any) -> None:
        """See `Council.begin`."""
        self._session.tell(self, "begin", self.key, step, settings)

    def leave_steps(self, step: int, begun: int, settings: Any) -> None:
        """See `Council.leave`."""
        self._session.tell(self, "leave", self.key, step, begun, settings)

    def beyond(self, step: int) -> tuple[bool, Any, Any, int]:
        """See `Council.beyond`. Blocks."""
        (further, settings, last, begun), _ = self._session.call(self, "beyond", self.key, step)
        return further, settings, last, begun

    # The end.

    def __enter__(self) -> RemoteComm:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and not (isinstance(error, SystemExit) and not error.code):
            if not isinstance(error, PeerDiedError):
                self._session.fail(f"rank {self.rank} failed at step {self.step}: {_line(error)}")
            return
        for task in self._begun:
            if not (task.seen and task.done):
                task.wait()
        self._session.tell(self, "close")
        self._session.flush()


class _RemotePosted(Posted):
    """A posted packet, kept at the server for as long as somebody here may name it."""

    def __init__(self, session: Session):
        self.number = session.post_number()
        self._session = session

    def __del__(self) -> None:
        self._session.dropped.append(self.number)


class RemoteTask(Task):
    """A started program, a fibre of this process.

    Attributes:
        number: of the program, for the server.
        comm: its communicator.
        name: its key.
        seen: whether somebody has been given its outcome.
    """

    def __init__(
        self,
        session: Session,
        number: int,
        comm: RemoteComm,
        program: Callable[[Comm], Any],
        name: str,
    ):
        self.number = number
        self.comm = comm
        self.name = name
        self.seen = False
        self.fiber = Fiber(self._run)
        self._session = session
        self._program = program
        self._joiners = 0
        self._done = False
        self._result: Any = None
        self._error: Exception | None = None

    def _run(self) -> None:
        try:
            with torch.no_grad():
                self._result = self._program(self.comm)
        except FiberExit:
            return
        except Exception as error:
            self._error = error
        self._done = True
        if self._error is not None and not self._joiners:
            # Nobody may ever ask for the result: a failure must not go unseen.
            raise self._error

    @property
    def done(self) -> bool:
        """See `Task`."""
        self._session.now(None)
        return self._done

    def wait(self, deadline: float | None = None) -> Any:
        """See `Task`."""
        refuse_in_backward(f"rank {self.comm.rank}: waiting for task {self.name!r}")
        self._joiners += 1
        try:
            self._session.call(None, "join", self.number, deadline)
        finally:
            self._joiners -= 1
        self.seen = True
        if self._error is not None:
            raise self._error
        return self._result


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")


_session: Session | None = None


def attach(fd: int, rank: int, size: int) -> Session:
    """Make this process a rank of a clock server's world, once.

    Args:
        fd: descriptor of the line, inherited from the server's process.
        rank: of this process.
        size: number of ranks.
    """
    global _session
    assert _session is None, "attached twice"
    os.set_inheritable(fd, False)
    _session = Session(socket.socket(fileno=fd), rank, size)
    return _session


def session() -> Session | None:
    """This process's line to a clock server, if it was started with one."""
    return _session
