"""What a pilot says in sentences: its verdict, and what a reader must not overlook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from thinwire.planner._words import faster_text, listed
from thinwire.planner.better import WORTH
from thinwire.planner.objective import Target
from thinwire.units import format_time

if TYPE_CHECKING:
    from thinwire.planner.pilot import Learned
    from thinwire.planner.refine import Refined

__all__ = ["pilot_notes", "pilot_verdict"]

_RANKINGS: Mapping[Target, str] = {
    "time": "samples per second",
    "energy": "energy per sample",
    "bytes": "bytes per sample",
    "price": "money per sample",
}


def pilot_verdict(
    refined: Refined, ranked: Sequence[Learned], loss: float | None, dense: str, asked: int
) -> str:
    """Who leads by loss per second, by how much, and how the plan ranked them.

    Args:
        refined: the plan.
        ranked: the pilot's rows, the soonest at the common loss first.
        loss: the common one; None where no method learned.
        dense: label of the dense baseline.
        asked: rows that were to be trained.
    """
    if not ranked:
        return "No second verdict: the pilot ended before a method had been tested."
    best = ranked[0]
    if loss is None or best.reached is None:
        return (
            "No second verdict: no method learned anything in the pilot; give more steps, or "
            "another learning rate."
        )
    whole = len(ranked) == asked and all(_ended(each) for each in ranked)
    so_far = "" if whole else " so far"
    told = [
        f"By loss per second{so_far} {best.label} leads: a test loss of {loss:.2g} after "
        f"{format_time(best.reached)}"
    ]
    plain = "ssgd" if dense == "ssgd" else f"ssgd ({dense})"
    baselines = {dense: plain, "alone": "one machine"}
    for each in ranked[1:]:
        if each.label in baselines:
            told.append(_against(best.reached, each, baselines[each.label]))
    close = [each.label for each in _close(ranked) if each.label not in baselines]
    if close:
        told.append(f"{listed(close)} about as soon")
    first, ranking = refined.rows[0].label, _RANKINGS[refined.target]
    also = "it leads, too" if first == best.label else f"{first} leads"
    return f"{', '.join(told)}; by {ranking} {also}." + _of_the_advice(refined, ranked)


def _against(reached: float, other: Learned, name: str) -> str:
    if other.reached is None:
        return f"{name} {_missed(other)} it"
    ratio = other.reached / max(reached, 1e-12)
    return f"about as soon as {name}" if ratio <= WORTH else faster_text(ratio, name)


def _ended(each: Learned) -> bool:
    """Whether more training would not have been due to it."""
    return each.curve.whole or each.curve.diverged


def _missed(each: Learned) -> str:
    return "did not reach" if _ended(each) else "was stopped before it reached"


def _close(ranked: Sequence[Learned]) -> list[Learned]:
    """Those too near to the first to tell them apart."""
    least = ranked[0].reached or 0.0
    return [r for r in ranked[1:] if r.reached is not None and r.reached <= least * WORTH]


def _of_the_advice(refined: Refined, ranked: Sequence[Learned]) -> str:
    """A sentence on the choice of the plan, where that is not the leader."""
    best, choice = ranked[0], refined.choice.label
    advised = next((each for each in ranked if each.label == choice), None)
    if advised is None or advised is best or not best.reached or advised in _close(ranked):
        return ""
    if advised.reached is None:
        return f" The advice above, {choice}, {_missed(advised)} that loss."
    return f" The advice above, {choice}, takes {advised.reached / best.reached:.1f} times as long."


def pilot_notes(ranked: Sequence[Learned], loss: float | None) -> list[str]:
    """Which methods diverged, and which did not come to the common loss.

    Args:
        ranked: the pilot's rows.
        loss: the common one; None where no method learned.
    """
    notes: list[str] = []
    for each in ranked:
        if each.curve.diverged:
            notes.append(f"{each.label}: its loss became infinite or no number; it wants a smaller "
                         "learning rate.")  # fmt: skip
        elif loss is not None and each.reached is None:
            least = min(each.curve.losses)
            notes.append(f"{each.label}: {_missed(each)} that loss; its least was {least:.2g}.")
    return notes
