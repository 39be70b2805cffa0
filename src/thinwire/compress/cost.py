"""What handling sparse entries costs a node, for the virtual clock.

Each figure is the number of times the data could be read at the node's memory rate in the time that
a good CPU kernel takes; sorting and scattering are slower than reading, so most are far above one.
`planner/predict.py` holds the same numbers, so that it need not load torch; a test compares them.
"""

from __future__ import annotations

from thinwire.wire.base import Work

__all__ = ["MERGE_PASSES", "SCATTER_PASSES", "SELECT_PASSES", "merge_work", "scatter_work",
           "selection_work"]  # fmt: skip

SELECT_PASSES = 16
"""Over the 4-byte vector: add the gradient to the memory 3, select by threshold 11, put back 2."""

MERGE_PASSES = 175
"""Over the two sets of 8-byte entries that one top-k merge sorts and cuts."""

SCATTER_PASSES = 20
"""Over the 8-byte entries that are added into the dense vector at random places."""

_VALUE, _ENTRY = 4, 8


def selection_work(numel: int) -> Work:
    """Error feedback and top-k selection on a vector.

    >>> selection_work(1000).memory_bytes
    64000.0
    """
    return Work(memory_bytes=float(SELECT_PASSES * _VALUE * numel))


def merge_work(num_entries: int) -> Work:
    """Merging two sets of this many entries together, and cutting the sum."""
    return Work(memory_bytes=float(MERGE_PASSES * _ENTRY * num_entries))


def scatter_work(num_entries: int) -> Work:
    """Adding this many entries into a dense vector."""
    return Work(memory_bytes=float(SCATTER_PASSES * _ENTRY * num_entries))
