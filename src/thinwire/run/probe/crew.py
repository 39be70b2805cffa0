"""Rank 0 gives orders, the others carry them out and tell what came of it, by notes on a board.

Every order has a limit. Who is silent beyond it, or no longer gives signs of life, is named, and
the rest goes on without.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, TypeAlias

import msgspec

from thinwire.errors import RendezvousError
from thinwire.run.doctor.board import Board
from thinwire.run.doctor.pairs import Target

__all__ = ["Crew", "Do", "Order", "follow"]

Do: TypeAlias = Literal["compute", "answer", "measure", "gather", "talk", "rest"]

_PAUSE = 0.05
_BEAT = 2.0
_DEAD = 15.0
_END = "end"


class Order(msgspec.Struct, kw_only=True, frozen=True):
    """What one rank is to do.

    Attributes:
        do: which of its abilities.
        peer: the other rank of a pair.
        target: whom to dial in a pair.
        lower: whom to dial in a crowd.
        higher: who calls in a crowd.
        seconds: how long.
    """

    do: Do
    peer: int = -1
    target: Target | None = None
    lower: list[Target] = []
    higher: list[int] = []
    seconds: float = 0.0


Act: TypeAlias = Callable[[Order], bytes]


class Crew:
    """The ranks that take part, as rank 0 sees them.

    Args:
        board: where the notes are.
        ranks: who came, rank 0 too.
        act: carries out rank 0's own orders.

    Attributes:
        alive: who has answered until now.
        lost: by rank, why it is no longer asked.
    """

    def __init__(self, board: Board, ranks: list[int], act: Act):
        self._board = board
        self._act = act
        self._count = 0
        self._beats: dict[int, tuple[bytes | None, float]] = {}
        self.alive = list(ranks)
        self.lost: dict[int, str] = {}

    def carry_out(self, orders: Mapping[int, Order], limit: float, what: str) -> dict[int, bytes]:
        """Give orders and wait for their results.

        Args:
            orders: by rank; ranks that are lost are left out.
            limit: seconds for each.
            what: names the work in the reason why a rank is lost.

        Returns:
            The results of those that gave one.
        """
        orders = {rank: order for rank, order in orders.items() if rank in self.alive}
        number, self._count = self._count, self._count + 1
        self._board.set(
            f"order/{number}", msgspec.json.encode({str(r): o for r, o in orders.items()})
        )
        until = time.monotonic() + limit
        results: dict[int, bytes] = {}
        if 0 in orders:
            results[0] = self._act(orders[0])
        missing = [rank for rank in orders if rank]
        while missing and time.monotonic() < until:
            for rank in list(missing):
                note = self._board.get(f"result/{number}/{rank}")
                if note is not None:
                    results[rank] = note
                    missing.remove(rank)
                elif self._silent(rank):
                    missing.remove(rank)
                    self._lose(rank, f"came, but gave no sign of life for {_DEAD:g} s while {what}")
            time.sleep(_PAUSE if missing else 0.0)
        for rank in missing:
            self._lose(rank, f"came, but did not end {what} within {limit:g} s")
        return results

    def _silent(self, rank: int) -> bool:
        beat, now = self._board.get(f"beat/{rank}"), time.monotonic()
        last, since = self._beats.get(rank, (None, now))
        if beat != last or rank not in self._beats:
            self._beats[rank] = (beat, now)
            return False
        return now - since > _DEAD

    def _lose(self, rank: int, why: str) -> None:
        self.alive.remove(rank)
        self.lost[rank] = why

    def dismiss(self) -> None:
        """Send the others home, and stay until they have heard it: this may be their store."""
        self._board.set(f"order/{self._count}", msgspec.json.encode(_END))
        until = time.monotonic() + 5.0
        for rank in self.alive:
            if rank:
                self._board.wait(f"home/{rank}", until)


def follow(board: Board, rank: int, act: Act, patience: float) -> None:
    """Carry out rank 0's orders until it sends this rank home.

    Args:
        board: where the notes are.
        rank: of this process, not 0.
        act: carries out an order; raises nothing.
        patience: seconds without an order after which rank 0 is given up.

    Raises:
        RendezvousError: rank 0 or its store fell silent.
    """
    with _beating(board, rank):
        number = 0
        while True:
            note = _order(board, number, patience)
            if note is None:
                raise RendezvousError(f"rank {rank}: rank 0 has fallen silent")
            if msgspec.json.decode(note) == _END:
                board.set(f"home/{rank}", b"1")
                return
            orders = msgspec.json.decode(note, type=dict[str, Order])
            order = orders.get(str(rank))
            if order is not None:
                board.set(f"result/{number}/{rank}", act(order))
            number += 1


def _order(board: Board, number: int, patience: float) -> bytes | None:
    """As `Board.wait`, but slower: those who wait are not to disturb those who measure."""
    until = time.monotonic() + patience
    while (note := board.get(f"order/{number}")) is None:
        if time.monotonic() > until:
            return None
        time.sleep(_PAUSE)
    return note


@contextlib.contextmanager
def _beating(board: Board, rank: int) -> Iterator[None]:
    """Signs of life on the board, from a thread, for as long as the block lasts."""
    over = threading.Event()

    def beat() -> None:
        count = 0
        while not over.wait(_BEAT):
            count += 1
            with contextlib.suppress(RendezvousError):  # the program itself will say so
                board.set(f"beat/{rank}", str(count).encode())

    thread = threading.Thread(target=beat, name="thinwire-probe", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_BEAT)
