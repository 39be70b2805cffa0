from __future__ import annotations

import dataclasses

import pytest

from thinwire.errors import InputError
from thinwire.planner import (
    Settings,
    accumulation_where_dense_pays,
    batch_where_dense_pays,
    make_workload,
    nodes_where_gtopk_wins,
    predict,
    quick_cluster,
)


def test_gtopk_wins_from_eight_nodes_on_when_bytes_decide():
    # 4·k·log2 P against 2·k·(P-1): 12 against 14 at 8 workers, 8 against 6 at 4.
    assert nodes_where_gtopk_wins(25_000_000, 0.001, latency=0.0, rate=125e6) == 8


def test_gtopk_needs_more_nodes_when_latency_decides():
    few = nodes_where_gtopk_wins(25_557_032, 0.001, latency=0.436e-3, rate=1 / 9e-9)
    many = nodes_where_gtopk_wins(269_722, 0.001, latency=0.436e-3, rate=1 / 9e-9)
    assert few == 8
    assert many is not None
    assert many > 32  # at 32 workers the published model has 4.55 ms against 2.78


def test_gtopk_never_wins_without_enough_nodes():
    assert nodes_where_gtopk_wins(1000, 0.001, latency=0.1, rate=1e9, max_nodes=64) is None
    with pytest.raises(InputError, match="rate = 0"):
        nodes_where_gtopk_wins(1000, 0.001, latency=0.0, rate=0.0)


JOB = make_workload(params=10_000_000, batch=10, step_time=0.01)
CLUSTER = quick_cluster(4, 125e6)[0]


def ssgd_speedup(batch: int) -> float:
    job = dataclasses.replace(JOB, batch=batch, step_times=(0.001 * batch,))
    return predict(job, CLUSTER)[1].speedup_alone


@pytest.mark.parametrize("speedup", [1.0, 2.0, 3.9])
def test_batch_is_the_smallest_that_pays(speedup: float):
    batch = batch_where_dense_pays(JOB, CLUSTER, speedup)
    assert batch is not None
    assert ssgd_speedup(batch) >= speedup > ssgd_speedup(batch - 1)


def test_no_batch_beats_the_number_of_machines():
    assert batch_where_dense_pays(JOB, CLUSTER, speedup=4.1) is None


def test_accumulation_is_the_smallest_that_pays():
    count = accumulation_where_dense_pays(JOB, CLUSTER, 2.0)
    assert count is not None

    def speedup(n: int) -> float:
        return predict(JOB, CLUSTER, Settings(accumulate=n))[2].speedup_alone

    assert speedup(count) >= 2.0 > speedup(count - 1)


def test_accumulation_of_one_is_plain_ddp():
    fast = quick_cluster(4, 1e12)[0]
    assert accumulation_where_dense_pays(JOB, fast, 2.0) == 1
