"""The compiled kernels, or None where numba does not work: every caller has a way without."""

from __future__ import annotations

import functools
from types import ModuleType

__all__ = ["kernels"]


@functools.cache
def kernels() -> ModuleType | None:
    """`thinwire.compress._numba`. The first call takes as long as loading numba does, and once per
    installation as long as compiling: call it before what is timed.

    numba raises RuntimeError where it finds no folder to keep compiled code in.
    """
    try:
        from thinwire.compress import _numba
    except (ImportError, RuntimeError):
        return None
    return _numba
