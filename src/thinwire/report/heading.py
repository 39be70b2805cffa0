"""The first line of a record: what was asked for, with what, and where."""

from __future__ import annotations

import datetime
import os
import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from thinwire._version import __version__
from thinwire.report.record import Header

__all__ = ["header"]


def header(
    settings: dict[str, Any], cluster_toml: str, command: Sequence[str] | None = None
) -> Header:
    """The first line of a record made here and now.

    Args:
        settings: in force.
        cluster_toml: the cluster as text; "" where none is described.
        command: None is thinwire's own command line.
    """
    return Header(
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=["thinwire", *sys.argv[1:]] if command is None else list(command),
        settings=settings,
        cluster=cluster_toml,
        versions=_versions(),
        machine={
            "cores": os.cpu_count(),
            "platform": platform.platform(),
            "processor": platform.machine(),
        },
    )


def _versions() -> dict[str, str]:
    names = ("torch", "numpy", "greenlet")
    return {
        "thinwire": __version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in names},
    }
