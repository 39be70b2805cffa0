"""What selecting entries costs a node, for the virtual clock."""

from __future__ import annotations

from thinwire.wire.base import Work

__all__ = ["selection_work"]

SELECTION_PASSES = 8
"""Passes of 4 bytes over the whole vector: add the gradient into the memory (3), magnitudes and
threshold (2), gather the chosen (1), clear them and scatter the result (2)."""


def selection_work(numel: int) -> Work:
    """The work of error feedback, top-k selection and put-back on a vector of float32.

    >>> selection_work(1000).memory_bytes
    32000.0
    """
    return Work(memory_bytes=4.0 * SELECTION_PASSES * numel)
