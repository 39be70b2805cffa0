"""Writes the pages that follow from tables: methods.md from METHODS, taxonomy.md from its TOML."""

from __future__ import annotations

import dataclasses
import inspect
import re
import tomllib
from pathlib import Path
from typing import Any

from thinwire.methods import METHODS, Method

__all__ = ["methods_page", "taxonomy", "taxonomy_page"]

PAGE = Path(__file__).with_name("methods.md")
TAXONOMY = Path(__file__).with_name("taxonomy.toml")

HEAD = """\
# Methods

<!-- Written by docs/generate.py (`make docs`): change the docstrings, not this page. -->

The same list as `thinwire methods`. P workers, m parameters of 4 bytes, k kept entries; traffic is
what a worker sends per step, packet headers left out. *At-step* methods talk between backward and
the optimizer, *overlapped* ones during backward. *Synchronous* ones leave all replicas equal after
each round, and a real run ends with the same bits as the virtual one. Settings follow the name
after colons, `gtopk:density=0.001:losses=kept`, or as `--set gtopk.density=0.001`.
"""

TAXONOMY_HEAD = """\
# What there is, by the surveys' taxonomy

<!-- Written by docs/generate.py (`make docs`) from taxonomy.toml: change that, not this page. -->

The ways to spend less on communication in distributed training, in the order of surveys: fewer
rounds, less volume, overlap; then architectures, collectives and protocols. Beside each is where
thinwire has it and how it is called, or that it hasn't, with the reason and the nearest thing.
*Timed* means that schedules, plans or the virtual cluster know what it costs, but that no training
runs by it. Tests hold the page to the code: what it names exists, and what it misses is missing.

The order follows Ouyang, Dong, Xu and Xiao, *Communication Optimization Strategies for Distributed
Deep Neural Network Training: A Survey*, JPDC 149, 2021, [arXiv 2003.03009](https://arxiv.org/abs/2003.03009),
and Shi et al., *A Quantitative Survey of Communication Optimizations in Distributed Deep Learning*,
IEEE Network 2021, [arXiv 2005.13247](https://arxiv.org/abs/2005.13247), with what has come since.
"""

_SPELT = {
    "all_reduce": ('all_reduce(algorithm="{}")', "collectives.md#algorithms-and-what-they-take"),
    "codec": ("{}", "codecs.md"),
    "collective": ("{}", "collectives.md"),
    "command": ("thinwire {}", ""),
    "node": ("{}", "cluster.md#keys"),
    "preset": ("--cluster {}", "cluster.md#presets"),
    "python": ("{}", ""),
    "schedule": ("{}", "schedules.md"),
    "train": ("--set train.{}", ""),
    "wire": ("--set wire.{}", ""),
}
"""How a place of each kind is written, and the page that has it."""


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


def taxonomy() -> list[dict[str, Any]]:
    """The branches of docs/taxonomy.toml, each with its leaves."""
    return tomllib.loads(TAXONOMY.read_text())["branches"]


def taxonomy_page() -> str:
    """The whole text of docs/taxonomy.md."""
    branches = taxonomy()
    places = [p for b in branches for leaf in b["leaves"] for p in leaf.get("here", ())]
    named = [place.split(":")[1] for place in places if place.startswith("method:")]
    others = [place_text(f"method:{name}") for name in METHODS if name not in named]
    parts = [TAXONOMY_HEAD, *map(_branch, branches)]
    if others:
        parts.append(f"Methods that no line names: {', '.join(others)}.\n")
    return "\n".join(parts)


def place_text(place: str) -> str:
    """A place, KIND:NAME, as the page shows it."""
    kind, _, name = place.partition(":")
    if kind == "method":
        return f"[`{name}`](methods.md#{name.partition(':')[0]})"
    form, page = _SPELT[kind]
    text = f"`{form.format(name.replace(':', '.') if kind == 'python' else name)}`"
    return f"[{text}]({page})" if page else text


def _branch(branch: dict[str, Any]) -> str:
    head = [f"## {branch['title']}", "", branch["about"], ""]
    table = ["| technique | what it does | in thinwire |", "|---|---|---|"]
    return "\n".join([*head, *table, *map(_leaf, branch["leaves"])]) + "\n"


def _leaf(leaf: dict[str, Any]) -> str:
    here, near = (", ".join(map(place_text, leaf.get(key, ()))) for key in ("here", "near"))
    note = leaf.get("note", "")
    if here:
        cell = f"{here}; {note}" if note else here
    else:
        cell = f"**not here**: {note}" + (f"; nearest: {near}" if near else "")
    return f"| {leaf['name']} | {leaf['gist']} | {cell} |"


if __name__ == "__main__":
    PAGE.write_text(methods_page())
    TAXONOMY.with_suffix(".md").write_text(taxonomy_page())
