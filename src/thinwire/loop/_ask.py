"""What a loop is asked to tell: by the arguments of `distribute`, or by the environment."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from thinwire.errors import InputError

__all__ = ["Asked", "asked"]

RECORD = "THINWIRE_RECORD"
PROGRESS = "THINWIRE_PROGRESS"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Where a loop's lines go.

    Args:
        record: a run folder.
        tensorboard: a folder of event files.
        progress: whether to show the progress.
        every: steps between lines.
    """

    record: Path | None
    tensorboard: Path | None
    progress: bool
    every: int

    @property
    def anything(self) -> bool:
        """Whether there is anything to tell."""
        return self.progress or self.record is not None or self.tensorboard is not None


def asked(
    record: str | os.PathLike[str] | None,
    tensorboard: str | os.PathLike[str] | None,
    progress: bool | None,
    every: int,
) -> Asked:
    """The arguments, or else the environment, or else what suits where the program runs.

    Raises:
        InputError: a number of steps, or a variable, that means nothing.
    """
    if not isinstance(every, int) or every < 1:
        raise InputError(f"log_every = {every!r}: a whole number of steps, at least 1, is needed")
    folder = record or os.environ.get(RECORD)
    return Asked(
        record=Path(folder) if folder else None,
        tensorboard=Path(tensorboard) if tensorboard else None,
        progress=_progress() if progress is None else progress,
        every=every,
    )


def _progress() -> bool:
    said = os.environ.get(PROGRESS, "")
    if said not in ("", "0", "1"):
        raise InputError(f"{PROGRESS} = {said!r}; valid: 0, 1")
    return said == "1" if said else sys.stderr is not None and sys.stderr.isatty()
