"""LAGS's iterations: the closed forms that they are made of, and which claims fail."""

from __future__ import annotations

import pytest

from thinwire.reproduce import lags, load_reproduction
from thinwire.reproduce._lags_published import MODELS, WORKERS, Model
from thinwire.schedule import sparse_finish, whole

BY_NAME = {model.title: model for model in MODELS}


@pytest.mark.slow
def test_the_lines_that_fail_are_the_lstm_and_the_dense_ones():
    result = load_reproduction("lags").run()
    assert {line.name.partition(",")[0] for line in result.failed if "dense" not in line.name} == {
        "LSTM-PTB"
    }
    assert result.exit_code == 3


def test_the_fitted_iterations_are_the_published_ones():
    c, model = lags.fit(), BY_NAME["ResNet-50"]
    one = lags.sparse_iteration(model, False, c.host, c.beside)
    layers = lags.sparse_iteration(model, True, c.host, c.beside)
    assert one == pytest.approx(model.whole)
    assert layers == pytest.approx(model.layers, rel=1e-6)
    assert lags.dense_iteration(model, c.dense) == pytest.approx(model.dense)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.title)
def test_top_k_of_all_is_the_sum_of_its_parts(model: Model):
    load, numel = lags._load(model)
    startup, per_byte = model.gather

    def gather(kept: int) -> float:
        return 2 * (startup + per_byte * 4 * WORKERS * kept)

    _, end = sparse_finish(whole(load.order), load.ready, numel, model.density, lags.select, gather)
    ours = lags.sparse_iteration(model, False, 0.0, 1.0)
    assert ours == pytest.approx(model.forward + end)


def test_the_bound_is_what_perfect_overlap_gains():
    model = BY_NAME["Inception-v4"]
    for exchange in (0.1, 0.524, 2.0):
        apart = model.forward + model.backward + exchange
        together = model.forward + max(model.backward, exchange)
        assert lags._bound(model, exchange) == pytest.approx(apart / together)


def test_a_dense_exchange_replaces_the_gather_where_nothing_is_left_out():
    seconds = lags._seconds((1.0, 0.0), lags.Cost(startup=0.25))
    assert seconds(100, 1.0) == 0.25
    assert seconds(100, 2.0) == 2.0
