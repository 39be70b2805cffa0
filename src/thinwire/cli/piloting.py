"""From the words of `thinwire plan --pilot` to a training, and to its second verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thinwire.errors import InputError
from thinwire.units import format_count

if TYPE_CHECKING:
    from thinwire.cli.planning import Asked, Question
    from thinwire.planner.pilot import Pilot
    from thinwire.planner.refine import Refined
    from thinwire.run.pilot import Trained

__all__ = ["Course"]

_SHORT = (
    "One seed, and the beginning of a training: differences of some per cent may be chance, and a "
    "method may fall behind later. `thinwire compare` trains to the end."
)


@dataclass(frozen=True, kw_only=True)
class Course:
    """What a pilot is to do.

    Args:
        steps: of each method; None: about half a minute in all.
        best: lossy methods.
        seed: of the training.
        given: flat training settings.
        batch: samples per worker and step, where the task's own model is planned for; None: as
            tuned.
    """

    steps: int | None
    best: int
    seed: int
    given: Mapping[str, Any]
    batch: int | None

    @staticmethod
    def of(
        asked: Asked,
        *,
        steps: int | None,
        best: int | None,
        seed: int,
        set_: list[str],
        batch: int | None,
    ) -> Course:
        """From the options as typed.

        Raises:
            InputError: one machine only, or a setting that does not exist or has no effect.
        """
        from thinwire.planner.pilot import BEST
        from thinwire.run.pilot import check_given
        from thinwire.run.settings import parse_assignments

        if asked.cluster.size == 1:
            raise InputError(
                f"--pilot has no effect on cluster {asked.cluster.name!r}: with one node there are "
                "no methods to compare"
            )
        given = parse_assignments(set_)
        check_given(given)
        return Course(steps=steps, best=best or BEST, seed=seed, given=given, batch=batch)

    def run(self, question: Question, asked: Asked, found: Refined) -> tuple[Pilot, bool]:
        """Train, and judge; whether the user stopped it.

        Args:
            question: names the task and where its data are.
            asked: the cluster, and the model that is planned for.
            found: the plan.

        Raises:
            InputError: a setting that does not exist or has no effect.
        """
        from thinwire.planner.pilot import judge, pilot_rows
        from thinwire.run.pilot import Piloting, train_pilot

        rows = pilot_rows(found, self.best)
        trained = train_pilot(
            Piloting(
                cluster=asked.cluster,
                task=question.task,
                data=question.data,
                candidates=tuple(row.candidate for row in rows),
                batch=self.batch if question.of_task else None,
                steps=self.steps,
                seed=self.seed,
                given=self.given,
            )
        )
        pilot = judge(
            found,
            rows,
            trained.curves,
            task=question.task,
            steps=trained.steps,
            batch=trained.batch,
            seed=self.seed,
            notes=(*_basis(question, asked, trained), *trained.notes, _SHORT, _where(trained)),
            folder=str(trained.folder),
        )
        return pilot, trained.stopped


def _basis(question: Question, asked: Asked, trained: Trained) -> list[str]:
    """Where loss and time are of different models: which, and what that means."""
    if question.of_task or asked.task is None:
        return []
    from thinwire.planner.of_task import load_of_task

    job, task = asked.workload, question.task
    own = format_count(load_of_task(asked.task).numel)
    size = format_count(job.num_params)
    return [
        f"Loss by step is that of the model of {task} ({own} parameters, batch {trained.batch}), "
        f"time per step that of {job.name} ({size}, batch {job.batch}): what a method leaves out "
        f"may cost {job.name} more, or less."
    ]


def _where(trained: Trained) -> str:
    return f"Curves of the training by itself: thinwire report {trained.folder}"
