"""The simulator and the planner charge sparse work alike."""

from __future__ import annotations

import pytest

from thinwire.compress import cost
from thinwire.passes import selection_bytes
from thinwire.planner import Settings, make_workload, predict, quick_cluster

PARAMS, SIZE, DENSITY = 10_000_000, 4, 0.001
K = 10_000


@pytest.mark.parametrize(
    ("method", "works"),
    [
        (
            "topk",
            [
                cost.selection_work(PARAMS),
                *[cost.code_work(K)] * SIZE,  # K are enough to be coded: one written, others read
                cost.scatter_work(SIZE * K),
            ],
        ),
        (
            "gtopk",
            [
                cost.selection_work(PARAMS),
                *[cost.merge_work(2 * K)] * 2,
                *[cost.code_work(K)] * 6,  # K are enough to be coded: at both merges, at the end
                cost.scatter_work(K),
            ],
        ),
    ],
)
def test_the_planner_charges_what_the_simulator_does(method, works):
    cluster, _ = quick_cluster(SIZE, 1.25e9, memory_rate=1e10)
    workload = make_workload(params=PARAMS, batch=1, step_time=1.0)
    predictions = predict(workload, cluster, Settings(density=DENSITY))
    [found] = [p for p in predictions if p.method == method]
    assert found.overhead == pytest.approx(sum(work.memory_bytes for work in works) / 1e10)


def test_selection_never_costs_less_for_more_elements_and_follows_its_two_kernels():
    sizes = [2**power for power in range(30)]
    moved = [selection_bytes(size) for size in sizes]
    assert moved == sorted(moved)
    # As benchmarks/selection.py had it where memory moved 18 to 20 GB/s: milliseconds of CPU time.
    for numel, measured in ((35_000, 0.3e-3), (1_000_000, 3.0e-3), (25_000_000, 36e-3)):
        assert selection_bytes(numel) / 19e9 == pytest.approx(measured, rel=0.15)
