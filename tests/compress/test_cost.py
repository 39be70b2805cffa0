"""The simulator and the planner charge sparse work alike."""

from __future__ import annotations

import importlib

from thinwire.compress import cost


def test_planner_and_simulator_hold_the_same_figures():
    planned = importlib.import_module("thinwire.planner.predict")
    for name in ("SELECT_PASSES", "MERGE_PASSES", "SCATTER_PASSES"):
        assert getattr(cost, name) == getattr(planned, name), name
