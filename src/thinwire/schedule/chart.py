"""A step's time line as lines of text."""

from __future__ import annotations

from collections.abc import Sequence

from thinwire.errors import InputError
from thinwire.schedule.step import Interval, Timeline

__all__ = ["chart"]

_LETTERS = {"backward": "B", "forward": "F", "wait": "."}
_MESSAGES = "▒█"


def chart(timeline: Timeline, width: int = 72, until: float | None = None) -> str:
    """The device in the first line (`B` backward, `F` forward, `.` waiting), below it each stage of
    the path (messages by turns `▒` and `█`).

    A column shows what most of its time went to.

    Args:
        timeline: from `simulate`.
        width: columns of the drawing, >= 1.
        until: seconds that the width stands for; None: the step.

    >>> from thinwire.schedule import Cost, Load, fused, per_tensor, simulate
    >>> load = Load(order=(1, 0), ready=(1.0, 2.0), nbytes=(10, 10), backward=2.0,
    ...             forward=((0, 0.5), (1, 0.5)))
    >>> print(chart(simulate(load, fused(load, per_tensor(load.order)), [Cost(per_byte=0.2)]), 24))
    device  BBBBBBBB............FFFF
    send        ▒▒▒▒▒▒▒▒████████
    """
    if width < 1:
        raise InputError(f"width = {width!r} columns; it must be >= 1")
    column = (until or timeline.step or 1.0) / width
    device = [(i, _LETTERS[i.what]) for i in timeline.intervals if i.what != "send"]
    rows = {"device": device}
    stages = sorted({i.stage for i in timeline.intervals if i.what == "send"})
    for stage in stages:
        sent = [i for i in timeline.intervals if i.what == "send" and i.stage == stage]
        name = "send" if len(stages) == 1 else f"send {stage + 1}"
        rows[name] = [(i, _MESSAGES[n % 2]) for n, i in enumerate(sent)]
    return "\n".join(
        f"{name:8}{_row(marked, column, width)}".rstrip() for name, marked in rows.items()
    )


def _row(marked: Sequence[tuple[Interval, str]], column: float, width: int) -> str:
    cells: list[dict[str, float]] = [{} for _ in range(width)]
    for interval, letter in marked:
        first, last = int(interval.start / column), int(interval.end / column)
        for index in range(first, min(last, width - 1) + 1):
            start = max(interval.start, index * column)
            part = min(interval.end, (index + 1) * column) - start
            if part > 0:
                cells[index][letter] = cells[index].get(letter, 0.0) + part
    return "".join(_most(cell, column) for cell in cells)


def _most(cell: dict[str, float], column: float) -> str:
    idle = column - sum(cell.values())
    letter = max(cell, key=lambda name: cell[name], default=" ")
    return letter if cell and cell[letter] >= idle else " "
