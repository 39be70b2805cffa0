"""What all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from thinwire.run.forks import start_server


def pytest_sessionstart(session: pytest.Session) -> None:
    """Of all tests, some need the fork server: it imports torch while they are collected."""
    config = session.config
    everything = any(Path(argument).resolve() == Path(__file__).parent for argument in config.args)
    if everything and not config.option.collectonly:
        start_server()
