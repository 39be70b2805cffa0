"""What can go wrong, each with the facts a user needs to act.

Every error of the library is a `ThinwireError`. `exit_code` is what the command line returns: 2 for
input that can be corrected, 1 for a run that failed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "DeadlineError",
    "DeadlockError",
    "InputError",
    "NonFiniteError",
    "PeerDiedError",
    "PeerFinishedError",
    "RendezvousError",
    "ThinwireError",
    "WaitInBackwardError",
    "WorkerFailedError",
    "nearest",
]


class ThinwireError(Exception):
    """Base of every error that thinwire raises on purpose."""

    exit_code = 1


class InputError(ThinwireError, ValueError):
    """Input that the user can correct: names the key, the value and what is allowed."""

    exit_code = 2


class RendezvousError(ThinwireError):
    """The processes of a run could not find or accept each other before training began."""


class DeadlockError(ThinwireError):
    """No event is left but programs are waiting: names each rank and whom it waits for."""


class DeadlineError(ThinwireError):
    """A wait outlived its deadline. It harms no other peer: the program may catch it and go on."""


class PeerDiedError(ThinwireError):
    """Another rank died without a goodbye; under `strict` losses every wait raises this at once.

    Args:
        rank: the endpoint that died.
        message: the whole text for the user.
    """

    def __init__(self, rank: int, message: str):
        super().__init__(message)
        self.rank = rank


class PeerFinishedError(ThinwireError):
    """The awaited endpoint has said goodbye, so the awaited message can never come."""


class NonFiniteError(ThinwireError):
    """A loss or gradient is NaN or infinite: names rank, step and what to try."""


class WaitInBackwardError(ThinwireError):
    """A program tried to wait inside an autograd hook, where only post, start and spend may be."""


class WorkerFailedError(ThinwireError):
    """A program raised: names rank, step and time; the cause is chained.

    Args:
        rank: the endpoint whose program raised.
        message: the whole text for the user.
    """

    def __init__(self, rank: int, message: str):
        super().__init__(message)
        self.rank = rank


def nearest(word: str, valid: Iterable[str]) -> str:
    """A hint for an unknown name: the nearest valid one, then all of them.

    >>> nearest("gtpok", ["gtopk", "ssgd"])
    "did you mean 'gtopk'? valid: gtopk, ssgd"
    """
    valid = list(valid)
    close = difflib.get_close_matches(word, valid, n=1, cutoff=0.5)
    listed = f"valid: {', '.join(valid)}"
    return f"did you mean '{close[0]}'? {listed}" if close else listed
