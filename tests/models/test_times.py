"""Layer times keep what was measured, and say what is wrong with a file."""

from __future__ import annotations

import pytest

from thinwire.errors import InputError
from thinwire.models import LayerTimes, NodeTimes, TimedTensor, load_layer_times

TIMES = LayerTimes(
    model="net",
    batch=8,
    source="a test",
    tensors=(TimedTensor("a.weight", 12), TimedTensor("b.bias", 3)),
    nodes=tuple(
        NodeTimes(name=name, forward=0.01, backward=0.02, step=0.001, needed=(0.0, None),
                  ready=(0.0199, 0.0012345), count=7, spread=0.05)
        for name in ("alice", "bob")
    ),
)  # fmt: skip


def test_what_is_written_reads_back_equal(tmp_path):
    (tmp_path / "t.toml").write_text(TIMES.to_toml())
    assert load_layer_times(tmp_path / "t.toml") == TIMES
    assert TIMES.of("bob").ready[1] == 0.0012345


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("schema = 1", "schema = 2", "schema = 2; allowed: 1"),
        ("batch = 8", "batch = 0", "batch = 0; allowed: 1 or more"),
        ("batch = 8", "bach = 8", "bach"),
        ("count = 7", "count = 0", "node 'alice': count = 0"),
        ("forward = 0.01", "forward = -0.01", "node 'alice': forward holds -0.01"),
        ("ready = [0.0199000,", "ready = [", "ready has 1 numbers for 2 tensors"),
        ("ready = [0.0199000,", "ready = [nan,", "ready holds nan"),
        ("[[nodes]]", "[[nodes", "not TOML"),
        ('["a.weight", 12]', '["a.weight", -1]', "tensor 'a.weight': -1 elements"),
    ],
)
def test_a_mistake_is_named_with_the_file(tmp_path, old, new, says):
    assert old in TIMES.to_toml()
    (tmp_path / "t.toml").write_text(TIMES.to_toml().replace(old, new))
    with pytest.raises(InputError) as caught:
        load_layer_times(tmp_path / "t.toml")
    assert str(caught.value).startswith(str(tmp_path / "t.toml"))
    assert says in str(caught.value)


def test_a_missing_file_and_an_unknown_machine_are_named(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        load_layer_times(tmp_path / "none.toml")
    with pytest.raises(InputError, match="did you mean 'alice'"):
        TIMES.of("alicia")
