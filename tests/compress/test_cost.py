"""The simulator and the planner charge sparse work alike."""

from __future__ import annotations

from thinwire.compress import cost
from thinwire.planner import predict


def test_planner_and_simulator_hold_the_same_figures():
    for name in ("SELECT_PASSES", "MERGE_PASSES", "SCATTER_PASSES"):
        assert getattr(cost, name) == getattr(predict, name), name
