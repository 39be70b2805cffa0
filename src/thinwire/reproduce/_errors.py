"""How far predicted figures are from published ones, as lines."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

from thinwire.reproduce.line import Line

__all__ = ["error_lines", "percent_off"]


def percent_off(ours: float, published: float) -> float:
    """Distance from the published figure, in percent of it.

    >>> percent_off(9.0, 10.0)
    10.0
    """
    return 100.0 * abs(ours - published) / abs(published)


def error_lines(
    cells: Sequence[Line], section: str, wanted: float, kind: Callable[[Line], str]
) -> Iterator[Line]:
    """The median over the predicted cells as a claim; beside it that of each kind of cells, of each
    section, and the worst cell.

    Args:
        cells: lines with published figures; those that aren't predicted are left out.
        section: where the lines stand.
        wanted: percent that the median may be.
        kind: name of the cells that a cell counts with.
    """
    predicted = [line for line in cells if line.kind == "predicted"]
    yield Line(
        section=section,
        name=f"median of the {len(predicted)} cells that were not fitted",
        ours=_median(predicted),
        unit="%",
        kind="claim",
        at_most=wanted,
    )
    for name_of in (kind, lambda line: line.section):
        for value in dict.fromkeys(map(name_of, predicted)):
            chosen = [line for line in predicted if name_of(line) == value]
            yield Line(section=section, name=f"median, {value}", ours=_median(chosen), unit="%",
                       kind="beside")  # fmt: skip
    worst = max(predicted, key=_off)
    yield Line(section=section, name=f"worst: {worst.section}: {worst.name}", ours=_off(worst),
               unit="%", kind="beside")  # fmt: skip


def _median(lines: Sequence[Line]) -> float:
    return statistics.median(map(_off, lines))


def _off(line: Line) -> float:
    assert line.published is not None
    return percent_off(line.ours, line.published)
