"""The gTop-k paper's test bed: the fit is exact where it must be, and blind everywhere else."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from thinwire.collectives import costs
from thinwire.reproduce import load_reproduction
from thinwire.reproduce._gtopk_own import DEVICE, own_share
from thinwire.reproduce._gtopk_published import METHODS, MODELS, NETWORK, WORKERS, Model
from thinwire.reproduce._gtopk_theirs import exchange_time, fit, iteration
from thinwire.reproduce.gtopk import _alpha_beta

VGG = MODELS[0]
PAGE = Path(__file__).parents[2] / "docs/reproduce.md"


@pytest.fixture(scope="module")
def constants():
    return fit(VGG)


def test_the_cost_model_is_met_to_the_printed_digits():
    lines = list(_alpha_beta())
    assert len(lines) == 27
    assert [line.name for line in lines if not line.holds] == []


@pytest.mark.parametrize("workers", WORKERS)
def test_the_dense_row_that_was_fitted_comes_out_again(constants, workers):
    seconds = iteration("dense", VGG, workers, constants)
    assert seconds == pytest.approx(VGG.seconds("dense", workers), rel=1e-6)


def test_the_breakdown_that_was_fitted_comes_out_again(constants):
    parts = (VGG.compute, VGG.compress, VGG.communicate)
    assert iteration("gTop-k", VGG, 32, constants) == pytest.approx(sum(parts), rel=1e-9)  # pyright: ignore


def test_nothing_but_vgg_16_decides_a_constant(constants):
    other = Model(**{**vars(MODELS[2]), "throughput": {}, "communicate": 1.0})
    assert fit(VGG) == constants
    # A prediction needs none of the figures that it is held against.
    assert iteration("top-k", other, 8, constants) == iteration("top-k", MODELS[2], 8, constants)


@pytest.mark.parametrize("method", METHODS)
def test_what_is_on_the_wire_is_the_closed_form(method):
    model, form = MODELS[3], {
        "dense": (costs.all_reduce_ring, MODELS[3].params),
        "top-k": (costs.all_gather_sparse, MODELS[3].kept),
        "gTop-k": (costs.gtopk_tree, MODELS[3].kept),
    }  # fmt: skip
    function, size = form[method]
    for workers in WORKERS:
        expected = function(workers, size, NETWORK.latency, NETWORK.rate, header=False)
        assert exchange_time(method, model, workers) == pytest.approx(expected, rel=1e-9)


def test_a_share_of_the_bound_falls_with_the_number_of_workers():
    few, many = (own_share(MODELS[1], n, DEVICE) for n in (4, 16))
    assert 1 > few > many > 0.9


@pytest.mark.slow
def test_the_result_holds_where_the_page_says_so():
    result = load_reproduction("gtopk").run()
    kinds = Counter(line.kind for line in result.lines)
    cells = [line for line in result.lines if line.section.startswith("Throughput")]
    assert Counter(line.kind for line in cells) == {"fitted": 12, "predicted": 48}
    assert kinds["fitted"] == 12 + 2
    assert [line.name for line in result.failed] == ["AlexNet", "LSTM-PTB"]
    assert all(line.section.startswith("Part of the bound") for line in result.failed)
    assert result.exit_code == 3
    bounded = [line for line in result.lines if line.name.endswith(", at 1 Gbit/s")]
    above = [line for line in bounded if line.note.startswith("the published gain is above")]
    assert above == [line for line in bounded if line.ours < (line.published or 0.0)]
    check_page(PAGE.read_text(), {(line.section, line.name): line.ours for line in result.lines})


def check_page(page: str, ours: dict[tuple[str, str], float]) -> None:
    """Its figures are those of the result."""
    (errors, first), *_ = [key for key in ours if key[1].startswith("median of")]
    bounds, gains, shares = (
        next(section for section, _ in ours if section.startswith(words))
        for words in ("Most that", "Gain of our", "Part of")
    )
    assert f"{ours[errors, first]:.1f} % median error" in page
    for model in MODELS:
        if model is not VGG:
            assert f"| {model.name} | {ours[errors, f'median, {model.name}']:.1f} % |" in page
        published = model.seconds("dense", 32) / model.seconds("gTop-k", 32)
        row = (
            f"{ours[bounds, f'{model.name}, at 1 Gbit/s']:#.3g}",
            f"{published:#.3g}",
            f"{ours[gains, f'{model.name}, over dense']:#.3g}",
            f"{ours[shares, model.name]:.2f}",
        )
        assert f"| {model.name} | {' | '.join(row)}" in page
