"""`thinwire model` in this process."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable

import pytest

from thinwire.models import load_table, published_table

cli = importlib.import_module("thinwire.cli.main")  # the package has a function of that name


@pytest.fixture
def model(tmp_path, monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """Run `thinwire model` in a folder of its own: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["thinwire", "model", *arguments])
        monkeypatch.setattr(sys, "path", list(sys.path))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return run


def test_layers_are_summed_up_and_totalled(model):
    code, out, _ = model("resnet50", "--batch", "2")
    assert code == 0
    assert "resnet50: 25,557,032 parameters in 161 tensors, 4.089 GMAC forward" in out
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.split()}
    assert lines["layer4"][0] == "14,964,736"
    assert lines["fc"][-1] == "1"
    assert lines["all"][:2] == ["25,557,032", "16.4"]


def test_depth_shows_more_and_zero_shows_all(model):
    assert "layer1.0.conv1" not in model("resnet50", "--depth", "2")[1]
    assert "layer1.0.conv1" in model("resnet50", "--depth", "0")[1]


def test_json_and_toml_hold_everything(model, tmp_path):
    code, out, _ = model("alexnet", "--batch", "8", "--json", "--toml", "alexnet.toml")
    assert code == 0
    table = published_table("alexnet").at_batch(8)
    assert json.loads(out) == json.loads(json.dumps(table.to_dict()))
    assert load_table(tmp_path / "alexnet.toml") == table


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["alexnet", "--batch", "0"], "batch = 0; allowed"),
        (["resnet20", "--sequence", "9"], "sequence = 9 has no effect"),
        (["alexnet", "--toml", "no/such/file"], "--toml no/such/file: cannot be written"),
        (["nothing:at_all"], "Python's path"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(model, arguments: list[str], message: str):
    code, _, err = model(*arguments)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
