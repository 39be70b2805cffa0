"""What a conformance suite finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Finding", "finding"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One promise: whether it is kept, and if not what happened and what to look at."""

    promise: str
    kept: bool
    detail: str = ""


def finding(promise: str, check: Callable[[], object]) -> Finding:
    """Run a check, which raises where the promise is not kept."""
    try:
        check()
    except AssertionError as error:
        return Finding(promise=promise, kept=False, detail=str(error))
    except Exception as error:
        return Finding(promise=promise, kept=False, detail=f"{type(error).__name__}: {error}")
    return Finding(promise=promise, kept=True)
