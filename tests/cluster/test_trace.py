from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from thinwire.cluster import Trace
from thinwire.errors import InputError


def random_trace(rng: random.Random, periodic: bool) -> Trace:
    n = rng.randrange(1, 6)
    times = [0.0]
    for _ in range(n - 1):
        times.append(times[-1] + rng.choice([0.1, 1 / 3, 0.7, 2.5]))
    values = [rng.choice([0.0, 0.25, 0.3, 1.0, 2.0]) for _ in range(n - 1)] + [0.5]
    period = times[-1] + rng.choice([0.1, 1 / 3, 4.0]) if periodic else None
    return Trace(times=tuple(times), values=tuple(values), period=period)


def integral(trace: Trace, start: float, end: float) -> float:
    total, now = 0.0, start
    while now < end:
        change = trace.next_change(now)
        stop = end if change is None else min(change, end)
        total += trace.at(now) * (stop - now)
        now = stop
    return total


@pytest.mark.parametrize("periodic", [False, True])
def test_finish_is_where_the_integral_reaches_the_work(periodic: bool):
    rng = random.Random(3)
    for _ in range(200):
        trace = random_trace(rng, periodic)
        start, work = rng.uniform(0, 9), rng.uniform(0.001, 20)
        end = trace.finish(start, work)
        assert integral(trace, start, end) == pytest.approx(work, rel=1e-9)


def test_a_value_holds_from_its_time_until_the_next():
    trace = Trace(times=(0.0, 1.0, 3.0), values=(1.0, 2.0, 0.5))
    assert [trace.at(t) for t in (0, 0.999, 1.0, 2.9, 3.0, 1e6)] == [1.0, 1.0, 2.0, 2.0, 0.5, 0.5]
    assert [trace.next_change(t) for t in (0.0, 1.0, 2.0, 3.0)] == [1.0, 3.0, 3.0, None]


def test_walking_by_next_change_meets_every_step_even_over_integer_nanoseconds():
    trace = Trace(times=(0.0, 0.1, 1 / 3), values=(1.0, 2.0, 3.0), period=0.7)
    now, seen = 0.0, []
    for _ in range(3000):
        seen.append(trace.at(now))
        change = trace.next_change(now)
        assert change is not None
        assert change > now
        now = round(change * 1e9) / 1e9
    assert seen == [1.0, 2.0, 3.0] * 1000


def test_work_through_many_periods_takes_its_mean_speed():
    trace = Trace(times=(0.0, 10.0), values=(1.0, 0.5), period=20.0)
    assert trace.finish(0.0, 15.0 * 10**6) == pytest.approx(20.0 * 10**6, rel=1e-12)
    assert trace.mean == 0.75


def test_no_work_is_done_at_once():
    assert Trace(times=(0.0,), values=(0.0,)).finish(3.5, 0.0) == 3.5


def test_a_speed_of_zero_waits_for_the_next_step():
    trace = Trace(times=(0.0, 5.0), values=(0.0, 2.0))
    assert trace.finish(1.0, 4.0) == 7.0


def test_work_that_is_never_done_finishes_at_infinity():
    ends = Trace(times=(0.0, 5.0), values=(1.0, 0.0))
    assert ends.finish(0.0, 5.0) == 5.0
    assert ends.finish(0.0, 5.1) == math.inf
    assert Trace(times=(0.0,), values=(0.0,), period=1.0).finish(0.0, 1.0) == math.inf
    assert Trace(times=(0.0,), values=(5e-324,), period=1.0).finish(0.0, 1.0) == math.inf
    assert not ends.always_finishes
    assert Trace(times=(0.0, 5.0), values=(1.0, 0.0), period=6.0).always_finishes


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"times": (), "values": ()}, "at least one"),
        ({"times": (0.0,), "values": (1.0, 2.0)}, "as many values as times"),
        ({"times": (1.0,), "values": (1.0,)}, "begin at 0"),
        ({"times": (0.0, 2.0, 2.0), "values": (1.0, 1.0, 1.0)}, "must rise"),
        ({"times": (0.0, 1e-10), "values": (1.0, 1.0)}, "nanosecond"),
        ({"times": (0.0,), "values": (-1.0,)}, "values = -1.0"),
        ({"times": (0.0,), "values": (math.nan,)}, "values = nan"),
        ({"times": (0.0, math.inf), "values": (1.0, 1.0)}, "times = inf"),
        ({"times": (0.0, 2.0), "values": (1.0, 1.0), "period": 2.0}, "beyond the last time"),
    ],
)
def test_a_trace_that_makes_no_sense_is_refused(fields: dict, said: str):
    with pytest.raises(InputError, match=said):
        Trace(**fields)


def test_csv_is_scaled(tmp_path: Path):
    path = tmp_path / "busy.csv"
    path.write_text("time_s,value\n0,100\n12.5,50\n\n")
    assert Trace.from_csv(path, scale=0.01, period=20.0) == Trace(
        times=(0.0, 12.5), values=(1.0, 0.5), period=20.0
    )


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", 1, "time_s,value"),
        ("value,time_s\n0,1\n", 1, "time_s,value"),
        ("time_s,value\n0,1\nlater,2\n", 3, "two numbers"),
        ("time_s,value\n0,1,2\n", 2, "two numbers"),
        ("time_s,value\n0,1\n3,-2\n", 3, "0 or more"),
        ("time_s,value\n0,nan\n", 2, "finite"),
        ("time_s,value\n0,1\n3,2\n3,4\n", 4, "does not rise"),
    ],
)
def test_a_bad_csv_is_named_with_its_line(tmp_path: Path, text: str, line: int, said: str):
    path = tmp_path / "busy.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=said) as caught:
        Trace.from_csv(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")


def test_a_csv_without_rows_or_without_a_file_is_named(tmp_path: Path):
    path = tmp_path / "busy.csv"
    path.write_text("time_s,value\n")
    with pytest.raises(InputError, match=r"busy\.csv: .*at least one"):
        Trace.from_csv(path)
    with pytest.raises(InputError, match=r"none\.csv: cannot be read"):
        Trace.from_csv(tmp_path / "none.csv")
