"""The time line of one training step under a plan: who computes, waits and sends when.

A step is taken from one beginning of backward to the next. By then every message of the step has
arrived, since the forward pass between them waits for each, and the channel stands idle: the next
step is the same again, and one is all that has to be simulated.

Time advances from event to event. Between two events nothing changes: a part of the forward pass is
under way or waits, and each stage of the path works on its first message, at `Cost.beside` of its
speed while the device computes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Literal, TypeAlias

from thinwire.errors import InputError
from thinwire.schedule.costs import Cost
from thinwire.schedule.plan import Load, Message, Plan

__all__ = ["Interval", "Timeline", "What", "simulate"]

What: TypeAlias = Literal["backward", "forward", "wait", "send"]


@dataclass(frozen=True, kw_only=True)
class Interval:
    """What went on from one moment to another.

    Args:
        what: the device in backward or forward, or waiting; or a message on a stage of the path.
        start: seconds from the beginning of backward.
        end: likewise.
        stage: of the path, for a message; -1 for the device.
        tensors: of the message, or of the layer that computes or waits; none for backward.
        nbytes: of the message.
    """

    what: What
    start: float
    end: float
    stage: int = -1
    tensors: tuple[int, ...] = ()
    nbytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """One step of many equal ones.

    Args:
        step: seconds from one beginning of backward to the next.
        computing: seconds of it in which the device computes.
        arrived: when the last message had arrived.
        intervals: the device's in order, then those of each stage.
    """

    step: float
    computing: float
    arrived: float
    intervals: tuple[Interval, ...]

    @property
    def exposed(self) -> float:
        """Seconds of a step in which the device waits for messages."""
        return self.step - self.computing

    @property
    def sending(self) -> float:
        """Seconds in which any stage is busy, on the busiest stage."""
        busy: dict[int, float] = {}
        for interval in self.intervals:
            if interval.what == "send":
                busy[interval.stage] = busy.get(interval.stage, 0.0) + interval.end - interval.start
        return max(busy.values(), default=0.0)


def simulate(load: Load, plan: Plan, path: Sequence[Cost]) -> Timeline:
    """One step of a worker among equal ones.

    Args:
        load: what it computes.
        plan: what it sends.
        path: the stages that each message passes one after the other, first come first served, each
            stage a channel of its own: one for an all-reduce; push and pull, or the bus before
            them, for parameter servers. At least one.

    Raises:
        InputError: a path without stages, or a plan that isn't of this load.

    >>> from thinwire.schedule import Cost, Load, fused, per_tensor
    >>> load = Load(order=(1, 0), ready=(1.0, 2.0), nbytes=(10, 10), backward=2.0,
    ...             forward=((0, 0.5), (1, 0.5)))
    >>> simulate(load, fused(load, per_tensor(load.order)), [Cost(per_byte=0.2)]).step
    6.0
    """
    if not path:
        raise InputError("path is empty; a message passes one stage or more")
    for message in plan.messages:
        if not 0 <= message.needed < max(1, len(load.forward)):
            raise InputError(f"a message is needed at {message.needed}; the load has no such layer")
    run = _start(load, plan, path)
    while run.advance():
        pass
    return Timeline(
        step=run.now,
        computing=load.computing,
        arrived=run.arrived,
        intervals=(*run.device.done, *sorted(run.sent, key=lambda i: (i.stage, i.start))),
    )


@dataclass
class _Stage:
    """A channel: its first message is under way."""

    cost: Cost
    waiting: deque[Message] = field(default_factory=deque)
    left: float = 0.0
    begun: float = 0.0

    def put(self, message: Message, now: float) -> None:
        self.waiting.append(message)
        if len(self.waiting) == 1:
            self._begin(now)

    def take(self, now: float) -> Message:
        """The message that is done; the next one begins."""
        message = self.waiting.popleft()
        if self.waiting:
            self._begin(now)
        return message

    def _begin(self, now: float) -> None:
        self.left, self.begun = self.cost(self.waiting[0].nbytes), now


@dataclass
class _Device:
    """What computes: backward, then the forward pass layer by layer."""

    forward: tuple[tuple[int, float], ...]
    until: float
    layer: int = -1  # of the forward pass; -1 is backward
    since: float = 0.0
    done: list[Interval] = field(default_factory=list)

    def go_on(self, now: float, missing: Sequence[int]) -> bool:
        """End what is over, begin what can begin; False after the last layer.

        Args:
            now: seconds.
            missing: messages that have not arrived, by the layer that waits for them.
        """
        while True:
            if self.until <= now:
                self._note("backward" if self.layer < 0 else "forward", now)
                self.layer, self.until = self.layer + 1, math.inf
            if self.until < math.inf:
                return True
            if self.layer >= max(1, len(self.forward)):
                return False
            if missing[self.layer]:
                return True
            self._note("wait", now)
            seconds = self.forward[self.layer][1] if self.forward else 0.0
            self.until = now + seconds

    def _note(self, what: What, now: float) -> None:
        if now > self.since:
            layer = self.forward[self.layer : self.layer + 1] if self.layer >= 0 else ()
            tensors = tuple(tensor for tensor, _ in layer)
            self.done.append(Interval(what=what, start=self.since, end=now, tensors=tensors))
        self.since = now


@dataclass
class _Run:
    """The state between two events."""

    credit: float
    device: _Device
    stages: list[_Stage]
    coming: deque[Message]
    missing: list[int]
    ready: list[tuple[int, int, Message]] = field(default_factory=list)
    flying: list[tuple[float, int, Message]] = field(default_factory=list)
    sent: list[Interval] = field(default_factory=list)
    now: float = 0.0
    under_way: int = 0
    serial: int = 0
    arrived: float = 0.0

    def advance(self) -> bool:
        """To the next event; False when the forward pass is over."""
        speeds = [s.cost.beside if self.device.until < math.inf else 1.0 for s in self.stages]
        ends = [
            self.now + stage.left / speed if stage.waiting else math.inf
            for stage, speed in zip(self.stages, speeds, strict=True)
        ]
        landing = min((at for at, _, _ in self.flying), default=math.inf)
        coming = self.coming[0].ready if self.coming else math.inf
        then = min(self.device.until, landing, coming, *ends)
        assert then < math.inf, "messages are missing and none is under way"
        for stage, speed in zip(self.stages, speeds, strict=True):
            stage.left = max(0.0, stage.left - (then - self.now) * speed)
        self.now = then
        # The computed end decides what is over, not what rounding leaves of a message.
        self._pass_on([index for index, end in enumerate(ends) if end == then])
        self._land()
        while self.coming and self.coming[0].ready <= then:
            message = self.coming.popleft()
            heappush(self.ready, (message.priority, self.serial, message))
            self.serial += 1
        self._submit()
        return self.device.go_on(then, self.missing)

    def _pass_on(self, over: Sequence[int]) -> None:
        for index in over:
            stage = self.stages[index]
            begun, message = stage.begun, stage.take(self.now)
            self.sent.append(
                Interval(what="send", start=begun, end=self.now, stage=index,
                         tensors=message.tensors, nbytes=message.nbytes)
            )  # fmt: skip
            self.flying.append((self.now + stage.cost.latency, index + 1, message))

    def _land(self) -> None:
        """What has arrived goes on to the next stage, or is there."""
        landed = [item for item in self.flying if item[0] <= self.now]
        self.flying = [item for item in self.flying if item[0] > self.now]
        for _, stage, message in landed:
            if stage < len(self.stages):
                self.stages[stage].put(message, self.now)
            else:
                self.under_way -= message.nbytes
                self.missing[message.needed] -= 1
                self.arrived = self.now

    def _submit(self) -> None:
        """Hand the most urgent messages to the path, as many as the credit allows."""
        while self.ready:
            message = self.ready[0][2]
            if self.under_way and self.under_way + message.nbytes > self.credit:
                return
            heappop(self.ready)
            self.under_way += message.nbytes
            self.stages[0].put(message, self.now)


def _start(load: Load, plan: Plan, path: Sequence[Cost]) -> _Run:
    missing = [0] * max(1, len(load.forward))
    for message in plan.messages:
        missing[message.needed] += 1
    return _Run(
        credit=math.inf if plan.credit is None else plan.credit,
        device=_Device(forward=load.forward, until=load.backward),
        stages=[_Stage(cost) for cost in path],
        coming=deque(sorted(plan.messages, key=lambda m: m.ready)),
        missing=missing,
    )
