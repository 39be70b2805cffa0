"""The fidelity benchmark's arithmetic, and its predictions of an emulated model."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
fidelity = importlib.import_module("fidelity")


def host(step: list[float], sent: int = 100, wire: int = 1000) -> dict[str, Any]:
    return {"step": step, "sent": [sent] * len(step), "wire": wire, "frames": 2,
            "phases": {"wait": [0.1]}}  # fmt: skip


def row(method: str, predicted: float, measured: float) -> dict[str, Any]:
    foreseen = {"situation": "s", "method": method, "step_time": predicted, "bytes_per_step": 1e3}
    found = {"step_time": measured, "wire_bytes_per_step": 1e3}
    return fidelity.compared(foreseen, found)


def test_a_step_is_the_slowest_hosts():
    found = fidelity.summed([host([1.0, 2.0, 1.0]), host([3.0, 1.0, 1.0])] * 2, 1)
    assert found["step_time"] == 2.0
    assert (found["least"], found["most"]) == (1.0, 3.0)


def test_hosts_that_meet_once_in_a_period_are_compared_by_period():
    found = fidelity.summed([host([1.0, 3.0]), host([3.0, 1.0])] * 2, 2)
    assert found["step_time"] == 2.0


def test_hosts_that_wait_for_nobody_are_counted_together():
    """Two steps and one in the same time: three of two hosts."""
    found = fidelity.together([host([1.0, 1.0]), host([2.0])])
    assert found["step_time"] == pytest.approx(2 / 1.5)
    assert found["bytes_per_step"] == pytest.approx(300 / 2 / 1.5)


def test_what_tcp_carried_is_what_was_counted_without_headers():
    found = fidelity.summed([host([1.0, 1.0], wire=1132)] * 2, 1)
    assert found["wire_bytes_per_step"] == (1132 - 2 * 66) / 2


def test_an_error_is_relative_to_what_was_measured():
    found = row("topk", 1.2, 1.0)
    assert found["error"] == pytest.approx(0.2)
    assert found["bytes_error"] == pytest.approx(0.0)


def test_a_wrong_order_is_named_only_where_it_matters():
    close = [row("a", 1.0, 1.05), row("b", 1.1, 1.0)]
    assert fidelity.summary(close)["wrong_order"] == []
    apart = [row("a", 1.0, 1.5), row("b", 1.1, 1.0)]
    assert fidelity.summary(apart)["wrong_order"] == ["s: a and b"]
    assert fidelity.summary(apart)["worst_error"] == pytest.approx(1 / 3)


def test_a_failed_row_is_counted():
    failed = fidelity.compared({"situation": "s", "method": "a", "step_time": 1.0}, {"failed": "x"})
    total = fidelity.summary([failed])
    assert (total["rows"], total["failed"], total["median_error"]) == (0, 1, None)


def test_the_emulated_model_is_predicted_whole():
    load = fidelity.load_of_shapes()
    assert load.numel == 5_824_522
    assert sum(load.backward) == pytest.approx(1.0)
    assert sum(load.forward) == pytest.approx(1.0)


@pytest.mark.slow
def test_a_slow_host_sets_the_pace_and_hides_the_others_exchange(tmp_path: Path):
    cluster = tmp_path / "four.toml"
    cluster.write_text(
        'schema = 1\nname = "four"\nlatency = "0.1 ms"\n[defaults]\nlink = "100 Mbit/s"\n'
        'memory_rate = "8 GB/s"\nflops = "1 TFLOP/s"\n[[nodes]]\nname = "n"\ncount = 4\n'
    )
    methods = [("topk", {"density": 0.01})]
    times = [fidelity.predict(fidelity.SITUATIONS[i], cluster, methods)[0] for i in (0, 1)]
    # It finds what the others have sent in the meantime, and never waits.
    assert times[1]["step_time"] > 2.5 * fidelity.COMPUTE
    assert times[1]["step_time"] - times[0]["step_time"] < 1.5 * fidelity.COMPUTE - 0.05
