"""Reading a record: typed lines, grouped by run.

What cannot be read is dropped with a warning that names file and line: a line torn by a kill, or
one whose fields have wrong types. Unknown kinds and fields come from a newer thinwire and are
skipped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import msgspec

from thinwire.errors import InputError
from thinwire.report.record import SCHEMA, End, Eval, Header, Line, Note, Run, Span, Step

__all__ = ["Follower", "Record", "RunRecord", "read_record"]

_LINE: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)
_KINDS: dict[str, type[msgspec.Struct]] = {
    str(struct.__struct_config__.tag): struct for struct in get_args(Line)
}


class _Kind(msgspec.Struct):
    kind: str = ""
    schema: int = SCHEMA


@dataclass(kw_only=True)
class RunRecord:
    """One run: its start, its lines in the order of writing, and its end (None: it never ended)."""

    start: Run
    steps: list[Step] = field(default_factory=list)
    evals: list[Eval] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    end: End | None = None

    @property
    def status(self) -> str:
        """ "ok", "failed" or "interrupted"; a run without an end was interrupted."""
        return "interrupted" if self.end is None else self.end.status

    @property
    def time(self) -> float:
        """Seconds on the run's clock at its last line."""
        if self.end is not None:
            return self.end.time
        last = [lines[-1].time for lines in (self.steps, self.evals) if lines]
        return max(last, default=0.0)


@dataclass(kw_only=True)
class Record:
    """A run folder as read.

    Attributes:
        headers: one per command that wrote here; a resumed comparison has several.
        runs: one per label and seed, in the order in which they are to be shown.
        warnings: what was dropped, and where.
        superseded: how many earlier tries of a run were left out, because it was run again.
    """

    folder: Path
    headers: list[Header]
    runs: list[RunRecord]
    warnings: list[str] = field(default_factory=list)
    superseded: int = 0

    @property
    def header(self) -> Header:
        """The first header: what was asked for."""
        return self.headers[0]

    @property
    def labels(self) -> list[str]:
        """The methods compared, in the order in which they are to be shown."""
        return list(dict.fromkeys(run.start.label for run in self.runs))

    def of(self, label: str) -> list[RunRecord]:
        """The runs of one method, by seed."""
        found = [run for run in self.runs if run.start.label == label]
        return sorted(found, key=lambda run: run.start.seed)

    def done(self) -> set[tuple[str, int]]:
        """(label, seed) of every run that ended well: what a resumed comparison need not run."""
        return {(run.start.label, run.start.seed) for run in self.runs if run.status == "ok"}


def read_record(folder: str | os.PathLike[str]) -> Record:
    """Read a run folder: `record.jsonl` and every part beside it.

    Args:
        folder: the run folder (or its `record.jsonl`).

    Raises:
        InputError: no such folder, no record in it, no header, or another schema.
    """
    path = Path(folder)
    path = path.parent if path.name == "record.jsonl" else path
    warnings: list[str] = []
    headers: list[Header] = []
    tries: list[RunRecord] = []
    for file in _files(path):
        running: dict[str, RunRecord] = {}  # the lines of one run are all in one file
        for line in _lines(file, warnings):
            if isinstance(line, Header):
                headers.append(line)
            elif isinstance(line, Run):
                running[line.run] = RunRecord(start=line)
                tries.append(running[line.run])
            elif line.run in running:
                _add(running[line.run], line)
    if not headers:
        raise InputError(
            f"{path / 'record.jsonl'} holds no header line, so nothing can be read from it; "
            "the run was stopped before it began: run it again"
        )
    kept = _best_tries(tries)
    return Record(
        folder=path,
        headers=headers,
        runs=_in_order(kept, headers),
        warnings=warnings,
        superseded=len(tries) - len(kept),
    )


class Follower:
    """Reads what was appended to a run folder since the last look, for a live display.

    Args:
        folder: the run folder; it may still be empty.
        from_end: leave out what is there already (a resumed comparison).
    """

    def __init__(self, folder: str | os.PathLike[str], from_end: bool = False):
        self._folder = Path(folder)
        self._offsets: dict[Path, int] = {}
        if from_end:
            for file in sorted(self._folder.glob("record*.jsonl")):
                self._offsets[file] = file.stat().st_size

    def poll(self) -> list[Line]:
        """The complete lines written since the last call; a half-written one waits."""
        found: list[Line] = []
        for file in sorted(self._folder.glob("record*.jsonl")):
            offset = self._offsets.get(file, 0)
            if file.stat().st_size == offset:
                continue
            with file.open("rb") as stream:
                stream.seek(offset)
                data = stream.read()
            whole = data.rfind(b"\n") + 1
            self._offsets[file] = offset + whole
            for number, raw in enumerate(data[:whole].splitlines(), start=1):
                line = _decode(raw, file, number, [])
                if line is not None:
                    found.append(line)
        return found


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise InputError(
            f"run folder = {str(folder)!r} does not exist; give the folder that "
            "`thinwire compare` or `thinwire run` named at its end"
        )
    main = folder / "record.jsonl"
    parts = [
        (int(match.group(1)), file)
        for file in folder.iterdir()
        if (match := re.fullmatch(r"record-(\d+)\.jsonl", file.name))
    ]
    if not main.is_file():
        raise InputError(
            f"run folder = {str(folder)!r} holds no record.jsonl; give the folder that "
            "`thinwire compare` or `thinwire run` named at its end"
        )
    return [main, *(file for _, file in sorted(parts))]


def _lines(file: Path, warnings: list[str]) -> Iterator[Line]:
    with file.open("rb") as stream:
        for number, raw in enumerate(stream, start=1):
            if raw.strip():
                line = _decode(raw, file, number, warnings)
                if line is not None:
                    yield line


def _decode(raw: bytes, file: Path, number: int, warnings: list[str]) -> Line | None:
    try:
        line = _LINE.decode(raw)
    except msgspec.ValidationError as error:
        return _decode_slowly(raw, file, number, str(error), warnings)
    except (msgspec.DecodeError, UnicodeDecodeError):
        torn = "" if raw.endswith(b"\n") else "last "
        warnings.append(f"{file.name}:{number}: the {torn}line is torn and was dropped")
        return None
    if isinstance(line, Header) and line.schema != SCHEMA:
        raise InputError(_wrong_schema(file, number, line.schema))
    return line


def _decode_slowly(
    raw: bytes, file: Path, number: int, problem: str, warnings: list[str]
) -> Line | None:
    """A line that does not fit: an unknown kind, another schema, a NaN (null in JSON), or wrong."""
    try:
        head = msgspec.json.decode(raw, type=_Kind)
    except msgspec.ValidationError:
        head = _Kind()
    if head.kind == "header" and head.schema != SCHEMA:
        raise InputError(_wrong_schema(file, number, head.schema))
    struct = _KINDS.get(head.kind)
    if head.kind and struct is None:
        return None
    if struct is not None:
        fields: dict[str, Any] = msgspec.json.decode(raw)
        filled = {key: float("nan") if value is None else value for key, value in fields.items()}
        try:
            return msgspec.convert(filled, struct)  # pyright: ignore[reportReturnType]
        except msgspec.ValidationError:
            pass
    warnings.append(f"{file.name}:{number}: the line was dropped: {problem}")
    return None


def _wrong_schema(file: Path, number: int, schema: int) -> str:
    what = "upgrade thinwire" if schema > SCHEMA else "read it with the thinwire that wrote it"
    return f"{file}:{number}: schema = {schema}; this thinwire reads schema {SCHEMA}: {what}"


def _add(run: RunRecord, line: Line) -> None:
    if isinstance(line, Step):
        run.steps.append(line)
    elif isinstance(line, Eval):
        run.evals.append(line)
    elif isinstance(line, Span):
        run.spans.append(line)
    elif isinstance(line, Note):
        run.notes.append(line)
    elif isinstance(line, End):
        run.end = line


def _best_tries(tries: list[RunRecord]) -> list[RunRecord]:
    """Of several tries of one (label, seed): one that ended well, else a failed one; the later."""
    rank = {"ok": 2, "failed": 1}
    best: dict[tuple[str, int], RunRecord] = {}
    for run in tries:
        key = run.start.label, run.start.seed
        if key not in best or rank.get(run.status, 0) >= rank.get(best[key].status, 0):
            best[key] = run
    return list(best.values())


def _in_order(runs: list[RunRecord], headers: list[Header]) -> list[RunRecord]:
    """As asked for on the command line; parts written side by side would mix the order."""
    asked = headers[0].settings.get("methods")
    labels = [str(label) for label in asked] if isinstance(asked, list) else []
    labels = list(dict.fromkeys([*labels, *(run.start.label for run in runs)]))
    return sorted(runs, key=lambda run: (labels.index(run.start.label), run.start.seed))
