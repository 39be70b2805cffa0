"""The shipped tables against published totals, formulas, and a fresh count."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import thinwire.models
from thinwire.errors import InputError
from thinwire.models import PUBLISHED, count_model, describe, published_table
from thinwire.models.publish import NAMES, totals_text

OWN = ("bert-base", "bert-large", "inception-v4", "lstm-ptb", "resnet20", "vgg16-cifar")
QUICK = ("alexnet", "resnet20", "vgg16-cifar")

# parameter tensors, parameters, forward GMAC of one sample (None: not published)
PUBLISHED_TOTALS = {
    "alexnet": (16, 61_100_840, 0.714),
    "bert-base": (206, 110_106_428, 7.05),
    "bert-large": (398, 336_226_108, 21.60),
    "densenet161": (484, 28_681_000, None),
    "densenet201": (604, 20_013_928, 4.291),
    "inception-v4": (449, 42_679_816, 12.254),
    "lstm-ptb": (11, 66_034_000, 51.0e-3 * 35),
    "resnet152": (467, 60_192_808, None),
    "resnet20": (59, 269_722, 0.0406),
    "resnet50": (161, 25_557_032, 4.089),
    "vgg16": (32, 138_357_544, 15.470),
    "vgg16-cifar": (54, 14_728_266, 0.3132),
}


@pytest.mark.parametrize("name", PUBLISHED_TOTALS)
def test_parameters_are_exactly_and_macs_within_a_hundredth_as_published(name: str):
    num_tensors, num_params, gmacs = PUBLISHED_TOTALS[name]
    table = published_table(name)
    assert len(table.tensors) == num_tensors
    assert table.num_params == num_params
    if gmacs is not None:
        assert table.macs == pytest.approx(gmacs * 1e9, rel=0.01)


def weights(name: str) -> list[tuple[int, float]]:
    """Parameters (biases included) and forward MMACs of each layer that multiplies."""
    table = published_table(name).at_batch(1)
    return [(r.num_params, r.forward_flops / 2e6) for r in table.layers if r.forward_flops]


def test_alexnet_layer_by_layer():
    expected = [(23296, 70.3), (307392, 223.9), (663936, 112.1), (884992, 149.5)]
    expected += [(590080, 99.7), (37752832, 37.7), (16781312, 16.8), (4097000, 4.1)]
    assert [p for p, _ in weights("alexnet")] == [p for p, _ in expected]
    assert [m for _, m in weights("alexnet")] == pytest.approx([m for _, m in expected], rel=0.01)


def test_resnet20_layer_by_layer():
    expected = [(432, 0.44), *[(2304, 2.36)] * 6, (4608, 1.18), *[(9216, 2.36)] * 5]
    expected += [(18432, 1.18), *[(36864, 2.36)] * 5, (650, 0.0006)]
    assert [p for p, _ in weights("resnet20")] == [p for p, _ in expected]
    assert [m for _, m in weights("resnet20")] == pytest.approx(
        [m for _, m in expected], rel=0.01, abs=1e-4
    )


def test_inception_v4_blocks():
    found = weights("inception-v4")
    stem = [(864, 19.2), (9216, 199.1), (18432, 398.3), (55296, 294.7), (10240, 54.6)]
    stem += [(55296, 278.7), (10240, 54.6), (28672, 152.8), (28672, 152.8), (55296, 278.7)]
    stem += [(331776, 406.4)]
    last = [(393216, 25.2), (589824, 37.7), (294912, 18.9), (294912, 18.9), (589824, 37.7)]
    last += [(516096, 33.0), (688128, 44.0), *[(393216, 25.2)] * 3, (1537000, 1.5)]
    for got, expected in ((found[: len(stem)], stem), (found[-len(last) :], last)):
        assert [p for p, _ in got] == [p for p, _ in expected]
        assert [m for _, m in got] == pytest.approx([m for _, m in expected], rel=0.03)
    convolutions = sum(p for p, _ in found)
    assert convolutions == 42_616_648


@pytest.mark.parametrize(
    ("name", "width", "depth"), [("bert-base", 768, 12), ("bert-large", 1024, 24)]
)
def test_bert_follows_its_formula_and_its_tied_gradient_comes_last(name, width, depth):
    table, tokens, words = published_table(name), 64, 30_522
    grouped = {row.name: row for row in table.grouped(2)}
    layer = 12 * width * width + 13 * width
    assert [grouped[f"layers.{i}"].num_params for i in range(depth)] == [layer] * depth
    work = tokens * 12 * width * width + 2 * tokens * tokens * width
    assert grouped["layers.0"].forward_flops == 2 * work * table.batch
    last = table.tensors[table.ready_order[-1]]
    assert (last.name, last.numel) == ("words.weight", words * width)


def test_lstm_is_counted_word_by_word_and_its_embedding_comes_last():
    table = published_table("lstm-ptb").at_batch(1)
    rows = {row.name: row for row in table.layers}
    assert rows["lstm"].num_params == 2 * (18_000_000 + 12_000)
    assert rows["lstm"].forward_flops == 2 * 35 * 2 * 2 * 4 * 1500 * 1500
    assert rows["classifier"].forward_flops == 2 * 35 * 1500 * 10_000
    names = [table.tensors[i].name.partition(".")[0] for i in table.ready_order]
    assert names == ["classifier"] * 2 + ["lstm"] * 8 + ["embedding"]


@pytest.mark.parametrize("name", PUBLISHED)
def test_backward_takes_twice_the_forward_pass_but_for_what_needs_no_gradient(name: str):
    table = published_table(name)
    if name == "lstm-ptb":  # the first state of each of the two layers
        spared = 2 * 2 * table.batch * 4 * 1500 * 1500
    elif table.sample.startswith("image"):
        spared = next(row.forward_flops for row in table.layers if row.forward_flops)
    else:
        spared = 0
    assert table.backward_flops == 2 * table.forward_flops - spared


@pytest.mark.slow
def test_every_gradient_comes_and_operations_divide_by_the_batch():
    for name in PUBLISHED:
        table = published_table(name)
        assert len(table.ready_order) == len(table.tensors)
        assert table.forward_flops % table.batch == table.backward_flops % table.batch == 0
        assert table.notes == ()


def test_the_totals_follow_from_the_tables():
    text = totals_text({name: published_table(name) for name in NAMES})
    assert text == (Path(thinwire.models.__file__).with_name("_totals.py")).read_text()
    assert tuple(PUBLISHED) == NAMES == tuple(sorted(NAMES))


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
)
def test_a_fresh_count_is_what_is_shipped(name: str):
    if name not in OWN:
        pytest.importorskip("torchvision")
    table = published_table(name)
    assert count_model(name, batch=table.batch) == table, "python -m thinwire.models.publish"


@pytest.mark.slow
def test_bert_with_longer_sequences():
    assert describe("bert-base", batch=1, sequence=128).macs == pytest.approx(14.25e9, rel=1e-3)


def test_names_are_found_whatever_their_capitals_and_underscores():
    assert describe("BERT_Base", batch=8) == published_table("bert-base").at_batch(8)


def test_known_models_need_no_torch():
    code = (
        "import sys; from thinwire.models import describe; from thinwire.planner import find_model;"
        "describe('resnet50', batch=4); find_model('vgg16'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_an_unknown_name_has_no_table():
    with pytest.raises(InputError, match=r"did you mean 'resnet50'"):
        published_table("resnet5")
