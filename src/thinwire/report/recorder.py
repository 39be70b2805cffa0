"""Writing a record: append-only, a line at a time, whole after a kill at any byte.

Each line goes to the operating system in one write as soon as it is complete, so a killed process
loses at most the line it was writing. Runs in several processes at once do not share a file: each
writes a part of its own (`record-<part>.jsonl`) and reading merges the parts; nothing has to be
handed over, locked or repaired.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import msgspec

from thinwire.errors import InputError
from thinwire.report.record import Line

__all__ = ["Recorder", "part_name"]

_TAIL = 1


def part_name(part: int | None) -> str:
    """The file name of a part; None is the main file.

    >>> part_name(None), part_name(2)
    ('record.jsonl', 'record-2.jsonl')
    """
    return "record.jsonl" if part is None else f"record-{part}.jsonl"


class Recorder:
    """Appends lines to one file of a run folder; use it as a context manager.

    Opening an existing record continues it. A last line that was torn by a kill is closed with a
    newline, never cut: what was written stays, and readers drop that one line.

    Args:
        folder: the run folder; made if missing.
        part: None for the main process; a number of its own for each process beside it.

    Raises:
        InputError: the folder cannot be written, or another process is writing the same part.

    >>> import tempfile
    >>> from thinwire.report.record import Note
    >>> with tempfile.TemporaryDirectory() as folder, Recorder(folder) as recorder:
    ...     recorder.write(Note(run="1", time=0.5, text="hello"))
    ...     recorder.path.read_text()
    '{"kind":"note","run":"1","time":0.5,"text":"hello"}\\n'
    """

    def __init__(self, folder: str | os.PathLike[str], part: int | None = None):
        self.path = Path(folder) / part_name(part)
        self._encode = msgspec.json.Encoder().encode
        self._file = _open_appending(self.path)

    def write(self, line: Line) -> None:
        """Append one line; it is with the operating system when this returns."""
        _write_all(self._file, self._encode(line) + b"\n")

    def write_many(self, lines: Iterable[Line]) -> None:
        """Append lines in one write, for the many spans of a run."""
        _write_all(self._file, b"".join(self._encode(line) + b"\n" for line in lines))

    def close(self) -> None:
        """Flush to the disk and release the file; closing twice is harmless."""
        if self._file >= 0:
            os.fsync(self._file)
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _open_appending(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise InputError(
            f"run folder = {str(path.parent)!r} cannot be written ({error.strerror}); "
            "give a folder that you may write to"
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        raise InputError(
            f"{path} is being written by another run; give this run a folder of its own"
        ) from error
    size = os.fstat(file).st_size
    if size and os.pread(file, _TAIL, size - _TAIL) != b"\n":
        _write_all(file, b"\n")
    return file


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
