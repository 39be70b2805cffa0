from __future__ import annotations

import json

import pytest

from thinwire.errors import InputError
from thinwire.models import LayerRow, ModelTable, TensorRow, load_table
from thinwire.models.table import make_layers


def table(**changes) -> ModelTable:
    """Embedding, a block of two layers with an activation between, and one tensor without
    gradient; the block's second layer is ready before its first."""
    tensors = (
        TensorRow(name="words", layer=0, shape=(10, 4), order=3, ready_flops=600),
        TensorRow(name="block.a.weight", layer=1, shape=(4, 4), order=2, ready_flops=400),
        TensorRow(name="block.b.weight", layer=3, shape=(2, 4), order=1, ready_flops=100),
        TensorRow(name="block.b.bias", layer=3, shape=(2,), order=0, ready_flops=0),
        TensorRow(name="extra.spare", layer=4, shape=(), order=None, ready_flops=600),
    )
    rows = [("", 0, 200, 8), ("block.a", 100, 300, 64), ("block.act", 40, 0, 64)]
    rows += [("block.b", 60, 100, 0), ("extra", 0, 0, 0)]
    settings = {"name": "toy", "batch": 4, "sample": "word", "source": "made up"}
    settings |= {"layers": make_layers(rows, tensors), "tensors": tensors}
    return ModelTable(**{**settings, **changes})


def test_totals_are_sums_of_the_rows():
    toy = table()
    assert toy.num_params == 40 + 16 + 8 + 2 + 1
    assert (toy.forward_flops, toy.backward_flops, toy.activation_bytes) == (200, 600, 136)
    assert toy.macs == 25
    assert sum(layer.num_params for layer in toy.layers) == toy.num_params


def test_a_layer_is_complete_with_its_last_tensor():
    assert [layer.order for layer in table().layers] == [2, 1, None, 0, None]
    assert table().ready_order == (3, 2, 1, 0)


def test_toml_reads_back_equal():
    toy = table(notes=('a "quoted" note',), name="größe\x7f")
    assert ModelTable.from_toml(toy.to_toml()) == toy


def test_a_file_reads_back_equal_and_a_missing_one_is_named(tmp_path):
    file = tmp_path / "toy.toml"
    file.write_text(table().to_toml())
    assert load_table(file) == table()
    with pytest.raises(InputError, match=r"absent\.toml: cannot be read"):
        load_table(tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema = 1", "schema = 2", r"mine: schema = 2; allowed: 1"),
        ("batch = 4", "batch = 0", r"batch = 0; allowed: 1 or more"),
        ("batch = 4", 'batch = "4"', r"Expected `int`, got `str`.*batch"),
        ("batch = 4", "batch = 4\nbits = 8", r"unknown field `bits`"),
        ('sample = "word"\n', "", r"missing required field `sample`"),
        ('[1, "weight"', '[9, "weight"', r"layer = 9; allowed: 0 to 4"),
        ("[2, 4], 1, 100", "[2, 4], 2, 100", r"places must be 0, 1, 2"),
        ("[2, 4], 1, 100", "[2, -4], 1, 100", r"must be 0 or more"),
        ('["block.b", 60', '["block.b", -60', r"'block.b'.*0 or more"),
        ("layers = [", "layers = ", r"mine: not TOML"),
    ],
)
def test_a_mistake_in_a_file_is_named(old: str, new: str, message: str):
    text = table().to_toml()
    assert old in text
    with pytest.raises(InputError, match=message):
        ModelTable.from_toml(text.replace(old, new, 1), source="mine")


def test_another_batch_scales_operations_and_bytes_only():
    doubled = table().at_batch(8)
    assert (doubled.forward_flops, doubled.backward_flops) == (400, 1200)
    assert doubled.activation_bytes == 272
    assert doubled.tensors[0].ready_flops == 1200
    assert (doubled.macs, doubled.num_params) == (table().macs, table().num_params)
    assert doubled.at_batch(4) == table()
    with pytest.raises(InputError, match=r"batch = 0; allowed"):
        table().at_batch(0)


def test_forward_work_follows_the_first_tensor_of_its_layer_or_of_the_next():
    assert table().forward_shares() == pytest.approx((0, 0.5, 0.5, 0, 0))


def test_backward_work_comes_before_the_gradient_that_it_completes():
    assert table().backward_shares() == pytest.approx((200 / 600, 300 / 600, 100 / 600, 0, 0))


def test_without_operations_shares_follow_the_elements():
    idle = (LayerRow(name="", num_params=4, forward_flops=0, backward_flops=0,
                     activation_bytes=0, order=0),)  # fmt: skip
    tensors = (
        TensorRow(name="a", layer=0, shape=(3,), order=1, ready_flops=0),
        TensorRow(name="b", layer=0, shape=(1,), order=0, ready_flops=0),
    )
    toy = table(layers=idle, tensors=tensors)
    assert toy.forward_shares() == toy.backward_shares() == (0.75, 0.25)


def test_groups_add_up_and_are_complete_with_their_last_layer():
    groups = table().grouped(1)
    assert [group.name for group in groups] == ["", "block", "extra"]
    block = groups[1]
    assert (block.num_params, block.forward_flops, block.backward_flops) == (26, 200, 400)
    assert block.order == 1
    assert groups[2].order is None
    assert table().grouped(9) == table().layers


def test_plain_data_is_json():
    found = json.loads(json.dumps(table().to_dict()))
    assert found["num_params"] == 67
    assert found["layers"][3]["name"] == "block.b"
    assert found["tensors"][4]["order"] is None
