"""The virtual endpoint: posts become events, waits suspend the fibre."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from thinwire.errors import (
    DeadlineError,
    InputError,
    PeerFinishedError,
    ThinwireError,
)
from thinwire.fibers import inside_backward, pause, refuse_in_backward
from thinwire.phases import Phases
from thinwire.wire.base import ANY, Arrival, Comm, Move, Posted, Tag, Task, Work
from thinwire.wire.packet import Packet
from thinwire.wire.virtual.clock import NS, to_ns
from thinwire.wire.virtual.compute import at_memory_rate
from thinwire.wire.virtual.endpoint import Endpoint, Waiter
from thinwire.wire.virtual.network import Message
from thinwire.wire.virtual.player import Player

if TYPE_CHECKING:
    from thinwire.wire.virtual.world import World

__all__ = ["VirtualComm", "VirtualTask"]

_MAX_DEBTS = 64
"""Spendings that are remembered one by one."""

_NOTHING = Work()


class VirtualComm(Comm):
    """An endpoint of the virtual cluster, for one program.

    Args:
        world: whose clock and network are used.
        endpoint: the address; tasks of one rank share it.
        key: prefix of this program's tags, None for the main program.
    """

    simulated = True
    phases: Phases

    def __init__(self, world: World, endpoint: Endpoint, key: str | None = None):
        self.rank = endpoint.rank
        self.size = world.size
        self.num_servers = world.num_servers
        self.losses = world.losses
        self.meter = endpoint.meter
        self.resume: Callable[[Any], None] = _not_running
        self.waiting: Waiter | None = None
        self._world = world
        self.endpoint = endpoint
        self._key = key
        own = endpoint.meter.phases if key is None else Phases()
        self.phases = own  # pyright: ignore[reportIncompatibleVariableOverride]
        self._debts: list[tuple[str, Work]] = []
        self._debt = _NOTHING
        self._owed: dict[str, float] = {}
        self.meetings = world.meetings.setdefault(key, {})

    @property
    def step(self) -> int:
        """Where the program is; setting it lets planned crashes happen."""
        return self.endpoint.step

    @step.setter
    def step(self, value: int) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        if self._world.faults is not None and self._key is None:
            self.settle()
            self.endpoint.step = value
            self._world.faults.on_step(self.rank, value)
        else:
            self.endpoint.step = value

    def now(self) -> float:
        """See `Comm`: virtual seconds."""
        if self._debts:
            self.settle()
        return self._world.clock.now / NS

    def post(
        self, dst: int, packet: Packet, tag: Tag = 0, *, after: Posted | None = None
    ) -> Posted:
        """See `Comm`."""
        if not 0 <= dst < len(self._world.endpoints) or dst == self.rank:
            last = len(self._world.endpoints) - 1
            raise InputError(f"rank {self.rank}: post to {dst}; valid: 0..{last}, not itself")
        if self._debts:
            self.settle()
        return self.post_tagged(dst, packet, tag if self._key is None else (self._key, tag), after)

    def post_tagged(self, dst: int, packet: Packet, tag: Any, after: Posted | None) -> Message:
        """As `post`, with the whole tag, and nothing left to check."""
        world, endpoint = self._world, self.endpoint
        nbytes = packet.nbytes if world.charge_headers else packet.payload_nbytes
        message = Message(endpoint, world.endpoints[dst], packet, nbytes, tag)
        held = endpoint.held
        if after is None and not held:
            world.transmit(message)
        elif dst in held:
            self._hold(message, held[dst], after)
        elif after is None or self._has_left(after):
            world.transmit(message)
        else:
            self._hold(message, after, None)
        return message

    def _has_left(self, posted: Posted) -> bool:
        left_at = posted.left_at if isinstance(posted, Message) else None
        return posted.left or (left_at is not None and left_at <= self._world.clock.now)

    def _hold(self, message: Message, first: Posted, second: Posted | None) -> None:
        """Transmit when `first`, then `second`, have left; meanwhile nothing may overtake it on
        its way to the same endpoint."""
        world, endpoint, dst = self._world, self.endpoint, message.dst.rank
        endpoint.in_flight += 1  # a program may end while its packets wait their turn
        endpoint.held[dst] = message

        def go() -> None:
            if endpoint.held.get(dst) is message:
                del endpoint.held[dst]
            world.transmit_held(message)

        self._when_left(first, go if second is None else lambda: self._when_left(second, go))

    def _when_left(self, posted: Posted, action: Callable[[], None]) -> None:
        left_at = posted.left_at if isinstance(posted, Message) else None
        if self._has_left(posted):
            action()
        elif left_at is None:
            posted.then(action)
        else:
            self._world.clock.at(left_at, action)

    def wait(self, src: int = ANY, tag: Tag = 0, deadline: float | None = None) -> Arrival:
        """See `Comm`; without a deadline a wait can only end in a message or a deadlock report."""
        if self.in_hook or inside_backward():
            refuse_in_backward(f"rank {self.rank}: wait({src}, {tag!r})", self.in_hook)
        if self._debts:
            self.settle()
        world, endpoint = self._world, self.endpoint
        whole_tag: Any = tag if self._key is None else (self._key, tag)
        if world.anyone_gone:
            world.check_losses(self.rank)
        arrival = endpoint.take(src, whole_tag)
        if arrival is None and world.anyone_gone:
            arrival = self._departure(src, tag)
        if arrival is not None:
            return arrival
        if whole_tag in endpoint.waiters:
            raise InputError(f"rank {self.rank}: two programs wait for tag {tag!r} at once")
        clock = world.clock
        began = clock.now
        waiter = Waiter(self, src, whole_tag, self.resume)
        endpoint.waiters[whole_tag] = self.waiting = waiter
        if deadline is not None:
            clock.at(began + to_ns(deadline), self._expire, waiter, deadline)
        arrival = pause()
        self.waiting = None
        now = clock.now
        sender = arrival.src if arrival.__class__ is Arrival else src
        self.meter.peers[sender].waited += (now - began) / NS
        self.phases.spent["wait"] += now - began
        if world.spans is not None:
            world.spans.append((self.rank, "wait", began, now, sender, 0))
        if isinstance(arrival, ThinwireError):
            raise arrival
        return arrival

    def play(self, moves: Sequence[Move], tag: Tag) -> None:
        """See `Comm`; the program is not woken between the moves."""
        if self.in_hook or inside_backward():
            refuse_in_backward(f"rank {self.rank}: a collective ({tag!r})", self.in_hook)
        if self._debts:
            self.settle()
        world = self._world
        if world.faults is not None or world.anyone_gone:
            super().play(moves, tag)
            return
        whole_tag: Any = tag if self._key is None else (self._key, tag)
        if whole_tag in self.endpoint.waiters:
            raise InputError(f"rank {self.rank}: two programs wait for tag {tag!r} at once")
        Player(world, self, moves, whole_tag).run()

    def _departure(self, src: int, tag: Tag) -> Arrival | None:
        """What a wait for the gone gets: a departure, an error, or None while some may come."""
        world, endpoint = self._world, self.endpoint
        if src != ANY:
            gone = world.departed(src)
            if not gone:
                return None
            if self.losses == "elastic":
                return Arrival(src, tag, None, self.now())
        else:
            if self.losses == "elastic" and endpoint.departures:
                return Arrival(endpoint.departures.popleft(), tag, None, self.now())
            others = [e for e in world.endpoints if e.rank != self.rank]
            if not others or not all(world.departed(e.rank) for e in others):
                return None
        raise self.finished_error(src, tag)

    def finished_error(self, src: int, tag: Tag) -> PeerFinishedError:
        """The error for a wait that can never end."""
        who = "every other endpoint" if src == ANY else self._world.name(src)
        return PeerFinishedError(
            f"{self._world.name(self.rank)} waits for {who} (tag {tag!r}, step {self.step}), "
            f"which has finished and will never send it"
        )

    def _expire(self, waiter: Waiter, deadline: float) -> None:
        if self.endpoint.waiters.get(waiter.tag) is not waiter:
            return
        del self.endpoint.waiters[waiter.tag]
        awaited = "anyone" if waiter.src == ANY else self._world.name(waiter.src)
        waiter.resume(
            DeadlineError(
                f"{self._world.name(self.rank)} waited {deadline:g} s for {awaited} "
                f"(tag {waiter.tag!r}, step {self.step}): the deadline has passed"
            )
        )

    def spend(self, work: Work) -> None:
        """See `Comm`: virtual time passes while the node does `work`.

        Nobody can see how far this program has come before it does something visible, so the time
        passes then, in one piece: at the next post, wait, start, look at the clock, or end.
        """
        debts = self._debts
        if len(debts) >= _MAX_DEBTS:
            self._add_up()
        if work.kind:
            work = at_memory_rate(work, self._world.processors[self.endpoint.node].node)
        debts.append((self.phases.current, work))

    def _add_up(self) -> None:
        """All that was spent, one after the other, into one work and each phase's seconds of it."""
        debt, owed, first = self._debt, self._owed, self._debts[0][0]
        mixed = bool(owed) or len(self._debts) >= _MAX_DEBTS
        flops, memory_bytes, elapsed = debt.flops, debt.memory_bytes, debt.elapsed
        for phase, work in self._debts:
            flops += work.flops
            memory_bytes += work.memory_bytes
            elapsed += work.elapsed
            if phase is not first:
                mixed = True
        if mixed:
            self._price()
        else:
            owed[first] = 1.0  # all of it, however much that is
        self._debt = Work(flops, memory_bytes, elapsed)
        self._debts.clear()

    def _price(self) -> None:
        owed = self._owed
        per_flop, per_byte, per_second = self._world.processors[self.endpoint.node].prices
        for phase, work in self._debts:
            seconds = work.flops * per_flop + work.memory_bytes * per_byte
            owed[phase] = owed.get(phase, 0.0) + seconds + work.elapsed * per_second

    def settle(self) -> None:
        """Let the time of all that was spent pass now; inside a backward pass it has to wait."""
        debts = self._debts
        if not debts or inside_backward():
            return
        if len(debts) == 1 and not self._owed:
            phase, work = debts.pop()
            owed = {phase: 1.0}
        else:
            self._add_up()
            work, self._debt = self._debt, _NOTHING
            owed, self._owed = self._owed, {}
        world = self._world
        began = world.clock.now
        world.processors[self.endpoint.node].submit(work, self.resume)
        pause()
        elapsed = world.clock.now - began
        self.meter.computed += elapsed / NS
        self.phases.share_out(elapsed, owed)
        if world.spans is not None and elapsed:
            world.spans.append((self.rank, "compute", began, world.clock.now, -1, 0))

    def start(self, program: Callable[[Comm], Any], key: str) -> Task:
        """See `Comm`."""
        self.settle()
        whole_key = key if self._key is None else f"{self._key}/{key}"
        return VirtualTask(self._world, self.endpoint, program, whole_key)


def _not_running(_: Any) -> None:
    raise AssertionError("a comm was used outside its program")


class VirtualTask(Task):
    """A started program: another fibre on the same endpoint, its tags under `key`."""

    def __init__(self, world: World, endpoint: Endpoint, program: Callable[[Comm], Any], key: str):
        if key in world.task_keys[endpoint.rank]:
            raise InputError(f"rank {endpoint.rank}: a task {key!r} is still running")
        self._world = world
        self._key = key
        self._rank = endpoint.rank
        self._done = False
        self._result: Any = None
        self._error: BaseException | None = None
        self._joiners: list[Callable[[Any], None]] = []
        world.task_keys[endpoint.rank][key] = None
        comm = VirtualComm(world, endpoint, key)
        world.launch(comm, lambda: self._run(program, comm))

    @property
    def done(self) -> bool:
        """See `Task`."""
        asking = self._world.running()
        if asking is not None:
            asking.settle()
        return self._done

    def _run(self, program: Callable[[Comm], Any], comm: VirtualComm) -> None:
        try:
            with torch.no_grad():
                self._result = program(comm)
            comm.settle()
        except Exception as error:
            self._error = error
        finally:
            self._done = True
            self._world.task_keys[self._rank].pop(self._key, None)
        clock = self._world.clock
        for join in self._joiners:
            clock.at(clock.now, join, None)
        if self._error is not None and not self._joiners:
            # Nobody may ever ask for the result: a failure must not go unseen.
            raise self._error

    def wait(self, deadline: float | None = None) -> Any:
        """See `Task`; joining is a wait and counts as one."""
        comm = self._world.running()
        assert comm is not None, "a task was waited for outside its program"
        refuse_in_backward(f"rank {self._rank}: waiting for task {self._key!r}", comm.in_hook)
        comm.settle()
        if not self._done:
            self._join(comm, deadline)
        if self._error is not None:
            raise self._error
        return self._result

    def _join(self, comm: VirtualComm, deadline: float | None) -> None:
        world = self._world
        join = comm.resume
        self._joiners.append(join)
        if deadline is not None:
            world.clock.at(world.clock.now + to_ns(deadline), self._expire, join, deadline)
        began = world.clock.now
        comm.waiting = Waiter(comm, ANY, f"the end of task {self._key}", join)
        outcome = pause()
        comm.waiting = None
        comm.meter.peer(ANY).waited += (world.clock.now - began) / NS
        comm.phases.spent["wait"] += world.clock.now - began
        if isinstance(outcome, ThinwireError):
            raise outcome

    def _expire(self, join: Callable[[Any], None], deadline: float) -> None:
        if join in self._joiners and not self._done:
            self._joiners.remove(join)
            join(
                DeadlineError(
                    f"rank {self._rank} waited {deadline:g} s for its task {self._key!r}: "
                    "the deadline has passed"
                )
            )
