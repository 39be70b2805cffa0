"""Clusters by name or from a file."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path
from types import MappingProxyType

from thinwire.cluster._read import cluster_from_toml
from thinwire.cluster.spec import Cluster
from thinwire.errors import InputError, nearest

__all__ = ["PRESETS", "load_cluster"]

PRESETS = MappingProxyType(
    {
        "cities14": "14 cloud sites joined by measured, very uneven links of 0.1 to 317 Mbit/s",
        "gigabit": "8 like machines with an accelerator each on 1 Gbit/s Ethernet",
        "office": "8 office desktops on one 100 Mbit/s switch, one old, one slow and in use",
        "one-straggler": "8 machines on 1 Gbit/s Ethernet, one of them four times slower",
        "two-sites": "two sites of 4 machines, gigabit inside, 50 Mbit/s and 15 ms between them",
    }
)
"""The clusters that come with the library, by name, with one line each."""


def load_cluster(name_or_path: str | os.PathLike[str]) -> Cluster:
    """Load a preset by name, or a TOML file (schema 1) by path.

    A preset's name always means the preset; write ./office for a file of that name.

    Raises:
        InputError: no such preset or file, or a description with a mistake (file and line named).
    """
    name = os.fspath(name_or_path)
    if name in PRESETS:
        text = (
            resources.files("thinwire.cluster").joinpath(f"presets/{name}.toml").read_text("utf-8")
        )
        return cluster_from_toml(text, source=f"preset {name}")
    path = Path(name)
    if not path.exists():
        hint = nearest(name, PRESETS)
        raise InputError(f"no cluster {name!r}: it is neither a file nor a preset; {hint}")
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error}") from None
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise InputError(f"{name}:{line}: not UTF-8 text, which TOML must be") from None
    return cluster_from_toml(text, source=name, folder=path.parent)
