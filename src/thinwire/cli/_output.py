"""Files that a verb is asked to write."""

from __future__ import annotations

from pathlib import Path

from thinwire.errors import InputError

__all__ = ["check_file", "write_file"]


def check_file(option: str, path: Path | None, *endings: str) -> None:
    """Before the work begins: where it can't be written to, nothing is done.

    Args:
        option: that names it.
        path: None: nothing is asked for.
        endings: one of which the name must have; none: any name will do.

    Raises:
        InputError: another ending, or not a file in a folder that exists.
    """
    if path is None:
        return
    if endings and path.suffix not in endings:
        raise InputError(f"{option} {path}: the name must end in {' or '.join(endings)}")
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"{option} {path}: must be a file in a folder that exists")


def write_file(option: str, path: Path, text: str) -> None:
    """The whole text, in the place of what was there.

    Raises:
        InputError: it cannot be written.
    """
    from thinwire.report.whole import write_whole

    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise InputError(f"{option} {path}: cannot be written: {error.strerror}") from None
