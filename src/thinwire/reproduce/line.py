"""One figure of a publication beside ours, and whether what it claims holds."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from thinwire.errors import InputError

__all__ = ["KINDS", "Kind", "Line", "Result"]

Kind: TypeAlias = Literal["fitted", "predicted", "claim", "beside"]

KINDS: dict[Kind, str] = {
    "fitted": "a constant was chosen by it",
    "predicted": "nothing was chosen by it",
    "claim": "decides whether the publication, or we, keep a promise",
    "beside": "for comparison, decides nothing",
}
"""What a line is, and what that means."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A row of a reproduction.

    A line is judged when it has one or more of `tolerance`, `at_least` and `at_most`, and holds
    when all of them do. What was fitted can't be judged, and a claim must be.

    Args:
        section: the table it stands in.
        name: unique in its section.
        ours: our figure, finite.
        published: theirs; None where there is none.
        unit: of both.
        kind: see `KINDS`.
        tolerance: how far ours may be from the published one, over the published one; above 0.
        at_least: the least that ours may be.
        at_most: the most.
        series: what it is drawn as in the picture; "" leaves it out.
        note: a reason, for the reader.

    >>> line = Line(section="s", name="n", ours=9.5, published=10.0, kind="claim", tolerance=0.1)
    >>> line.ratio, line.holds
    (0.95, True)
    """

    section: str
    name: str
    ours: float
    published: float | None = None
    unit: str = ""
    kind: Kind = "predicted"
    tolerance: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    series: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        where = f"line {self.name!r} of {self.section!r}"
        if self.kind not in KINDS:
            raise InputError(f"{where}: kind = {self.kind!r}; valid: {', '.join(KINDS)}")
        if not math.isfinite(self.ours):
            raise InputError(f"{where}: ours = {self.ours!r}; it must be finite")
        if self.tolerance is not None and (self.published is None or not self.tolerance > 0):
            raise InputError(
                f"{where}: tolerance = {self.tolerance!r} with published = {self.published!r}; "
                "it must be above 0 and needs a published figure"
            )
        if self.judged and self.kind in ("fitted", "beside"):
            raise InputError(f"{where}: a line that is {self.kind} cannot be judged")
        if self.kind == "claim" and not self.judged:
            raise InputError(f"{where}: a claim needs tolerance, at_least or at_most")

    @property
    def judged(self) -> bool:
        """Whether it can hold or fail."""
        return not (self.tolerance is None and self.at_least is None and self.at_most is None)

    @property
    def ratio(self) -> float | None:
        """Ours over the published one; None where that can't be."""
        return self.ours / self.published if self.published else None

    @property
    def holds(self) -> bool | None:
        """None where it isn't judged."""
        if not self.judged:
            return None
        near = True
        if self.tolerance is not None and self.published is not None:
            near = abs(self.ours - self.published) <= self.tolerance * abs(self.published)
        over = self.at_least is None or self.ours >= self.at_least
        return near and over and (self.at_most is None or self.ours <= self.at_most)

    @property
    def wanted(self) -> str:
        """What it is judged by, in words; empty where it isn't.

        >>> Line(section="s", name="n", ours=0.8, at_least=0.9, kind="claim").wanted
        '≥ 0.9'
        """
        parts = [] if self.tolerance is None else [f"± {100 * self.tolerance:.2g} %"]
        parts += [] if self.at_least is None else [f"≥ {self.at_least:g}"]
        parts += [] if self.at_most is None else [f"≤ {self.at_most:g}"]
        return ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with what follows from it."""
        return {**asdict(self), "ratio": self.ratio, "holds": self.holds}


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a reproduction found.

    Args:
        name: of the reproduction.
        title: of the reproduction.
        source: the publication, as in a bibliography.
        lines: in the order in which they are to be read, those of a section together.
        notes: what was assumed and what was fitted, a sentence or more each.
    """

    name: str
    title: str
    source: str
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        seen: dict[tuple[str, str], None] = {}
        for line in self.lines:
            key = line.section, line.name
            if key in seen:
                raise InputError(f"{self.name}: line {line.name!r} is twice in {line.section!r}")
            seen[key] = None

    @property
    def failed(self) -> tuple[Line, ...]:
        """The judged lines that don't hold."""
        return tuple(line for line in self.lines if line.holds is False)

    @property
    def exit_code(self) -> int:
        """0 when every judged line holds, 3 when one doesn't."""
        return 3 if self.failed else 0

    def sections(self) -> dict[str, list[Line]]:
        """The lines by section, in order."""
        found: dict[str, list[Line]] = {}
        for line in self.lines:
            found.setdefault(line.section, []).append(line)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "schema": 1,
            "name": self.name,
            "title": self.title,
            "source": self.source,
            "holds": not self.failed,
            "lines": [line.to_dict() for line in self.lines],
            "notes": list(self.notes),
        }
