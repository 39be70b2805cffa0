"""The contract of a reproduction: what is published, and how to find out whether it holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Protocol

from thinwire.methods import Paper
from thinwire.reproduce.line import Line, Result

__all__ = ["Reproduction", "result_of"]


class Reproduction(Protocol):
    """One published result, in a file of its own; `REPRODUCTIONS` lists the built-in ones.

    `run` takes no settings: what is reproduced is fixed by the publication. It must be
    deterministic, take a minute at most on two cores, and print nothing.

    Attributes:
        name: as on the command line.
        title: one line.
        paper: where it was published.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[Paper]

    def run(self) -> Result:
        """The published figures beside ours."""
        ...


def result_of(
    reproduction: Reproduction, lines: Iterable[Line], notes: Iterable[str] = ()
) -> Result:
    """What a reproduction found, under its own name, title and source.

    Args:
        reproduction: whose.
        lines: see `Result`.
        notes: see `Result`.
    """
    return Result(
        name=reproduction.name,
        title=reproduction.title,
        source=reproduction.paper.cite(),
        lines=tuple(lines),
        notes=tuple(notes),
    )
