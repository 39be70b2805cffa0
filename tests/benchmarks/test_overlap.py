"""The overlap benchmark's arithmetic."""

from __future__ import annotations

import importlib
import itertools
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
overlap = importlib.import_module("overlap")


def host(overlapped: list[float], late: list[float], sending: list[float]) -> list[dict[str, Any]]:
    """A host's rows of one turn, given the seconds of its steps."""
    return [
        {"ended": [0.0, *itertools.accumulate(overlapped)]},
        {"ended": [0.0, *itertools.accumulate(late)], "sending": sending},
    ]


@pytest.mark.parametrize(
    ("compute", "sending", "step", "hidden", "s_max"),
    [
        # Forward is a third. Nothing hidden, half, all; all of the backward pass, not of the rest.
        (3.0, 1.0, 4.0, 0.0, 1 + 1 / 3),
        (3.0, 1.0, 3.5, 0.5, 1 + 1 / 3),
        (3.0, 1.0, 3.0, 1.0, 1 + 1 / 3),
        (1.5, 4.0, 4.5, 1.0, 1 + 1 / 4.5),
    ],
)
def test_what_is_hidden_is_a_part_of_what_can_be(compute, sending, step, hidden, s_max):
    case = overlap.Case("1gbit", "mlp", 0.01, compute)
    late = compute + sending
    slow = host([step, step, 9.0], [late] * 3, [sending] * 3)
    fast = host([step - 0.1] * 3, [late - 0.1] * 3, [sending - 0.1, sending - 0.1, 9.0])
    found = overlap.compared(case, [slow, fast])
    assert found["hidden"] == pytest.approx(hidden)
    assert found["s_max"] == pytest.approx(s_max)
    assert found["faster"] == pytest.approx(late / step)
    if hidden == 1.0:
        assert found["faster"] == pytest.approx(found["s_max"])


def test_a_host_that_was_ahead_and_waits_makes_no_step_longer():
    case = overlap.Case("1gbit", "mlp", 0.01, 3.0)
    ahead = host([3.0, 2.5, 3.5, 2.5, 3.5], [4.0] * 5, [1.0] * 5)
    behind = host([3.0, 3.0, 3.0, 3.0, 3.0], [4.0] * 5, [1.0] * 5)
    assert overlap.compared(case, [ahead, behind])["step"] == pytest.approx(3.0)


def test_the_median_of_the_turns_counts():
    case = overlap.Case("1gbit", "mlp", 0.01, 3.0)
    turns = [host([step] * 3, [4.0] * 3, [1.0] * 3) for step in (3.0, 3.2, 3.9)]
    found = overlap.compared(case, [[row for turn in turns for row in turn]])
    assert found["hidden_by_turn"] == pytest.approx([1.0, 0.8, 0.1])
    assert found["hidden"] == pytest.approx(0.8)


def test_the_forms_take_turns():
    rows = overlap.rows_of(overlap.CASES[0], steps=5)
    assert [row["late"] for row in rows] == [False, True] * overlap.TURNS
