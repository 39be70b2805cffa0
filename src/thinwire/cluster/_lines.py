"""The line on which each key of a TOML text stands.

tomllib reads values without their positions, and a message about a cluster file must name the line.
This walks the text once more, skipping values: it may assume valid TOML, for tomllib has read it.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left
from collections.abc import Mapping

from thinwire.cluster._fields import Path

__all__ = ["line_of", "toml_lines"]

_SPACE = re.compile(r"[ \t]*")
_BLANK = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}' r"|'''.*?'{3,5}" r'|"(?:[^"\\]|\\.)*"' r"|'[^']*'", re.DOTALL
)
_SCALAR = re.compile(r"[^,\]}\n#]+")


def toml_lines(text: str) -> dict[Path, int]:
    """Lines, from 1, by path: keys, tables, and the elements of arrays.

    Args:
        text: valid TOML.

    >>> toml_lines('a = [1,\\n 2]\\n[[b]]\\nc = 3')
    {('a',): 1, ('a', 0): 1, ('a', 1): 2, ('b',): 3, ('b', 0): 3, ('b', 0, 'c'): 4}
    """
    return _Walk(text).run()


def line_of(lines: Mapping[Path, int], path: Path) -> int:
    """The line of a path or, where it is not in the text, of the nearest thing around it."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


class _Walk:
    def __init__(self, text: str):
        self._text = text
        self._pos = 0
        self._breaks = [i for i, char in enumerate(text) if char == "\n"]
        self._lines: dict[Path, int] = {}
        self._tables: dict[Path, int] = {}

    def run(self) -> dict[Path, int]:
        table: Path = ()
        while True:
            self._skip(_BLANK)
            if self._pos >= len(self._text):
                return self._lines
            if self._text[self._pos] == "[":
                table = self._header()
            else:
                self._pair(table)

    def _skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._pos)
        assert found is not None, f"unexpected TOML at {self._pos}"
        self._pos = found.end()
        return found[0]

    def _mark(self, path: Path, pos: int) -> None:
        self._lines.setdefault(path, bisect_left(self._breaks, pos) + 1)

    def _key(self) -> list[str]:
        parts: list[str] = []
        while True:
            self._skip(_SPACE)
            if self._text[self._pos] in "\"'":
                quoted = self._skip(_STRING)
                parts.append(tomllib.loads(f"key = {quoted}")["key"])
            else:
                parts.append(self._skip(_BARE_KEY))
            self._skip(_SPACE)
            if self._text[self._pos] != ".":
                return parts
            self._pos += 1

    def _header(self) -> Path:
        start = self._pos
        double = self._text.startswith("[[", start)
        self._pos += 2 if double else 1
        *outer, last = self._key()
        self._pos += 2 if double else 1
        path: Path = ()
        for part in outer:
            path = self._inside((*path, part), start)
        path = (*path, last)
        self._mark(path, start)
        if double:
            self._tables[path] = self._tables.get(path, -1) + 1
        return self._inside(path, start)

    def _inside(self, path: Path, pos: int) -> Path:
        """The path, in the current element where it is an array of tables."""
        self._mark(path, pos)
        if path in self._tables:
            path = (*path, self._tables[path])
            self._mark(path, pos)
        return path

    def _pair(self, table: Path) -> None:
        start, path = self._pos, table
        for part in self._key():
            path = (*path, part)
            self._mark(path, start)
        self._pos += 1
        self._skip(_SPACE)
        self._value(path)

    def _value(self, path: Path) -> None:
        char = self._text[self._pos]
        if char == "[":
            self._array(path)
        elif char == "{":
            self._inline_table(path)
        else:
            self._skip(_STRING if char in "\"'" else _SCALAR)

    def _array(self, path: Path) -> None:
        self._pos += 1
        index = 0
        while True:
            self._skip(_BLANK)
            if self._text[self._pos] == "]":
                break
            if self._text[self._pos] == ",":
                self._pos += 1
                continue
            self._mark((*path, index), self._pos)
            self._value((*path, index))
            index += 1
        self._pos += 1

    def _inline_table(self, path: Path) -> None:
        self._pos += 1
        while True:
            self._skip(_BLANK)
            if self._text[self._pos] == "}":
                break
            if self._text[self._pos] == ",":
                self._pos += 1
                continue
            self._pair(path)
        self._pos += 1
