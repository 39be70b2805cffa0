from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from thinwire.cluster import PRESETS, Node, cluster_from_toml, cluster_to_toml
from thinwire.cluster._read import _NODE_KEYS, _TOP_KEYS
from thinwire.errors import InputError

DOC = Path(__file__).parents[2] / "docs/cluster.md"
TEXT = DOC.read_text()
EXAMPLES = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_a_cluster(example: str):
    cluster = cluster_from_toml(example)
    assert cluster_from_toml(cluster_to_toml(cluster)) == cluster


def test_the_page_has_examples_and_its_code_runs():
    assert len(EXAMPLES) >= 4
    failed, tried = doctest.testfile(str(DOC), module_relative=False)
    assert tried > 0
    assert failed == 0


@pytest.mark.parametrize("wrong", ["100 mb/s", "cuont"])
def test_the_errors_shown_are_those_given(wrong: str):
    right = {"100 mb/s": "100 Mbit/s", "cuont": "count"}[wrong]
    shown = next(line for line in TEXT.splitlines() if line.startswith("three.") and wrong in line)
    with pytest.raises(InputError) as caught:
        cluster_from_toml(EXAMPLES[0].replace(right, wrong), source="three.toml")
    assert str(caught.value).startswith(shown.removesuffix("..."))


def test_every_key_and_preset_is_on_the_page():
    for key in (*_NODE_KEYS, *_TOP_KEYS):
        assert re.search(rf"`\[*{key}\]*`", TEXT), key
    for name, description in PRESETS.items():
        assert f"| `{name}` | {description} |" in TEXT


def test_every_field_of_a_node_can_be_written():
    assert set(Node.__dataclass_fields__) <= set(_NODE_KEYS)
