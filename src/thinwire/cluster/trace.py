"""A quantity that changes over time in steps: the speed of a node, the rate of a link."""

from __future__ import annotations

import csv
import math
import os
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from thinwire.cluster._fields import FieldError, check_number
from thinwire.errors import InputError

__all__ = ["Trace"]

_NS = 10**9
# A billion billion rounds of a nanosecond are 30 years: whoever needs more never finishes.
_MAX_ROUNDS = 1e18


def _to_ns(seconds: float) -> int:
    return round(seconds * _NS)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A piecewise constant function of time.

    `values[i]` holds from `times[i]` (included) to `times[i + 1]` (excluded), the last one for ever
    or until the trace begins again. Changes happen on whole nanoseconds, the grid of virtual time:
    `at(next_change(t))` is always the new value, also after a detour over integers.

    Args:
        times: seconds, rising from 0 by at least a nanosecond each.
        values: factors, finite, 0 or more, one for each time.
        period: seconds after which the trace repeats, beyond the last time; None: never.

    >>> busy = Trace(times=(0.0, 10.0), values=(1.0, 0.5), period=20.0)
    >>> busy.at(5.0), busy.at(10.0), busy.at(25.0)
    (1.0, 0.5, 1.0)
    >>> busy.next_change(10.0), busy.finish(8.0, 3.0)
    (20.0, 12.0)
    """

    times: tuple[float, ...]
    values: tuple[float, ...]
    period: float | None = None

    def __post_init__(self) -> None:
        if not self.times or len(self.times) != len(self.values):
            raise FieldError(
                ("values",),
                f"a trace needs as many values as times, at least one: it has {len(self.times)} "
                f"times and {len(self.values)} values",
            )
        for time, value in zip(self.times, self.values, strict=True):
            check_number("times", time, "seconds")
            check_number("values", value, "a factor")
        if self.times[0] != 0:
            raise FieldError(("times",), f"times begin at {self.times[0]!r}: must begin at 0")
        for before, after in zip(self.times, self.times[1:], strict=False):
            if _to_ns(after) <= _to_ns(before):
                raise FieldError(
                    ("times",),
                    f"times {before!r}, {after!r}: must rise by at least a nanosecond each",
                )
        if self.period is not None:
            check_number("period", self.period, "seconds")
            if _to_ns(self.period) <= _to_ns(self.times[-1]):
                raise FieldError(
                    ("period",),
                    f"period = {self.period!r}: must be beyond the last time, {self.times[-1]!r}",
                )

    @classmethod
    def from_csv(
        cls, path: str | os.PathLike[str], scale: float = 1.0, period: float | None = None
    ) -> Trace:
        """Read a CSV file with the columns `time_s,value` (this header, in this order).

        Args:
            path: the file.
            scale: multiplies every value: 0.01 makes factors of percentages.
            period: as of the class.

        Raises:
            InputError: names file and line.
        """
        check_number("scale", scale, "a factor", above=0.0)
        rows = _read_csv(Path(path))
        times = tuple(time for time, _ in rows)
        values = tuple(value * scale for _, value in rows)
        try:
            return cls(times=times, values=values, period=period)
        except FieldError as error:
            if error.path == ("period",):
                raise
            raise InputError(f"{path}: {error}") from None

    @cached_property
    def _times_ns(self) -> tuple[int, ...]:
        return tuple(map(_to_ns, self.times))

    @cached_property
    def _period_ns(self) -> int | None:
        return None if self.period is None else _to_ns(self.period)

    @cached_property
    def _area(self) -> float:
        """Integral over one period; over everything but the last value without one."""
        ends = (*self._times_ns[1:], self._period_ns or self._times_ns[-1])
        spans = (end - start for start, end in zip(self._times_ns, ends, strict=True))
        return math.fsum(v * (s / _NS) for v, s in zip(self.values, spans, strict=True))

    def _locate(self, time: float) -> tuple[int, int]:
        """Index of the value that holds at `time`, and where its round of the trace began (ns)."""
        now, base = _to_ns(time), 0
        if self._period_ns is not None:
            base = now // self._period_ns * self._period_ns
        return max(bisect_right(self._times_ns, now - base) - 1, 0), base

    def _end_ns(self, index: int, base: int) -> int | None:
        if index + 1 < len(self._times_ns):
            return base + self._times_ns[index + 1]
        return None if self._period_ns is None else base + self._period_ns

    @property
    def always_finishes(self) -> bool:
        """Whether any amount of work is done at some time, whenever it begins."""
        return self._area > 0 if self.period is not None else self.values[-1] > 0

    @property
    def mean(self) -> float:
        """The average over a period; without one, the last value, which holds for ever."""
        return self.values[-1] if self.period is None else self._area / self.period

    def at(self, time: float) -> float:
        """The value at a time (seconds, 0 or more)."""
        return self.values[self._locate(time)[0]]

    def next_change(self, time: float) -> float | None:
        """Seconds at which the next step begins, strictly later (by the nanosecond); None: never.

        A period's end is a step even if the value stays the same.
        """
        end = self._end_ns(*self._locate(time))
        return None if end is None else end / _NS

    def finish(self, start: float, work: float) -> float:
        """When work begun at `start` is done by a worker whose speed is this trace.

        Args:
            start: seconds, 0 or more.
            work: seconds that it would take at a value of 1, 0 or more.

        Returns:
            Seconds at which the integral from `start` reaches `work`; inf if it never does.
        """
        if work <= 0:
            return start
        now, left = start, work
        while True:
            index, base = self._locate(now)
            value, end = self.values[index], self._end_ns(index, base)
            if end is None:
                return now + left / value if value > 0 else math.inf
            done = value * (end / _NS - now)
            if done >= left:
                return min(now + left / value, end / _NS)
            left -= done
            now = end / _NS
            if self._period_ns is not None and end % self._period_ns == 0:
                if left > self._area * _MAX_ROUNDS:
                    return math.inf
                # Whole rounds at once; one is kept back, for the division may round up.
                rounds = max(math.floor(left / self._area) - 1, 0)
                left -= rounds * self._area
                now = (end + rounds * self._period_ns) / _NS


def _read_csv(path: Path) -> list[tuple[float, float]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text: {error}") from None
    rows: list[tuple[float, float]] = []
    reader = csv.reader(text.splitlines())
    header = [cell.strip() for cell in next(reader, [])]
    if header != ["time_s", "value"]:
        raise InputError(
            f"{path}:1: the header is {','.join(header)!r}: it must be 'time_s,value' "
            "(seconds, value)"
        )
    for cells in reader:
        if not cells:
            continue
        try:
            time, value = map(float, cells)
        except ValueError:
            raise InputError(
                f"{path}:{reader.line_num}: {','.join(cells)!r}: must be two numbers, "
                "seconds and value"
            ) from None
        if not (math.isfinite(time) and math.isfinite(value) and time >= 0 and value >= 0):
            raise InputError(
                f"{path}:{reader.line_num}: {','.join(cells)!r}: both must be finite, 0 or more"
            )
        if rows and _to_ns(time) <= _to_ns(rows[-1][0]):
            raise InputError(
                f"{path}:{reader.line_num}: time_s {time!r} does not rise: the line before has "
                f"{rows[-1][0]!r}"
            )
        rows.append((time, value))
    return rows
