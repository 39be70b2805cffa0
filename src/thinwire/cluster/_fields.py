"""Checks of single fields, and the error that remembers which field was wrong.

The specification classes know nothing of files. `FieldError` carries the path of the offending
field, so that the TOML reader can name the line it came from.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

from thinwire.errors import InputError

__all__ = ["FieldError", "Path", "check_name", "check_number", "check_whole"]

Path: TypeAlias = tuple[str | int, ...]


class FieldError(InputError):
    """A field of a specification was rejected.

    Args:
        path: the field, from the rejecting object inwards: ("slowdown",), ("nodes", 3, "site").
        message: the whole text for the user.
    """

    def __init__(self, path: Path, message: str):
        super().__init__(message)
        self.path = path


def check_number(
    key: str,
    value: Any,
    unit: str,
    *,
    at_least: float = 0.0,
    above: float | None = None,
    below: float | None = None,
) -> None:
    """Reject what is no finite number in the given range.

    Args:
        key: the field's name.
        value: what was given.
        unit: what it counts, for the message ("bytes per second").
        at_least: smallest allowed value; not looked at when `above` is given.
        above: largest value that is too small.
        below: smallest value that is too large.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FieldError(
            (key,), f"{key} = {value!r}: must be a number ({unit}); thinwire.units reads text"
        )
    low = f"above {above:g}" if above is not None else f"{at_least:g} or more"
    good = value > above if above is not None else value >= at_least
    high = "" if below is None else f" and below {below:g}"
    if not (math.isfinite(value) and good and (below is None or value < below)):
        raise FieldError((key,), f"{key} = {value!r}: must be finite, {low}{high} ({unit})")


def check_whole(key: str, value: Any, what: str) -> None:
    """Reject what is no whole number of 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise FieldError((key,), f"{key} = {value!r}: must be a whole number, 1 or more ({what})")


def check_name(key: str, value: Any) -> None:
    """Reject what is no printable, non-empty text without space around it."""
    good = isinstance(value, str) and value.isprintable() and value.strip() == value and value
    if not good:
        raise FieldError(
            (key,), f"{key} = {value!r}: must be printable text, not empty, no space at its ends"
        )
