"""What handling sparse entries costs a node, for the virtual clock.

Each figure is the number of times the data could be read at the node's memory rate in the time that
a good CPU kernel takes; sorting and scattering are slower than reading, so most are far above one.
Those that the planner needs too are in `thinwire.passes`, which loads no torch.
"""

from __future__ import annotations

from thinwire.passes import code_bytes, merge_bytes, scatter_bytes, selection_bytes
from thinwire.wire.base import Work

__all__ = ["DEQUANTISE_PASSES", "FACTOR_PASSES", "QUANTISE_PASSES", "SCAN_PASSES",
           "code_work", "dequantise_work", "factor_work", "merge_work", "momentum_work",
           "quantise_work", "scan_work", "scatter_work", "selection_work"]  # fmt: skip

QUANTISE_PASSES = 65
"""Over the 4-byte vector that is rounded at random; most goes into the random numbers."""

DEQUANTISE_PASSES = 15
"""Over the 4-byte vector that comes of a quantised one."""

FACTOR_PASSES = 8
"""Over the 4-byte matrix, for each column of its factors: M q 2, transposed 3, two products 3."""

SCAN_PASSES = 6
"""Over the 4-byte vector: look at the gradient 1, add it to the memory 3, collect what passes a
known threshold 2."""

_MOMENTUM_PASSES = 4
"""Over the 4-byte velocity: scale it, add the gradient."""

_VALUE = 4


def selection_work(numel: int) -> Work:
    """Error feedback and top-k selection on a vector.

    >>> selection_work(1000).memory_bytes
    172000.0
    """
    return Work(memory_bytes=selection_bytes(numel), kind="select")


def merge_work(num_entries: int) -> Work:
    """Merging two sets of this many entries together, and cutting the sum."""
    return Work(memory_bytes=merge_bytes(num_entries), kind="merge")


def code_work(num_entries: int) -> Work:
    """Coding the indices of this many entries, or reading them again."""
    return Work(memory_bytes=code_bytes(num_entries), kind="code")


def scatter_work(num_entries: int) -> Work:
    """Adding this many entries into a dense vector."""
    return Work(memory_bytes=scatter_bytes(num_entries), kind="scatter")


def scan_work(numel: int) -> Work:
    """Error feedback, and selection by a threshold that is known."""
    return Work(memory_bytes=float(SCAN_PASSES * _VALUE * numel), kind="scan")


def momentum_work(numel: int) -> Work:
    """Momentum on a vector before it is selected from."""
    return Work(memory_bytes=float(_MOMENTUM_PASSES * _VALUE * numel), kind="momentum")


def quantise_work(numel: int) -> Work:
    """Rounding a vector to a few levels at random."""
    return Work(memory_bytes=float(QUANTISE_PASSES * _VALUE * numel), kind="quantise")


def dequantise_work(numel: int) -> Work:
    """Quantised vectors of this many elements together, back to numbers and summed."""
    return Work(memory_bytes=float(DEQUANTISE_PASSES * _VALUE * numel), kind="dequantise")


def factor_work(numel: int, rank: int) -> Work:
    """Error feedback on matrices of this many elements, and PowerSGD's step on them."""
    return Work(memory_bytes=float((3 + FACTOR_PASSES * rank) * _VALUE * numel), kind="factor")
