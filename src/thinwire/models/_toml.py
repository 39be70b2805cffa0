"""Reading and writing the TOML files of this package."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from thinwire.errors import InputError

__all__ = ["parsed", "quoted", "text_of"]

T = TypeVar("T")


def parsed(text: str, kind: type[T], source: str, *, strict: bool = True) -> T:
    """A file's text as a struct.

    Args:
        text: the TOML.
        kind: a struct type of msgspec.
        source: named in errors.
        strict: whether a string doesn't do for a number.

    Raises:
        InputError: not TOML, a missing or unknown key, a value of another type.
    """
    try:
        return msgspec.convert(tomllib.loads(text), kind, strict=strict)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{source}: not TOML: {error}") from None
    except msgspec.ValidationError as error:
        raise InputError(f"{source}: {error}") from None


def text_of(path: str | Path) -> str:
    """A file's text.

    Raises:
        InputError: it can't be read.
    """
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None


def quoted(value: Any) -> str:
    """A string or a list as TOML writes it."""
    # JSON's escapes are TOML's too, except that TOML wants DEL escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
