"""The page of the taxonomy can't rot: what it names exists, and what it misses is missing."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from thinwire import collectives, compress, schedule
from thinwire.cli.main import app
from thinwire.cluster import PRESETS, Node
from thinwire.collectives import dense
from thinwire.errors import InputError
from thinwire.methods.table import convert_settings
from thinwire.run.settings import MethodSpec, TrainSettings, WireSettings, parse_assignments
from thinwire.worker import Optimizer

DOCS = Path(__file__).parents[1] / "docs"
MISSING = (InputError, AttributeError, ModuleNotFoundError)


def load_generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    return generate


GENERATE = load_generate()
LEAVES: list[dict[str, Any]] = [leaf for branch in GENERATE.taxonomy() for leaf in branch["leaves"]]


def needed(found: bool) -> None:
    if not found:
        raise InputError("no such name")


def setting(cls: type[Any], text: str) -> None:
    """One `key=value` of a dataclass of settings, as `--set` takes it."""
    train = convert_settings(cls, "x", parse_assignments([text]))
    if cls is TrainSettings and text.startswith("optimizer="):
        Optimizer(name=train.optimizer)


def attribute(text: str) -> None:
    module, _, path = text.partition(":")
    found = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)


LOOK_UP: dict[str, Callable[[str], Any]] = {
    "all_reduce": lambda name: needed(name in dense.ALL_REDUCES),
    "codec": lambda name: needed(name in compress.__all__),
    "collective": lambda name: needed(name in collectives.__all__),
    "command": lambda name: needed(
        name in typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]
    ),
    "method": lambda text: MethodSpec.parse(text).build(),
    "node": lambda name: needed(name in [f.name for f in dataclasses.fields(Node)]),
    "preset": lambda name: needed(name in PRESETS),
    "python": attribute,
    "schedule": lambda name: needed(name in schedule.__all__),
    "train": lambda text: setting(TrainSettings, text),
    "wire": lambda text: setting(WireSettings, text),
}


def look_up(place: str) -> None:
    """Raises where there is no such place."""
    kind, _, name = place.partition(":")
    LOOK_UP[kind](name)


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf["name"])
def test_what_a_line_names_exists_and_what_it_misses_is_missing(leaf: dict[str, Any]):
    for place in (*leaf.get("here", ()), *leaf.get("near", ())):
        look_up(place)
    for place in leaf.get("absent", ()):
        with pytest.raises(MISSING):
            look_up(place)


@pytest.mark.parametrize(
    "place",
    ["method:gtopkk", "method:wfbp:groups=none", "schedule:mergd", "codec:topkk", "preset:home",
     "collective:sum", "all_reduce:rings", "command:plans", "node:nothing", "train:lr_bach=3",
     "train:optimizer=sdg", "wire:collectives=mpi", "python:thinwire.optim:LARC"],
)  # fmt: skip
def test_a_place_that_is_none_is_found(place: str):
    with pytest.raises(MISSING):
        look_up(place)


def test_a_line_says_where_or_why_not_and_names_are_given_once():
    for leaf in LEAVES:
        assert set(leaf) <= {"name", "gist", "here", "near", "note", "absent"}, leaf["name"]
        assert bool(leaf.get("here")) or bool(leaf.get("note")), leaf["name"]
        assert not (leaf.get("here") and leaf.get("absent")), leaf["name"]
        assert "|" not in "".join(map(str, leaf.values())), leaf["name"]
    names = [leaf["name"] for leaf in LEAVES]
    assert sorted(names) == sorted(set(names))


def test_every_method_is_on_the_page():
    page = GENERATE.taxonomy_page()
    for name in GENERATE.METHODS:
        assert f"(methods.md#{name})" in page


def test_the_page_is_up_to_date():
    assert GENERATE.taxonomy_page() == (DOCS / "taxonomy.md").read_text(), "run `make docs`"
