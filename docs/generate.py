"""Writes the pages that follow from the code: docs/methods.md from the table of methods."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

from thinwire.methods import METHODS, Method

__all__ = ["methods_page"]

PAGE = Path(__file__).with_name("methods.md")

HEAD = """\
# Methods

<!-- Written by docs/generate.py (`make docs`): change the docstrings, not this page. -->

The same list as `thinwire methods`. P workers, m parameters of 4 bytes, k kept entries; traffic is
what a worker sends per step, packet headers left out. *At-step* methods talk between backward and
the optimizer, *overlapped* ones during backward. *Synchronous* ones leave all replicas equal after
each round, and a real run ends with the same bits as the virtual one. Settings follow the name
after colons, `gtopk:density=0.001:losses=kept`, or as `--set gtopk.density=0.001`.
"""


def methods_page() -> str:
    """The whole text of docs/methods.md."""
    rows = [_row(name, cls) for name, cls in METHODS.items()]
    table = "\n".join(
        [
            "| method | in one line | sent per worker and step | staleness |",
            "|---|---|---|---|",
            *rows,
        ]
    )
    sections = [_section(name, cls) for name, cls in METHODS.items()]
    return "\n".join([HEAD, table, "", *sections])


def _row(name: str, cls: type[Method]) -> str:
    first = _prose(cls)[0].rstrip(".")
    return f"| [`{name}`](#{name}) | {first} | {cls.traits.traffic} | {cls.traits.staleness} |"


def _section(name: str, cls: type[Method]) -> str:
    traits = cls.traits
    facts = [traits.kind, "synchronous" if traits.synchronous else "asynchronous"]
    if traits.workers == "fastest":
        facts.append("only the fastest machine works")
    if cls.num_servers:
        facts.append(
            "a server beside worker 0" if cls.num_servers == 1 else "servers beside worker 0"
        )
    parts = [f"## {name}", *_prose(cls), f"*{', '.join(facts).capitalize()}.*"]
    settings = _settings(cls)
    if settings:
        parts.append("\n".join(["| setting | default | |", "|---|---|---|", *settings]))
    if cls.paper is not None:
        parts.append(f"Reference: {cls.paper.cite()}")
    return "\n\n".join(parts) + "\n"


def _split(cls: type[Method]) -> tuple[str, str]:
    """A class's docstring as its prose and its arguments."""
    text = inspect.cleandoc(cls.__doc__ or "")
    prose, *sections = re.split(r"^(Args|Example):\n", text, flags=re.MULTILINE)
    named = dict(zip(sections[::2], sections[1::2], strict=True))
    return prose, named.get("Args", "")


def _prose(cls: type[Method]) -> list[str]:
    return [" ".join(p.split()) for p in _split(cls)[0].strip().split("\n\n")]


def _settings(cls: type[Method]) -> list[str]:
    described = {
        found[1]: " ".join(found[2].split())
        for found in re.finditer(r"^    (\w+): (.*(?:\n      .*)*)", _split(cls)[1], re.MULTILINE)
    }
    return [
        f"| `{f.name}` | `{f.default}` | {described.get(f.name, '')} |"
        for f in dataclasses.fields(cls)
    ]


if __name__ == "__main__":
    PAGE.write_text(methods_page())
