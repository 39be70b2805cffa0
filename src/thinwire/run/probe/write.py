"""The files of a probe: the cluster with comments, the layer times, and all figures as JSON."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from thinwire.cluster import cluster_from_toml, cluster_to_toml
from thinwire.errors import InputError
from thinwire.run.probe.fit import Fitted, Place
from thinwire.run.probe.report import Survey

__all__ = ["check_target", "commented", "write_json", "write_text"]

_WIDTH = 100


def commented(fitted: Fitted) -> str:
    """The cluster as TOML, with a comment above every measured value."""
    plain = cluster_to_toml(fitted.cluster)
    lines = [line for text in fitted.header for line in _comment(text)]
    lines += ["", *_with_notes(plain, fitted.notes)]
    text = "\n".join(lines) + "\n"
    assert cluster_from_toml(text) == fitted.cluster
    return text


def _with_notes(plain: str, notes: Mapping[Place, list[str]]) -> Iterator[str]:
    table, name, told = "", "", False
    for line in plain.splitlines():
        if line.startswith("["):
            table, name = line.strip("[]"), ""
            if table in ("links", "rates", "latencies") and not told:
                told = True
                yield from (c for text in notes.get(("links", "", ""), []) for c in _comment(text))
            yield line
            continue
        key, _, value = line.partition(" = ")
        if table and key == "name":
            name = msgspec.json.decode(value)
        for text in notes.get((table, name, key), []):
            yield from _comment(text)
        yield line


def _comment(text: str) -> list[str]:
    indent = "#   " if text.startswith("- ") else "# "
    return textwrap.wrap(
        text, _WIDTH, initial_indent="# ", subsequent_indent=indent, break_long_words=False
    )


def check_target(option: str, path: Path, force: bool) -> str:
    """Why a file could not be written there, empty where it can.

    Args:
        option: that named it.
        path: where to.
        force: whether one that is there may go.
    """
    if path.is_dir() or not path.parent.is_dir():
        return f"{option} {path}: must be a file in a folder that exists"
    if path.exists() and not force:
        return f"{option} {path}: is there already; another name, or --force to write over it"
    return ""


def write_json(survey: Survey, path: Path) -> None:
    """Everything that was measured."""
    values = msgspec.to_builtins(survey, str_keys=True)
    data = msgspec.json.format(msgspec.json.encode(values), indent=2)
    write_text(path, data.decode() + "\n")


def write_text(path: Path, text: str) -> None:
    """A file whole or not at all.

    Raises:
        InputError: it cannot be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(f"{path}: cannot be written: {error}") from error
