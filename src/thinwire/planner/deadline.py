"""Whether a plan's choice is in time, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from thinwire.planner._words import percent, ratio_text, whole_time
from thinwire.units import format_count

if TYPE_CHECKING:
    from thinwire.planner.objective import Objective
    from thinwire.planner.refine import Row

__all__ = ["CLOSE", "deadline_caveats", "missed_text", "with_deadline"]

CLOSE = 0.1
"""A deadline met with less of it to spare is met narrowly: predictions are not that exact."""


def with_deadline(verdict: str, choice: Row, rows: Sequence[Row], aim: Objective) -> str:
    """The verdict, with what becomes of the deadline; a miss comes first.

    Args:
        verdict: on the method.
        choice: that it is about.
        rows: all that were simulated.
        aim: with or without a deadline.
    """
    if aim.deadline is None or choice.duration is None:
        return verdict
    if choice.late:
        return f"{missed_text(choice, rows, aim.deadline)} {verdict}"
    samples = format_count(aim.samples or 0)
    return (
        f"{verdict} It meets the deadline of {whole_time(aim.deadline)}: {samples} samples take "
        f"{whole_time(choice.duration)}."
    )


def missed_text(choice: Row, rows: Sequence[Row], deadline: float) -> str:
    """That nothing is in time, by how much the best is late, and whether longer periods would do.

    Args:
        choice: the fastest of what was asked for.
        rows: all that were simulated.
        deadline: seconds.
    """
    assert choice.duration is not None
    text = (
        f"No simulated method meets the deadline of {whole_time(deadline)}: the fastest, "
        f"{choice.label}, takes {whole_time(choice.duration)}, {whole_time(choice.late)} "
        f"too long ({ratio_text(choice.duration / deadline)} the deadline)."
    )
    longer = [row for row in rows if row.candidate.longer and not row.late]
    if longer:
        found = min(longer, key=lambda row: row.duration or 0.0)
        text += (
            f" {found.label} would take {whole_time(found.duration or 0.0)}, with a longer period "
            "than asked for."
        )
    return text


def deadline_caveats(choice: Row, aim: Objective) -> tuple[str, ...]:
    """That the choice is only just in time."""
    if aim.deadline is None or choice.duration is None or choice.late:
        return ()
    spare = 1.0 - choice.duration / aim.deadline
    if spare >= CLOSE:
        return ()
    return (
        f"{choice.label} meets the deadline with {percent(spare)} of it to spare: a prediction may "
        "be off by more, and starting, testing and saving are not counted.",
    )
