"""`thinwire reproduce` in this process."""

from __future__ import annotations

import importlib
import json
import sys
from typing import ClassVar

import pytest

from thinwire.reproduce import Line, Result

cli = importlib.import_module("thinwire.cli.main")


class Tiny:
    """A reproduction of nothing, whose claim holds."""

    name, title = "tiny", "Nothing at all"
    ours: ClassVar[float] = 1.0

    def run(self) -> Result:
        line = Line(section="s", name="claim", ours=self.ours, published=1.0, tolerance=0.1,
                    kind="claim", series="x")  # fmt: skip
        return Result(name=self.name, title=self.title, source="", lines=(line,))


class Failing(Tiny):
    """The same, whose claim does not hold."""

    ours: ClassVar[float] = 2.0


@pytest.fixture
def thinwire(tmp_path, monkeypatch, capsys):
    """Run the verb in a folder of its own: code, output, errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "own_papers", sys.modules[__name__])

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["thinwire", "reproduce", *arguments])
        monkeypatch.setattr(sys, "path", list(sys.path))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def test_list_names_every_reproduction(thinwire):
    code, out, _ = thinwire("--list")
    assert code == 0
    assert "gtopk" in out
    assert "oktopk" in out


@pytest.mark.parametrize(("name", "expected"), [("Tiny", 0), ("Failing", 3)])
def test_the_exit_code_says_whether_it_holds_and_the_files_are_written(
    thinwire, tmp_path, name, expected
):
    code, out, _ = thinwire(f"own_papers:{name}", "--json", "r.json", "--plot", "r.html")
    assert code == expected
    assert "Nothing at all" in out
    assert json.loads((tmp_path / "r.json").read_text())["holds"] is (expected == 0)
    assert "<svg" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "gtopk, lags"),
        (("gtpok",), "did you mean 'gtopk'"),
        (("own_papers:Tiny", "--plot", "r.png"), "must end in .svg or .html"),
        (("own_papers:Tiny", "--json", "no/where.json"), "folder that exists"),
        (("own_papers:Tiny", "--plot", "no/where.svg"), "folder that exists"),
        (("gtopk", "--list"), "--list stands alone"),
    ],
)
def test_bad_input_is_exit_code_2_before_anything_is_done(thinwire, tmp_path, arguments, named):
    code, out, err = thinwire(*arguments)
    assert (code, out) == (2, "")
    assert named in err
    assert list(tmp_path.iterdir()) == []
