"""The survey, step by step: who is here, what each computes, every pair alone, all at once.

Rank 0 leads and keeps what came out; the others carry out its orders and say nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from datetime import datetime

import msgspec
import torch

from thinwire.errors import InputError, RendezvousError, ThinwireError
from thinwire.run.doctor.board import Board, Watchdog, open_board
from thinwire.run.doctor.local import gather_facts, in_time
from thinwire.run.doctor.pairs import Card, open_listener, rounds
from thinwire.run.doctor.report import Facts
from thinwire.run.probe.compute import Subject, load_subject, time_steps
from thinwire.run.probe.crew import Crew, Order, follow
from thinwire.run.probe.crowd import FROM, Gathering, gather, talk
from thinwire.run.probe.kernels import measure_kernels, measure_memory
from thinwire.run.probe.report import Computing, Crowd, Survey, Wire
from thinwire.run.probe.streams import ramp_of
from thinwire.run.probe.wires import WireLimits, answer, measure
from thinwire.wire._address import is_loopback
from thinwire.wire.rendezvous import Place, place_from_environment

__all__ = ["Request", "Watcher", "survey"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to measure.

    Args:
        model: a name that `thinwire model` knows, or `module:function`.
        batch: samples of a training step.
        threads: of torch; 0 shares the machine's cores among its processes, as a run does.
        interface: name or address; None is the one that leads to the master.
        deadline: seconds for which absent ranks are waited for.
        compute: seconds for the model's steps.
        kernels: seconds for memory and codecs.
        compute_limit: seconds after which a rank that still computes is given up.
        wire: limits of a pair.
        crowd: seconds for which all talk at once.
        slack: seconds beyond a limit, for machines that are slow to notice.
        refusal: why rank 0 cannot keep what comes out; the others are then sent home at once.
    """

    model: str = "resnet20"
    batch: int = 32
    threads: int = 0
    interface: str | None = None
    deadline: float = 60.0
    compute: float = 8.0
    kernels: float = 4.0
    compute_limit: float = 240.0
    wire: WireLimits = field(default_factory=WireLimits)
    crowd: float = 3.0
    slack: float = 5.0
    refusal: str = ""

    @property
    def pair_limit(self) -> float:
        """Seconds for a pair, with slack."""
        return self.wire.pair + self.slack


class Watcher(ABC):
    """Whoever wants to know how far a survey is, and what there is by now."""

    @abstractmethod
    def say(self, text: str, done: int, total: int) -> None:
        """What is measured now, and how many parts of all are done."""

    @abstractmethod
    def keep(self, found: Survey) -> None:
        """The survey so far, after every part."""


def survey(request: Request, watcher: Watcher) -> Survey | None:
    """Measure this machine or, in a group of processes, all of them.

    Args:
        request: what to measure.
        watcher: told by rank 0 as it goes on; `keep` is called at the end, too, and when it is
            interrupted.

    Returns:
        The result, on rank 0 or alone; None on the other ranks.

    Raises:
        InputError: the model cannot be had on any rank, or the result cannot be kept.
        RendezvousError: the ranks do not find each other, or rank 0 was lost.
        KeyboardInterrupt: after what was measured has been kept.
    """
    place = place_from_environment()
    if place is None or place.size == 1:
        return _alone(request, place, watcher)
    silent = f"probe: rank {place.rank}: the meeting point has fallen silent; given up"
    with Watchdog(_longest(request, place.size), lambda: print(silent, flush=True)) as watchdog:
        board = open_board(place, request.deadline, watchdog)
        with _Member(request, place, board, watcher) as member:
            return member.lead() if place.rank == 0 else member.follow()


def _longest(request: Request, size: int) -> float:
    """Seconds that the whole can take if everything goes wrong that has a deadline."""
    pairs = len(rounds(range(size))) * request.pair_limit
    return 3 * request.deadline + pairs + request.compute_limit + 10 * request.crowd + 120.0


def _now() -> str:
    return datetime.now().astimezone().isoformat(sep=" ", timespec="minutes")


def _alone(request: Request, place: Place | None, watcher: Watcher) -> Survey:
    if request.refusal:
        raise InputError(request.refusal)
    subject = load_subject(request.model, request.batch)
    found = Survey(ranks=[gather_facts(place, request.interface)], began=_now())
    watcher.say(f"{request.model}: computing and memory", 0, 1)
    try:
        found.computing[0] = compute(request, subject, "", 1)
        found.finished = True
    finally:
        watcher.keep(found)
    return found


def compute(request: Request, subject: Subject | None, problem: str, share: int) -> Computing:
    """What this process computes; what goes wrong is in the result.

    Args:
        request: how long, with how many threads.
        subject: the model; None says that it could not be had, and `problem` why.
        problem: see `subject`.
        share: processes of this machine, where the number of threads isn't given.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(request.threads or max(1, len(os.sched_getaffinity(0)) // share))
    found = Computing(model=request.model, batch=request.batch, problem=problem)
    try:
        if subject is not None:
            found = in_time(lambda: time_steps(subject, request.compute), request.compute_limit / 2)
        numel = found.num_params or 1 << 20
        memory = measure_memory(request.kernels / 4)
        kernels = measure_kernels(numel, request.kernels * 3 / 4)
        return msgspec.structs.replace(found, memory=memory, kernels=kernels)
    except Exception as error:  # a model of the user's own may raise anything
        text = str(error) if isinstance(error, ThinwireError | TimeoutError) else repr(error)
        return msgspec.structs.replace(found, problem=f"computing: {text}")
    finally:
        torch.set_num_threads(before)


class _Card(Card, kw_only=True):
    """What a rank tells rank 0 first; `problem` keeps it from computing."""

    problem: str


class _Member:
    """One rank's part."""

    def __init__(self, request: Request, place: Place, board: Board, watcher: Watcher):
        self._request = request
        self._place = place
        self._board = board
        self._watcher = watcher
        self._subject: Subject | None = None
        self._gathering = Gathering()
        self._listener: socket.socket | None = None
        self._done = self._total = 0

    def __enter__(self) -> _Member:
        rank, request = self._place.rank, self._request
        if not self._board.claim(f"claim/{rank}"):
            raise RendezvousError(
                f"another process has already come as rank {rank}; does another run use "
                f"MASTER_PORT = {self._place.port}?"
            )
        problem = ""
        try:
            self._subject = load_subject(request.model, request.batch)
        except InputError as error:
            problem = str(error)
        facts = gather_facts(self._place, request.interface)
        self._listener = open_listener(facts.interface.address)
        port = self._listener.getsockname()[1] if self._listener else 0
        self._card = _Card(facts=facts, port=port, token=os.urandom(16), problem=problem)
        self._board.set(f"card/{rank}", msgspec.json.encode(self._card))
        return self

    def __exit__(self, *_: object) -> None:
        self._gathering.__exit__()
        if self._listener is not None:
            self._listener.close()

    def follow(self) -> None:
        """Carry out rank 0's orders."""
        longest = max(self._request.compute_limit, self._request.pair_limit)
        patience = 2 * self._request.deadline + longest + 2 * self._request.slack
        follow(self._board, self._place.rank, self._act, patience)

    def _act(self, order: Order) -> bytes:
        """Carry out one order; what the network does is in the result."""
        facts, limits = self._card.facts, self._request.wire
        address, listener, token = facts.interface.address, self._listener, self._card.token
        if order.do == "compute":
            share = int(order.seconds)
            return msgspec.json.encode(
                compute(self._request, self._subject, self._card.problem, share)
            )
        if order.do == "measure":
            assert order.target is not None
            return msgspec.json.encode(measure(order.target, facts.rank, address, limits))
        if order.do == "answer":
            assert listener is not None
            return msgspec.json.encode(answer(listener, token, facts.rank, order.peer, limits))
        if order.do == "gather":
            self._gathering = gather(
                listener, token, facts.rank, address, order.lower, order.higher, limits.connect
            )
            return b"0"
        received = talk(self._gathering, order.seconds)
        self._gathering.__exit__()
        problems = self._gathering.problems
        return msgspec.json.encode(Crowd(received={facts.rank: received}, problems=problems))

    # Rank 0.

    def lead(self) -> Survey:
        """Have everything measured."""
        request = self._request
        cards = self._board.cards(
            _Card,
            self._card,
            self._place.size,
            time.monotonic() + request.deadline,
            lambda text: self._watcher.say(text, 0, 1),
        )
        crew = Crew(self._board, list(cards), self._act)
        problems = list(dict.fromkeys(card.problem for card in cards.values()))
        refusal = request.refusal or (problems[0] if len(problems) == 1 else "")
        if refusal:
            crew.dismiss()
            raise InputError(refusal)
        found = Survey(
            size=self._place.size,
            ranks=[card.facts for card in cards.values()],
            lost={r: "never came" for r in range(self._place.size) if r not in cards},
            began=_now(),
        )
        plan = rounds(list(cards))
        self._total = 2 + len(plan)
        try:
            self._lead_computing(crew, cards, found)
            for pairs in plan:
                self._lead_round(crew, cards, found, pairs)
            self._lead_crowd(crew, cards, found)
            found.finished = True
        finally:
            found.lost |= crew.lost
            self._watcher.keep(found)
            with contextlib.suppress(RendezvousError):
                crew.dismiss()
        return found

    def _say(self, text: str) -> None:
        self._watcher.say(text, self._done, self._total)
        self._done += 1

    def _keep(self, crew: Crew, found: Survey) -> None:
        found.lost |= crew.lost
        self._watcher.keep(found)

    def _lead_computing(self, crew: Crew, cards: dict[int, _Card], found: Survey) -> None:
        self._say(f"{self._request.model}: computing and memory, on all ranks at once")
        hosts = [card.facts.host for card in cards.values()]
        orders = {
            rank: Order(do="compute", seconds=hosts.count(card.facts.host))
            for rank, card in cards.items()
        }
        limit = self._request.compute_limit + self._request.slack
        for rank, note in crew.carry_out(orders, limit, "computing").items():
            found.computing[rank] = msgspec.json.decode(note, type=Computing)
        self._keep(crew, found)

    def _lead_round(
        self, crew: Crew, cards: dict[int, _Card], found: Survey, pairs: list[tuple[int, int]]
    ) -> None:
        pairs = [pair for pair in pairs if all(rank in crew.alive for rank in pair)]
        self._say(f"wire {', '.join(f'{low}-{high}' for low, high in pairs) or 'of lost ranks'}")
        orders: dict[int, Order] = {}
        for low, high in pairs:
            why = _cannot_meet(cards[low].facts, cards[high].facts)
            if why:
                found.wires.append(Wire(low=low, high=high, problem=why))
                continue
            orders[low] = Order(do="answer", peer=high)
            orders[high] = Order(do="measure", peer=low, target=cards[low].target())
        what = f"measuring {', '.join(f'{low}-{high}' for low, high in pairs)}"
        notes = crew.carry_out(orders, self._request.pair_limit, what) if orders else {}
        for low, high in pairs:
            # The dialler measures; the other's word counts where the dialler is silent.
            note = notes.get(high) or notes.get(low)
            if note is not None and low in orders:
                wire = msgspec.json.decode(note, type=Wire)
                found.wires.append(msgspec.structs.replace(wire, at_once=len(pairs) > 1))
        self._keep(crew, found)

    def _lead_crowd(self, crew: Crew, cards: dict[int, _Card], found: Survey) -> None:
        good = [(wire.low, wire.high) for wire in found.wires if not wire.problem]
        good = [pair for pair in good if all(rank in crew.alive for rank in pair)]
        if not good:
            return
        self._say("all ranks sending to all at once")
        lower = {r: [cards[low].target() for low, high in good if high == r] for r in crew.alive}
        orders = {
            rank: Order(
                do="gather",
                lower=lower[rank],
                higher=[high for low, high in good if low == rank],
            )
            for rank in crew.alive
        }
        limit = self._request.wire.connect * (len(cards) + 1) + self._request.slack
        crew.carry_out(orders, limit, "connecting to all")
        # The streams are to be up to speed when they begin to be counted.
        trips = [wire.trip.median for wire in found.wires if not wire.problem]
        seconds = max(self._request.crowd, ramp_of(max(trips)) / FROM)
        orders = {rank: Order(do="talk", seconds=seconds) for rank in crew.alive}
        notes = crew.carry_out(orders, seconds + self._request.slack + 10.0, "sending to all")
        parts = [msgspec.json.decode(note, type=Crowd) for note in notes.values()]
        received = {rank: got for part in parts for rank, got in part.received.items()}
        problems = [problem for part in parts for problem in part.problems]
        found.crowd = Crowd(received=received, seconds=seconds, problems=problems)


def _cannot_meet(low: Facts, high: Facts) -> str:
    """Why there is no address to dial; empty where there is."""
    for facts in (low, high):
        if not facts.interface.address:
            return f"rank {facts.rank}: {facts.interface.problem}"
        if low.host != high.host and is_loopback(facts.interface.address):
            return (
                f"rank {facts.rank} would listen on the loopback address "
                f"{facts.interface.address}, which other hosts cannot reach"
            )
    return ""
