"""The command line in this process."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

import pytest

from thinwire.run import forks

cli = importlib.import_module("thinwire.cli.main")  # the package has a function of that name


@pytest.fixture(autouse=True)
def _no_server_where_nothing_forks(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands begin by starting the fork server, beside what they then refuse."""
    if not request.node.get_closest_marker("distributed"):
        monkeypatch.setattr(forks, "start_server", lambda: None)


@pytest.fixture
def thinwire(tmp_path, monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """Run a command line in a folder of its own: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "THINWIRE_INTERFACE"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["thinwire", *arguments])
        monkeypatch.setattr(sys, "path", list(sys.path))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return run
