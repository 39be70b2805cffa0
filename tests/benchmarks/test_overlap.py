"""The overlap benchmark's arithmetic."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
overlap = importlib.import_module("overlap")


def host(overlapped: list[float], late: list[float], sending: list[float]) -> list[dict[str, Any]]:
    return [{"step": overlapped}, {"step": late, "sending": sending}]


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
    hosts = [slow, fast]
    found = overlap.compared(case, hosts)
    assert found["hidden"] == pytest.approx(hidden)
    assert found["s_max"] == pytest.approx(s_max)
    assert found["faster"] == pytest.approx(late / step)
    if hidden == 1.0:
        assert found["faster"] == pytest.approx(found["s_max"])
