"""What handling sparse entries costs a node, in bytes moved at its memory rate.

One source for the virtual clock (`compress/cost.py`) and the closed forms (`planner/predict.py`,
which loads no torch). The figures are times of our CPU kernels over the rate at which the same
machine reads memory, so most are far above one: sorting and scattering are slower than reading.
`benchmarks/selection.py` measures the selection; docs/plan.md says what each comes from.
"""

from __future__ import annotations

import functools
import math

__all__ = [
    "CODED_FROM",
    "CODE_PASSES",
    "KERNELS",
    "MERGE_PASSES",
    "SCATTER_PASSES",
    "SELECT_PASSES",
    "SELECT_SAMPLE",
    "SELECT_SMALL_PASSES",
    "STEP_PASSES",
    "code_bytes",
    "coded_size",
    "merge_bytes",
    "packed_code_bytes",
    "packed_size",
    "scatter_bytes",
    "selection_bytes",
    "step_bytes",
]

KERNELS = {
    "select": "error feedback and top-k selection",
    "scan": "error feedback and selection by a known threshold",
    "merge": "merging two sparse sets and cutting the sum",
    "scatter": "adding sparse entries into a dense vector",
    "momentum": "momentum on a vector before it is selected from",
    "quantise": "rounding a vector to a few levels",
    "dequantise": "quantised vectors back to numbers",
    "factor": "a step of low-rank factors",
    "step": "the optimizer's step",
    "code": "coding sorted indices, or reading them again",
}
"""Kinds of memory-bound work that a node may do at rates of their own (`Node.kernel_rates`)."""

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

CODE_PASSES = 40
"""Over the 8-byte entries whose indices are coded, or read again: 22 ns an entry where memory moved
14.5 GB/s."""

CODED_FROM = 4096
"""Entries of a set from which on gtopk codes their indices, unless told otherwise. Coding it and
reading it again is 0.2 ms then; the bytes saved take 0.8 ms at 100 Mbit/s, 0.1 at 1 Gbit/s."""

STEP_PASSES = 5
"""Over the parameters: an optimizer's step reads the direction, reads and writes parameters and
momentum."""

_VALUE, _ENTRY = 4, 8
_MAX_PARAMETER = 40


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


def code_bytes(num_entries: int) -> float:
    """Coding the indices of this many entries, or reading them again."""
    return float(CODE_PASSES * _ENTRY * num_entries)


@functools.cache
def coded_size(count: int, numel: int) -> int:
    """Bytes that the code of so many indices (`compress.indices`), drawn uniformly, is expected to
    occupy.

    Args:
        count: 0..numel.
        numel: elements of the vector.

    >>> coded_size(25_557, 25_557_032)
    36726
    """
    head = 2 + max(0, count.bit_length() - 1) // 7
    if count in (0, numel):
        return head
    share = count / numel
    best = min(
        parameter + 1 / -math.expm1(2**parameter * math.log1p(-share))
        for parameter in range(_MAX_PARAMETER + 1)
    )
    return head + math.ceil(count * best / 8)


def packed_size(count: int, numel: int) -> int:
    """Bytes that sparse sets of so many entries occupy, unless told otherwise.

    >>> packed_size(100, 100_000), packed_size(25_557, 25_557_032)
    (800, 138954)
    """
    return _VALUE * count + coded_size(count, numel) if count >= CODED_FROM else _ENTRY * count


def packed_code_bytes(count: int) -> float:
    """`code_bytes` of a set, where `packed_size` has it coded.

    >>> packed_code_bytes(100), packed_code_bytes(25_557) == code_bytes(25_557)
    (0.0, True)
    """
    return code_bytes(count) if count >= CODED_FROM else 0.0


def step_bytes(numel: int, itemsize: int = _VALUE) -> float:
    """An optimizer's step on so many parameters."""
    return float(STEP_PASSES * itemsize * numel)
