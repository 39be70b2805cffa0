"""Medians, spread and drift of repeated measurements."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

__all__ = ["Spread", "drift_of", "spread_of"]

_NORMAL_IQR = 1.349


class Spread(msgspec.Struct, kw_only=True, frozen=True):
    """Repeated measurements of one thing, in its unit.

    Attributes:
        median: 0 where there is none.
        low: lower quartile.
        high: upper quartile.
        count: of measurements.
    """

    median: float = 0.0
    low: float = 0.0
    high: float = 0.0
    count: int = 0

    @property
    def relative(self) -> float:
        """Standard deviation over the median, as the quartiles tell it of normal values: a few
        disturbed measurements don't count."""
        return (self.high - self.low) / _NORMAL_IQR / self.median if self.median else 0.0


def spread_of(values: Sequence[float]) -> Spread:
    """Median and quartiles.

    >>> spread_of([3.0, 1.0, 2.0])
    Spread(median=2.0, low=1.5, high=2.5, count=3)
    """
    if not values:
        return Spread()
    if len(values) == 1:
        return Spread(median=values[0], low=values[0], high=values[0], count=1)
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median=median, low=low, high=high, count=len(values))


def drift_of(values: Sequence[float]) -> float | None:
    """By how much the last third's median is above the first third's, relative; None of fewer than
    nine values.

    >>> drift_of([1.0] * 4 + [1.25] * 4 + [1.5] * 4)
    0.5
    """
    third = len(values) // 3
    if third < 3:
        return None
    first, last = statistics.median(values[:third]), statistics.median(values[-third:])
    return last / first - 1.0
