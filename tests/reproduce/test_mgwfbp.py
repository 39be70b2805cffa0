"""MG-WFBP's measurements: what is fitted, and what follows."""

from __future__ import annotations

import statistics

import pytest

from thinwire.reproduce import load_reproduction, mgwfbp
from thinwire.reproduce._mgwfbp_published import CASES, SCHEDULES


@pytest.mark.slow
def test_iterations_that_were_not_fitted_are_near_the_published_in_the_median():
    result = load_reproduction("mgwfbp").run()
    cells = [line for line in result.lines if line.section.startswith("Iteration")]
    assert len(cells) == 48
    assert sum(line.kind == "fitted" for line in cells) == 12
    off = [abs(c.ours / c.published - 1) for c in cells if c.kind == "predicted" and c.published]
    assert statistics.median(off) < 0.15
    assert result.exit_code == 0


def test_the_fitted_constant_makes_one_message_right_in_the_mean():
    host = mgwfbp.fit_host("resnet152")
    off = []
    for case in (c for c in CASES if c.model == "resnet152"):
        ours = mgwfbp.iteration(case, "one message", host)
        nbytes = sum(mgwfbp._load(case).nbytes)
        off.append((ours - case.seconds[SCHEDULES.index("one message")]) / nbytes)
    assert sum(off) == pytest.approx(0.0, abs=1e-15)


def test_without_the_constant_no_iteration_is_below_its_computing():
    for case in CASES[::5]:
        for schedule in SCHEDULES:
            assert mgwfbp.iteration(case, schedule, 0.0) >= case.compute
