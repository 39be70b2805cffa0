"""The contract of a training method: a blocking program, the same on every rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from thinwire.worker import Server, Worker

__all__ = ["Method", "Paper", "Traits"]


@dataclass(frozen=True, kw_only=True)
class Paper:
    """Where a method was published.

    Args:
        authors: family names, "and" before the last.
        title: as printed.
        venue: conference or journal.
        year: of publication.
        url: a stable address, or "".
    """

    authors: str
    title: str
    venue: str
    year: int
    url: str = ""

    def cite(self) -> str:
        """One line for a bibliography."""
        text = f"{self.authors}. {self.title}. {self.venue}, {self.year}."
        return f"{text} {self.url}" if self.url else text


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a user chooses a method by.

    Args:
        traffic: bytes that a worker sends per step, in words; P workers, m parameters of 4 bytes,
            k kept entries.
        staleness: how old the parameters are that a gradient was taken at.
        kind: "at-step" (talks between backward and the optimizer) or "overlapped" (during
            backward).
        synchronous: whether who talks to whom, and in which order it is taken in, doesn't depend
            on timing: then real runs repeat bit for bit, and equal the virtual one.
        agree: whether all replicas end with equal parameters.
        workers: "all", or "fastest": only the fastest node works.
        evaluate_at: see `thinwire.worker.Plan`.
        momentum: whose it is: "optimizer", or "method": the optimizer must then be plain SGD, or
            momentum would be applied twice.
        packets_only: nothing that it exchanges is a dense all-reduce or all-gather of the worker's,
            so that another's collectives (`wire.collectives`) could do nothing for it.
        resumable: whether all that its program must remember from step to step is what it keeps by
            `Worker.remember`, the number of steps done and the generators, so that a run in
            somebody's own loop can be gone on with from a checkpoint.
    """

    traffic: str
    staleness: str
    kind: Literal["at-step", "overlapped"] = "at-step"
    synchronous: bool = False
    agree: bool = False
    workers: Literal["all", "fastest"] = "all"
    evaluate_at: Literal["batch", "call"] = "batch"
    momentum: Literal["optimizer", "method"] = "optimizer"
    packets_only: bool = False
    resumable: bool = False


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A training method. Subclasses are frozen dataclasses whose fields are its settings.

    Attributes:
        paper: where it was published.
        traits: what a user chooses it by.
        num_servers: servers it needs.
    """

    paper: ClassVar[Paper | None] = None
    traits: ClassVar[Traits] = Traits(traffic="not stated", staleness="not stated")
    num_servers: ClassVar[int] = 0

    @abstractmethod
    def worker(self, w: Worker) -> None:
        """The program of a worker."""

    def server(self, s: Server) -> None:  # noqa: B027 - only methods with servers have one
        """The program of a server."""

    def sent_bytes(self, numel: int, size: int, steps: int) -> Sequence[int] | None:
        """What each worker sends in so many steps with equal batches, headers included.

        For those who can say: `thinwire check` then counts, and holds them to it.

        Args:
            numel: parameters, float32.
            size: workers.
            steps: steps of each.

        Returns:
            Bytes by rank; None, where a method does not say.
        """
        return None
