"""A plan refined: the methods' own programs, timed on the virtual cluster, ranked and chosen."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from thinwire.planner._words import faster_text, percent
from thinwire.planner.better import WORTH
from thinwire.planner.candidates import HOPELESS, Candidate, candidates
from thinwire.planner.deadline import deadline_caveats, with_deadline
from thinwire.planner.objective import Objective, Target, make_objective
from thinwire.planner.one_machine import cheaper_alone
from thinwire.planner.predict import Settings
from thinwire.planner.simulate import Scene, Simulated, simulate
from thinwire.planner.workload import Workload
from thinwire.units import format_size, format_time

__all__ = ["BUDGET", "Refined", "Row", "Skipped", "refine"]

BUDGET = 45.0
"""Seconds after which no further method is simulated."""

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Row:
    """A simulated method beside its closed form.

    Args:
        candidate: what was asked for.
        simulated: what came out.
        cost: seconds, joules, bytes or money of the whole cluster per sample, as the target says.
        duration: seconds of the whole training; None where nobody said how much there is to do.
        late: seconds by which that misses the deadline; 0 where it meets it or there is none.
    """

    candidate: Candidate
    simulated: Simulated
    cost: float
    duration: float | None = None
    late: float = 0.0

    @property
    def label(self) -> str:
        """What tables call it."""
        return self.candidate.label


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A method that was not simulated, and why."""

    label: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Refined:
    """The answer of a simulated plan.

    Args:
        aim: by what the rows are ranked, and what they are held against.
        rows: the best first, those that miss the deadline behind all others.
        skipped: what was not simulated.
        choice: the row to use.
        verdict: one or two sentences.
        why: what limits the dense baseline, and the choice.
        caveats: what a reader must not overlook.
    """

    aim: Objective
    rows: tuple[Row, ...]
    skipped: tuple[Skipped, ...]
    choice: Row
    verdict: str
    why: tuple[str, ...]
    caveats: tuple[str, ...]

    @property
    def target(self) -> Target:
        """What the rows are ranked by."""
        return self.aim.target

    def __getitem__(self, label: str) -> Row:
        """The row of that label."""
        for row in self.rows:
            if row.label == label:
                return row
        raise KeyError(label)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with a `schema` number; seconds, bytes, joules, money."""
        samples = self.aim.samples
        rows = [
            {
                "label": row.label,
                "lossy": row.candidate.lossy,
                "longer_period": row.candidate.longer,
                "cost": row.cost,
                "duration": row.duration,
                "price": row.simulated.price_of(samples),
                "meets_deadline": None if self.aim.deadline is None else not row.late,
                "closed_form_step_time": row.candidate.closed_time,
                **dataclasses.asdict(row.simulated),
            }
            for row in self.rows
        ]
        return {
            "schema": SCHEMA,
            "target": self.target,
            "samples": samples,
            "deadline": self.aim.deadline,
            "choice": self.choice.label,
            "verdict": self.verdict,
            "why": list(self.why),
            "caveats": list(self.caveats),
            "rows": rows,
            "skipped": [dataclasses.asdict(each) for each in self.skipped],
        }


class _OutOfTimeError(Exception):
    """The budget is spent."""


def refine(
    workload: Workload,
    scene: Scene,
    settings: Settings | None = None,
    *,
    target: str = "time",
    samples: int | None = None,
    deadline: float | None = None,
    budget: float = BUDGET,
    tell: Callable[[str, int, int], None] | None = None,
) -> Refined:
    """Simulate every method worth it, and say which one to use.

    Args:
        workload: what is trained, for the closed forms.
        scene: the same, to be simulated.
        settings: of the methods.
        target: "time", "energy", "bytes" or "price", of the whole cluster per sample.
        samples: that the whole training sees, the same for every method; None: unknown.
        deadline: seconds for these; what takes longer is ranked behind.
        budget: seconds of this machine's time after which no further method is begun; one alone,
            plain S-SGD and bucketed overlap are simulated in any case.
        tell: called with a label, how many are done, and of how many.

    Raises:
        InputError: an unknown target, or one that the cluster says too little for; a deadline
            without samples.
    """
    aim = make_objective(scene.cluster, target, samples, deadline)
    listed = candidates(workload, scene.cluster, settings or Settings())
    wanted, skipped = _pruned(listed, aim.target)
    found: dict[str, Simulated] = {}
    until = time.monotonic() + budget
    for done, each in enumerate(_hopeful_first(wanted)):
        if tell is not None:
            tell(each.label, done, len(wanted))
        result = _timed(scene, each, until)
        if result is None:
            skipped.append(Skipped(label=each.label, reason=f"the {budget:g} s were over"))
        else:
            found[each.label] = result
    size = scene.cluster.size
    rows = [_row(each, found[each.label], aim, size) for each in listed if each.label in found]
    return _answered(aim, rows, skipped, scene)


def _row(each: Candidate, found: Simulated, aim: Objective, size: int) -> Row:
    return Row(candidate=each, simulated=found, cost=aim.cost(found, size),
               duration=aim.duration(found), late=aim.late(found))  # fmt: skip


def _pruned(listed: Sequence[Candidate], target: Target) -> tuple[list[Candidate], list[Skipped]]:
    """What is simulated and what is not. Only times are ruled out by a time."""
    best = max(each.closed.samples_per_second for each in listed if each.closed is not None)
    kept, skipped = [], []
    for each in listed:
        form = each.closed
        if (
            target != "time"
            or each.baseline
            or form is None
            or form.samples_per_second * HOPELESS >= best
        ):
            kept.append(each)
        else:
            times = best / form.samples_per_second
            reason = f"by its closed form {times:.1f} times slower than the best"
            skipped.append(Skipped(label=each.label, reason=reason))
    return kept, skipped


def _hopeful_first(wanted: Sequence[Candidate]) -> list[Candidate]:
    """Baselines, then the fastest closed forms, then those without one; slow ones last."""

    def place(each: Candidate) -> tuple[bool, bool, bool, float]:
        rate = each.closed.samples_per_second if each.closed is not None else 0.0
        return not each.baseline, each.slow, each.closed is None, -rate

    return sorted(wanted, key=place)


def _timed(scene: Scene, each: Candidate, until: float) -> Simulated | None:
    def check() -> None:
        if time.monotonic() > until and not each.baseline:
            raise _OutOfTimeError

    try:
        check()
        return simulate(scene, each.method, each.settings, check=check)
    except _OutOfTimeError:
        return None
    except Exception as error:
        if isinstance(error.__cause__, _OutOfTimeError):
            return None
        raise


def _answered(aim: Objective, rows: list[Row], skipped: list[Skipped], scene: Scene) -> Refined:
    choice, longer = _choose(rows, aim)
    by_label = {row.label: row for row in rows}
    verdict = _verdict(choice, longer, by_label, aim.target, scene)
    return Refined(
        aim=aim,
        rows=tuple(sorted(rows, key=lambda row: (row.late > 0, row.cost))),
        skipped=tuple(skipped),
        choice=choice,
        verdict=with_deadline(verdict, choice, rows, aim),
        why=tuple(_why(row) for row in _told(choice, by_label)),
        caveats=(
            *deadline_caveats(choice, aim),
            *cheaper_alone(choice, scene, aim),
            *_caveats(choice),
        ),
    )


def _choose(rows: Sequence[Row], aim: Objective) -> tuple[Row, Row | None]:
    """The simplest row within `WORTH` of the best, and a longer period that would pay where no
    other row does.

    A deadline rules out all that misses it; where everything does, the fastest is taken. Where
    bytes are the target and no deadline demands speed, only rows that are faster than one machine
    count: one machine sends none.
    """
    alone = rows[0]
    asked = [row for row in rows if not row.candidate.longer]
    in_time = [row for row in asked if not row.late]
    if not in_time:
        return min(asked, key=lambda row: row.late), None
    asked = in_time
    if aim.target == "bytes" and aim.deadline is None:
        least = WORTH * alone.simulated.samples_per_second
        asked = [row for row in asked if row.simulated.samples_per_second >= least] or [alone]
    best = min(row.cost for row in asked)
    choice = next(row for row in asked if row.cost <= best * WORTH)
    others = [row for row in rows if row.candidate.longer and not row.late]
    if choice is not alone or not others:
        return choice, None
    longer = min(others, key=lambda row: row.cost)
    pays = longer.cost * WORTH <= choice.cost and aim.target != "bytes"
    return choice, longer if pays else None


_COSTS = {"time": "time", "energy": "energy", "bytes": "traffic", "price": "money"}


def _verdict(
    choice: Row, longer: Row | None, by_label: dict[str, Row], target: Target, scene: Scene
) -> str:
    alone, dense = by_label["alone"], _best_dense(by_label)
    if dense is None:
        return "Use one machine: it is the only node, there is nothing to exchange."
    rate = choice.simulated.samples_per_second
    versus_dense = faster_text(rate / dense.simulated.samples_per_second, "the best dense method")
    least = "" if target == "time" else f" for the least {_COSTS[target]} per sample"
    if choice is alone:
        seconds = scene.seconds
        name = scene.cluster.nodes[seconds.index(min(seconds))].name
        text = f"Use one machine ({name}){least}: it is {versus_dense}."
        if longer is not None:
            gain = longer.simulated.samples_per_second / rate
            text += f" But {longer.label} would be {faster_text(gain, 'it')}."
        return text
    versus_one = faster_text(rate / alone.simulated.samples_per_second, "one machine")
    if not choice.candidate.lossy:
        return f"Dense is fine here{least}: {choice.label} is {versus_one}."
    return f"{choice.label}{least}: {versus_dense}, and {versus_one}."


def _best_dense(by_label: dict[str, Row]) -> Row | None:
    """The fastest of those that change nothing; None for one machine."""
    exact = [r for r in by_label.values() if not r.candidate.lossy and r.label != "alone"]
    return max(exact, key=lambda row: row.simulated.samples_per_second, default=None)


def _told(choice: Row, by_label: dict[str, Row]) -> list[Row]:
    dense = _best_dense(by_label)
    return [row for row in (dense, choice) if row is not None][: 1 if dense is choice else 2]


def _why(row: Row) -> str:
    found = row.simulated
    share = percent(found.parts[found.limit] / found.step_time)
    text = (
        f"{row.label}: a step takes {format_time(found.step_time)}; what limits it is "
        f"{found.limit} ({share} of the step)"
    )
    if not found.bytes_per_step:
        return text + "."
    return (
        f"{text}. A worker sends {format_size(found.bytes_per_step)} and waits "
        f"{percent(found.waiting)} of the time; {format_time(found.exposed)} are hidden by nothing."
    )


def _caveats(choice: Row) -> tuple[str, ...]:
    if not choice.candidate.lossy:
        return ()
    bound = "makes the batch larger" if "accumulate" in choice.candidate.settings else (
        "changes the updates"
    )  # fmt: skip
    return (
        f"{choice.label} {bound}: it may need more samples, and nothing here knows how many. "
        "`--pilot` tries it, `thinwire compare` shows it.",
    )
