"""The examination, step by step: who is here, what each says, every pair, a training step.

Rank 0 leads: it says when each pair measures, takes the results, and goes on without who is silent.
The others follow and say nothing. Every step has a deadline.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from thinwire.errors import InputError, RendezvousError
from thinwire.run.doctor.between import group_findings
from thinwire.run.doctor.board import TELL, Board, Watchdog, open_board
from thinwire.run.doctor.local import gather_facts, in_time
from thinwire.run.doctor.machines import machine_findings
from thinwire.run.doctor.pairs import (
    Card,
    PairLimits,
    answer,
    measure,
    open_listener,
    rounds,
)
from thinwire.run.doctor.report import Examination, Facts, Finding, Pair, StepTime
from thinwire.run.doctor.steps import Bench, load_bench, time_steps
from thinwire.wire._address import is_loopback
from thinwire.wire.rendezvous import Place, place_from_environment

__all__ = ["Request", "examine"]

_ORDER = ("fix", "look", "note")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to examine.

    Args:
        task: whose training step is timed.
        model: `module:function` instead of a task.
        data: where the task's data are.
        batch: samples of a step.
        interface: name or address; None is the one that leads to the master.
        deadline: seconds for which absent ranks are waited for.
        seconds: for timing steps.
        step_limit: seconds after which a model is given up.
        pairs: limits of a pair.
        slack: seconds beyond a limit, for machines that are slow to notice.
    """

    task: str = "digits"
    model: str = ""
    data: str | None = None
    batch: int = 32
    interface: str | None = None
    deadline: float = 60.0
    seconds: float = 2.0
    step_limit: float = 90.0
    pairs: PairLimits = field(default_factory=PairLimits)
    slack: float = 5.0


def examine(request: Request, say: Callable[[str], None] | None = None) -> Examination | None:
    """Examine this machine or, in a group of processes, all of them.

    Args:
        request: what to look at.
        say: told about progress; by default a line on stderr.

    Returns:
        The result, on rank 0 or alone; None on the other ranks.

    Raises:
        InputError: the task or model cannot be had on any rank.
        RendezvousError: this rank, not 0, does not find the others or was lost by them.
    """
    say = say or _to_stderr
    place = place_from_environment()
    bench, problem = _bench(request)
    if place is None or place.size == 1:
        if problem:
            raise InputError(problem)
        facts = gather_facts(place, request.interface)
        steps = {0: _timed(bench, facts, request)}
        return _judged(Examination(ranks=[facts], steps=steps))
    silent = f"rank {place.rank}: the meeting point has fallen silent; given up"
    with Watchdog(_longest(request, place.size), lambda: _to_stderr(silent)) as watchdog:
        try:
            board = open_board(place, request.deadline, watchdog)
        except RendezvousError as error:
            if place.rank:
                raise
            facts = msgspec.structs.replace(
                gather_facts(place, request.interface), model_problem=problem
            )
            alone = Examination(size=place.size, ranks=[facts], absent=_others(place.size))
            return _judged(alone, _no_meeting(error))
        return _Group(request, place, board, bench, problem, say).run()


def _to_stderr(text: str) -> None:
    print(f"doctor: {text}", file=sys.stderr, flush=True)


def _others(size: int) -> list[int]:
    return list(range(1, size))


def _no_meeting(error: RendezvousError) -> Finding:
    return Finding(
        level="fix",
        topic="meeting",
        what=str(error),
        why="the processes of a run find each other there",
        todo="see the text above; then run the doctor again",
    )


def _bench(request: Request) -> tuple[Bench | None, str]:
    """What to time, or why there is nothing."""
    try:
        args = (request.task, request.model, request.data, request.batch)
        return in_time(lambda: load_bench(*args), request.step_limit), ""
    except (InputError, TimeoutError) as error:
        return None, str(error)


def _timed(bench: Bench | None, facts: Facts, request: Request) -> StepTime:
    if bench is None:
        return StepTime(what=request.model or request.task, problem=facts.model_problem)
    try:
        return in_time(lambda: time_steps(bench, request.seconds), request.step_limit)
    except TimeoutError as error:
        return StepTime(what=bench.what, problem=str(error))


def _judged(examination: Examination, *more: Finding) -> Examination:
    found = [*more, *group_findings(examination), *machine_findings(examination)]
    merged: dict[Finding, tuple[str, ...]] = {}
    for finding in found:  # what several machines have in common is said once
        common = msgspec.structs.replace(finding, where=())
        merged[common] = merged.get(common, ()) + finding.where
    every = [msgspec.structs.replace(common, where=where) for common, where in merged.items()]
    examination.findings = sorted(every, key=lambda finding: _ORDER.index(finding.level))
    return examination


def _longest(request: Request, size: int) -> float:
    """Seconds that the whole can take if everything goes wrong that has a deadline."""
    num_rounds = len(rounds(range(size)))
    return 3 * request.deadline + num_rounds * _round_limit(request) + 3 * request.step_limit + 60.0


def _round_limit(request: Request) -> float:
    return request.pairs.connect + request.pairs.pair + request.slack


class _Group:
    """One rank's part."""

    def __init__(
        self,
        request: Request,
        place: Place,
        board: Board,
        bench: Bench | None,
        problem: str,
        say: Callable[[str], None],
    ):
        self._request = request
        self._place = place
        self._board = board
        self._bench = bench
        self._problem = problem
        self._say = say

    def run(self) -> Examination | None:
        place, board = self._place, self._board
        if not board.claim(f"claim/{place.rank}"):
            raise RendezvousError(
                f"another process has already come as rank {place.rank}; does another run use "
                f"MASTER_PORT = {place.port}?"
            )
        facts = gather_facts(place, self._request.interface)
        facts = msgspec.structs.replace(facts, model_problem=self._problem)
        with contextlib.ExitStack() as stack:
            listener = open_listener(facts.interface.address)
            if listener is not None:
                stack.enter_context(listener)
            port = listener.getsockname()[1] if listener else 0
            card = Card(facts=facts, port=port, token=os.urandom(16))
            board.set(f"card/{place.rank}", msgspec.json.encode(card))
            if place.rank:
                self._follow(card, listener)
                return None
            return self._lead(card, listener)

    # Rank 0.

    def _lead(self, own: Card, listener: socket.socket | None) -> Examination:
        until = time.monotonic() + self._request.deadline
        cards = self._board.cards(Card, own, self._place.size, until, self._say)
        problems = dict.fromkeys(card.facts.model_problem for card in cards.values())
        if len(problems) == 1 and self._problem:
            self._dismiss(cards)
            raise InputError(self._problem)
        self._board.set("present", msgspec.json.encode(cards))
        plan = rounds(list(cards))
        measured = [
            pair for k in range(len(plan)) for pair in self._lead_round(k, plan[k], cards, listener)
        ]
        return _judged(
            Examination(
                size=self._place.size,
                ranks=[card.facts for card in cards.values()],
                absent=[rank for rank in range(self._place.size) if rank not in cards],
                pairs=measured,
                at_once=any(len(pairs) > 1 for pairs in plan),
                steps=self._lead_steps(cards),
            )
        )

    def _dismiss(self, cards: Mapping[int, Card]) -> None:
        """Send the others home, and stay until they have heard it: this may be their store."""
        self._board.set("present", b"{}")
        until = time.monotonic() + TELL
        for rank in cards:
            if rank:
                self._board.wait(f"home/{rank}", until)

    def _lead_round(
        self,
        k: int,
        pairs: list[tuple[int, int]],
        cards: Mapping[int, Card],
        listener: socket.socket | None,
    ) -> list[Pair]:
        pairs = [pair for pair in pairs if _can_meet(*(cards[rank].facts for rank in pair))]
        until = time.monotonic() + _round_limit(self._request)
        if pairs:
            self._say(f"measuring {', '.join(f'{low}-{high}' for low, high in pairs)}")
        self._board.set(f"go/{k}", b"1")
        for low, high in pairs:
            if low == 0:
                self._answer(k, high, cards[0], listener)
        return [self._result(k, low, high, until) for low, high in pairs]

    def _result(self, k: int, low: int, high: int, until: float) -> Pair:
        """The dialler's result, for it measures; the other's where the dialler is silent.

        Both are awaited: whoever still waits for this call would turn the next one away.
        """
        notes: dict[int, bytes] = {}
        while len(notes) < 2 and time.monotonic() < until:
            for rank in (high, low):
                note = self._board.get(f"pair/{k}/{low}-{high}/{rank}")
                if note is not None and rank not in notes:
                    notes[rank] = note
                    until = min(
                        until, time.monotonic() + self._request.pairs.connect + self._request.slack
                    )
            time.sleep(0.02)
        if note := notes.get(high) or notes.get(low):
            return msgspec.json.decode(note, type=Pair)
        return Pair(
            low=low, high=high, problem=f"rank {high} came, but fell silent: is it still running?"
        )

    def _lead_steps(self, cards: Mapping[int, Card]) -> dict[int, StepTime]:
        self._say("timing training steps, on all ranks at once")
        self._board.set("go/steps", b"1")
        until = time.monotonic() + self._request.step_limit + self._request.slack
        steps = {0: _timed(self._bench, cards[0].facts, self._request)}
        for rank in cards:
            note = self._board.wait(f"step/{rank}", until) if rank else None
            if note is not None:
                steps[rank] = msgspec.json.decode(note, type=StepTime)
        return steps

    # The others.

    def _follow(self, own: Card, listener: socket.socket | None) -> None:
        rank, request = self._place.rank, self._request
        cards = self._cards()
        if not cards:
            self._board.set(f"home/{rank}", b"1")
            return
        if rank not in cards:
            raise RendezvousError(f"rank {rank} came later than rank 0 waited (--deadline)")
        until = time.monotonic()
        for k, pairs in enumerate(rounds(list(cards))):
            until += _round_limit(request)
            pairs = [p for p in pairs if rank in p]
            if not pairs or not _can_meet(*(cards[r].facts for r in pairs[0])):
                continue
            if self._board.wait(f"go/{k}", until) is None:
                raise RendezvousError(f"rank {rank}: rank 0 has fallen silent")
            low, high = pairs[0]
            if low == rank:
                self._answer(k, high, own, listener)
            else:
                address = own.facts.interface.address
                pair = measure(cards[low].target(), rank, address, request.pairs)
                self._board.set(f"pair/{k}/{low}-{high}/{high}", msgspec.json.encode(pair))
        if self._board.wait("go/steps", until + _round_limit(request)) is None:
            raise RendezvousError(f"rank {rank}: rank 0 has fallen silent")
        step = _timed(self._bench, own.facts, request)
        self._board.set(f"step/{rank}", msgspec.json.encode(step))

    def _cards(self) -> dict[int, Card]:
        until = time.monotonic() + 2 * self._request.deadline + self._request.slack
        note = self._board.wait("present", until)
        if note is None:
            raise RendezvousError(f"rank {self._place.rank}: rank 0 did not come")
        return msgspec.json.decode(note, type=dict[int, Card])

    def _answer(self, k: int, high: int, own: Card, listener: socket.socket | None) -> None:
        assert listener is not None
        low = own.facts.rank
        pair = answer(listener, own.token, low, high, self._request.pairs)
        self._board.set(f"pair/{k}/{low}-{high}/{low}", msgspec.json.encode(pair))


def _can_meet(one: Facts, other: Facts) -> bool:
    """Whether there is an address to dial; where not, the interface's own finding says so."""
    addresses = [one.interface.address, other.interface.address]
    if not all(addresses):
        return False
    return one.host == other.host or not any(map(is_loopback, addresses))
