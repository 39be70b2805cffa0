"""Randomness of codecs: a seed for each call, and places drawn by hashing.

Hashing, and not a library's generator, because all ranks must draw the same places whatever
versions they have installed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thinwire.errors import InputError

__all__ = ["Calls", "stratified"]


@dataclass
class Calls:
    """The state of a codec that draws: how often it was called; belongs into a checkpoint.

    Args:
        count: calls that succeeded.
    """

    count: int = 0


def stratified(numel: int, count: int, seed: int) -> np.ndarray:
    """One place from each of `count` ranges of a vector, as equal in length as can be.

    Every element is drawn with the same probability when `count` divides `numel`, and with nearly
    the same otherwise; two of one range never are drawn together.

    Args:
        numel: >= count.
        count: >= 1.
        seed: 0..2^63-1.

    Returns:
        `count` indices, int64, rising strictly.

    >>> stratified(10, 10, 7).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    if not 1 <= count <= numel:
        raise InputError(f"count = {count!r} of {numel} elements; valid: 1..{numel}")
    length, longer = divmod(numel, count)
    place = np.arange(count, dtype=np.int64)
    start = place * length + np.minimum(place, longer)
    lengths = (length + (place < longer)).astype(np.uint64)
    return start + (_hash(place.astype(np.uint64), seed) % lengths).astype(np.int64)


def _hash(x: np.ndarray, seed: int) -> np.ndarray:
    """SplitMix64: output x of the sequence that begins at the seed (Steele, Lea, Flood 2014)."""
    x = np.uint64(seed) + (x + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
