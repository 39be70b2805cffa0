"""What handling sparse entries costs a node, in bytes moved at its memory rate.

One source for the virtual clock (`compress/cost.py`) and the closed forms (`planner/predict.py`,
which loads no torch). The figures are times of our CPU kernels over the rate at which the same
machine reads memory, so most are far above one: sorting and scattering are slower than reading.
`benchmarks/selection.py` measures the selection; docs/plan.md says what each comes from.
"""

from __future__ import annotations

__all__ = [
    "MERGE_PASSES",
    "SCATTER_PASSES",
    "SELECT_PASSES",
    "SELECT_SAMPLE",
    "SELECT_SMALL_PASSES",
    "merge_bytes",
    "scatter_bytes",
    "selection_bytes",
]

SELECT_PASSES = 7
"""Over the 4-byte vector: add the gradient to the memory, collect what passes a threshold, put the
rest back."""

SELECT_SAMPLE = 32e6
"""Bytes, whatever the size: finding the threshold from a sample."""

SELECT_SMALL_PASSES = 43
"""Over a 4-byte vector so small that all of it is partitioned instead."""

MERGE_PASSES = 175
"""Over the two sets of 8-byte entries that one top-k merge sorts and cuts."""

SCATTER_PASSES = 20
"""Over the 8-byte entries that are added into the dense vector at random places."""

_VALUE, _ENTRY = 4, 8


def selection_bytes(numel: int) -> float:
    """Error feedback and top-k selection on a vector.

    >>> selection_bytes(1000), selection_bytes(25_000_000)
    (172000.0, 732000000.0)
    """
    whole = float(SELECT_SMALL_PASSES * _VALUE * numel)
    return min(whole, SELECT_PASSES * _VALUE * numel + SELECT_SAMPLE)


def merge_bytes(num_entries: int) -> float:
    """Merging two sets of this many entries together, and cutting the sum."""
    return float(MERGE_PASSES * _ENTRY * num_entries)


def scatter_bytes(num_entries: int) -> float:
    """Adding this many entries into a dense vector."""
    return float(SCATTER_PASSES * _ENTRY * num_entries)
