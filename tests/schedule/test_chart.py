"""A time line in letters."""

from __future__ import annotations

import pytest

from thinwire.errors import InputError
from thinwire.schedule import Cost, Load, chart, fused, per_tensor, simulate

LOAD = Load(order=(1, 0), ready=(1.0, 2.0), nbytes=(10, 10), backward=2.0,
            forward=((0, 0.5), (1, 0.5)))  # fmt: skip


def line(*path: Cost):
    return simulate(LOAD, fused(LOAD, per_tensor(LOAD.order)), path)


def test_the_letters_stand_for_as_much_time_as_they_take():
    device, send = chart(line(Cost(per_byte=0.2)), 60).splitlines()
    assert [device.count(letter) for letter in "BF."] == [20, 10, 30]
    assert [send.count(letter) for letter in "▒█"] == [20, 20]


def test_each_stage_has_a_line_of_its_own():
    rows = chart(line(Cost(per_byte=0.1), Cost(per_byte=0.1)), 40).splitlines()
    assert [row.split()[0] for row in rows] == ["device", "send", "send"]


def test_two_charts_can_have_one_scale():
    short, long = line(Cost()), line(Cost(per_byte=0.2))
    row = chart(short, 60, until=long.step).splitlines()[0]
    assert len(row) == 8 + 30


def test_a_width_below_one_is_refused():
    with pytest.raises(InputError, match="width = 0"):
        chart(line(Cost()), 0)
