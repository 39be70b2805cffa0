"""What all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from thinwire.run.forks import start_server


def pytest_sessionstart(session: pytest.Session) -> None:
    """Some that start processes fork them of a server: it imports torch while all are collected."""
    config = session.config
    everything = any(Path(argument).resolve() == Path(__file__).parent for argument in config.args)
    wanted = "not distributed" not in config.option.markexpr
    if everything and wanted and not config.option.collectonly:
        start_server()
