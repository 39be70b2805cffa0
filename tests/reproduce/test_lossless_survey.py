"""The lossless survey: the fit, the accounting of what was fitted, and the findings."""

from __future__ import annotations

import dataclasses

import pytest

from thinwire.reproduce import _lossless_bed as bed
from thinwire.reproduce import load_reproduction, lossless_survey
from thinwire.reproduce._lossless_published import (
    MODELS,
    NETWORKS,
    RDMA,
    SPREAD,
    TCP,
    TEN,
    THROUGHPUT,
    WORKERS,
)

RESNET, BASE, LARGE = MODELS


@pytest.fixture(scope="module")
def result():
    return load_reproduction("lossless-survey").run()


@pytest.mark.slow
def test_cells_that_were_not_fitted_are_near_the_published_in_the_median(result):
    cells = [line for line in result.lines if line.unit == "samples/s"]
    assert len(cells) == 252
    fitted = [line for line in cells if line.kind == "fitted"]
    assert len(fitted) == 16
    assert all(line.section.startswith("BERT-Large") for line in fitted)
    (median,) = [line for line in result.lines if "were not fitted" in line.name]
    assert median.holds


@pytest.mark.slow
def test_the_findings_that_fail_are_known(result):
    assert [line.name for line in result.failed] == [
        "BSP-PS over ByteScheduler-A2A",
        "the best of the seven, 32 GPUs",
    ]
    assert all(line.note for line in result.failed)


@pytest.fixture
def constants() -> bed.Constants:
    return bed.Constants(host=1.3e-10, bus=7.5e9, tcp=2.7e9, beside=0.5)


def test_every_published_cell_is_of_a_known_model_network_and_method():
    assert len(THROUGHPUT) == 3 * 3 * 7
    assert {model for model, _, _ in THROUGHPUT} == {model.title for model in MODELS}
    assert {network for _, network, _ in THROUGHPUT} == set(NETWORKS)
    assert len(SPREAD) == 3 * 7
    assert all(len(row) == len(WORKERS) for row in THROUGHPUT.values())


def test_one_message_after_backward_is_computing_and_its_cost(constants):
    ours = bed.throughput(LARGE, RDMA, "BSP-A2A", 32, constants)
    nbytes = 4 * 336_232_258
    cost = 4.0632e-4 + nbytes * (1.3e-10 + 2 * 31 / 32 / 7.5e9)
    assert 32 * 8 / ours == pytest.approx(LARGE.computing + cost, rel=1e-3)


def test_on_one_machine_no_network_matters(constants):
    for method in ("MG-WFBP", "WFBP-PS"):
        speeds = {n: bed.throughput(RESNET, n, method, 4, constants) for n in NETWORKS}
        assert len({round(speed, 9) for speed in speeds.values()}) == 1


def test_a_slower_network_is_never_faster(constants):
    for method in ("BSP-A2A", "BSP-PS", "ByteScheduler-A2A"):
        speeds = [bed.throughput(BASE, n, method, 16, constants) for n in (TEN, TCP, RDMA)]
        assert speeds == sorted(speeds)


def test_contention_costs_what_overlaps_and_nothing_else(constants):
    free = dataclasses.replace(constants, beside=1.0)
    overlapped, after = (
        bed.throughput(BASE, RDMA, method, 8, free)
        / bed.throughput(BASE, RDMA, method, 8, constants)
        for method in ("MG-WFBP", "BSP-A2A")
    )
    assert overlapped > 1.02
    assert after == 1.0


def test_pairs_within_their_spread_are_not_judged():
    published = {
        (*key, n): v for key, row in THROUGHPUT.items() for n, v in zip(WORKERS, row, strict=True)
    }
    pairs = [(a[2], b[2]) for a, b in lossless_survey._told_apart(BASE, published)]
    assert ("MG-WFBP", "WFBP-A2A") in pairs
    assert ("MG-WFBP", "WFBP-PS") not in pairs
