"""One table of a TOML text, read key by key; every complaint names the file and the line."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path as FilePath
from typing import Any, NoReturn, TypeVar

from thinwire.cluster._fields import FieldError, Path
from thinwire.cluster._lines import line_of
from thinwire.errors import InputError, nearest

__all__ = ["Source", "Table", "number_of", "text_of", "whole_of"]

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Where a text came from: its name in messages, its lines, the folder of files it names."""

    name: str
    lines: Mapping[Path, int]
    folder: FilePath | None

    def fail(self, path: Path, problem: object) -> NoReturn:
        """Raise an `InputError` that names the place."""
        raise InputError(f"{self.name}:{line_of(self.lines, path)}: {problem}") from None

    def file(self, path: Path, name: str) -> FilePath:
        """The file that a key names, beside the text; it must exist."""
        if self.folder is None:
            self.fail(path, f"file = {name!r}: this text is no file, so it cannot name another")
        file = self.folder / name
        if not file.is_file():
            self.fail(path, f"file = {name!r}: there is no file {file}")
        return file


class Table:
    """One TOML table, each value with the path it was written at (a default's is elsewhere)."""

    def __init__(self, source: Source, path: Path, values: Any):
        if not isinstance(values, dict):
            source.fail(path, f"{path[-1]} = {values!r}: must be a table of keys")
        self.source = source
        self.path = path
        self.items: dict[str, tuple[Any, Path]] = {
            key: (value, (*path, key)) for key, value in values.items()
        }

    def place(self, key: str) -> Path:
        """Where the key was written; the table where it was not."""
        return self.items[key][1] if key in self.items else self.path

    def fail(self, key: str, problem: object) -> NoReturn:
        """Raise an `InputError` at a key."""
        self.source.fail(self.place(key), problem)

    def only(self, valid: tuple[str, ...], what: str) -> None:
        """Reject every key but these."""
        for key in self.items:
            if key not in valid:
                self.fail(key, f"unknown key {key!r} in {what}: {nearest(key, valid)}")

    def get(self, key: str, read: Callable[[Any], T], default: T) -> T:
        """The value as `read` understands it, or the default."""
        if key not in self.items:
            return default
        try:
            return read(self.items[key][0])
        except InputError as error:
            self.fail(key, f"{key}: {error}")

    def need(self, key: str, read: Callable[[Any], T], hint: str) -> T:
        """The value; an error with a hint where it is missing."""
        if key not in self.items:
            self.fail(key, hint)
        value = self.get(key, read, None)
        assert value is not None
        return value

    def table(self, key: str) -> Table | None:
        """The table under a key, None where it is missing."""
        if key not in self.items:
            return None
        value, path = self.items[key]
        return Table(self.source, path, value)

    def tables(self, key: str) -> list[Table]:
        """The array of tables under a key, empty where it is missing."""
        if key not in self.items:
            return []
        value, path = self.items[key]
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            self.fail(key, f"{key} must be an array of tables: write [[{key}]] above each of them")
        return [Table(self.source, (*path, i), item) for i, item in enumerate(value)]

    def build(self, make: Callable[..., T], renamed: Mapping[str, str], **fields: Any) -> T:
        """Make a specification object; a field it rejects is reported at its key.

        Args:
            make: called with the fields.
            renamed: field to key, where they differ.
            fields: what to make it of.
        """
        try:
            return make(**fields)
        except FieldError as error:
            key = str(error.path[0])
            self.fail(renamed.get(key, key), error)


def text_of(value: Any) -> str:
    """A reader of text."""
    if not isinstance(value, str):
        raise InputError(f"{value!r} must be text")
    return value


def number_of(value: Any) -> float:
    """A reader of numbers, whole or not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{value!r} must be a number without a unit")
    return float(value)


def whole_of(value: Any) -> int:
    """A reader of whole numbers."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{value!r} must be a whole number")
    return value
