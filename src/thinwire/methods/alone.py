"""One machine, no network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thinwire.methods.base import Method, Paper, Traits
from thinwire.worker import Worker

__all__ = ["Alone"]


@dataclass(frozen=True, kw_only=True)
class Alone(Method):
    """The fastest machine by itself: what every distributed method has to beat.

    No traffic, no staleness. It sees as many samples as the whole cluster would, in batches of one
    worker.

    Update rule: `x ← x − lr · g(x)`.
    """

    paper: ClassVar[Paper | None] = Paper(
        authors="Robbins and Monro",
        title="A Stochastic Approximation Method",
        venue="Annals of Mathematical Statistics 22(3)",
        year=1951,
    )
    traits: ClassVar[Traits] = Traits(
        traffic="0", staleness="0", synchronous=True, agree=True, workers="fastest"
    )

    def worker(self, w: Worker) -> None:
        """See `Method`."""
        for batch in w.batches():
            w.apply(w.gradient(batch))
