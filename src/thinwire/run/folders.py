"""Where runs put their records."""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path

from thinwire.errors import InputError

__all__ = ["claim_folder", "refuse_used"]


def claim_folder(asked: Path | None, verb: str) -> Path:
    """The folder asked for, or a new one, `runs/VERB-DATE-TIME`, that nobody else gets.

    Args:
        asked: as given by `--out`; taken as it is.
        verb: what is done there.

    Raises:
        InputError: a new folder cannot be made here.
    """
    if asked is not None:
        return asked
    base = Path("runs") / f"{verb}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    for number in itertools.count(2):
        try:
            base.mkdir(parents=True)
        except FileExistsError:  # two began in the same second
            base = base.with_name(f"{base.name.split('_')[0]}_{number}")
        except OSError as error:
            raise InputError(
                f"run folder = {str(base)!r} cannot be made ({error.strerror}); say where with "
                "--out FOLDER"
            ) from error
        else:
            return base
    raise AssertionError


def refuse_used(folder: Path | None, hint: str = "") -> None:
    """Raise InputError if a record lies there already.

    Args:
        folder: as given by `--out`; None is a new one.
        hint: what else could be done.
    """
    if folder is not None and (folder / "record.jsonl").exists():
        raise InputError(f"--out {folder} already holds a record; give another folder{hint}")
