"""What the layout promises: who may import whom, and how long a file may be."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
ROOT = SRC / "thinwire"
FILES = sorted(ROOT.rglob("*.py"))

LAYERS = (
    "_version",
    "errors",
    "seeds",
    "units",
    "passes",
    "phases",
    "fibers",
    "cluster",
    "wire",
    "collectives",
    "compress",
    "schedule",
    "batches",
    "flat",
    "operations",
    "optim",
    "worker",
    "methods",
    "tasks",
    "models",
    "planner",
    "report",
    "loop",
    "run",
    "reproduce",
    "testing",
    "cli",
    "__main__",
)
"""Lowest first: each may import those before it. Only the command line may use `testing`."""

RESERVED = {
    "torch.distributed": (
        "collectives/native.py",
        "wire/rendezvous.py",
        "testing/processes.py",
        "run/_guards.py",
    ),
    "greenlet": ("fibers.py",),
}
"""Modules that only these files may import."""

MAX_LINES = 450
LONGER = {
    "worker.py": "a replica and the two things made of it share one page of state",
}
"""Files above the limit, each with its reason."""


def place(path: Path) -> str:
    """The layer of a file: the module or package directly under thinwire."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(tree: ast.AST, path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything imported, also inside functions."""
    package = path.relative_to(SRC).parts[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


@cache
def parsed(text: str) -> ast.Module:
    """A text's syntax, for all that ask."""
    return ast.parse(text)


def upward(path: Path, text: str) -> list[str]:
    """The imports of a file that do not point downwards."""
    own = place(path)
    if own == "__init__":
        return []
    found = []
    for line, name in imports(parsed(text), path):
        parts = name.split(".")
        if parts[0] != "thinwire" or parts[1] == own:
            continue
        if parts[1] not in LAYERS or LAYERS.index(parts[1]) > LAYERS.index(own):
            found.append(f"{path.relative_to(ROOT)}:{line}: {own} imports {name}")
    return found


def reserved(path: Path, text: str) -> list[str]:
    """The imports of a file that are left to others."""
    file = path.relative_to(ROOT).as_posix()
    found = []
    for line, name in imports(parsed(text), path):
        for module, allowed in RESERVED.items():
            if f"{name}.".startswith(f"{module}.") and file not in allowed:
                found.append(f"{file}:{line}: imports {name}")
    return found


def test_every_module_has_a_layer():
    places = {place(path) for path in FILES} - {"__init__"}
    assert sorted(places - set(LAYERS)) == []


def test_imports_point_downwards():
    assert [found for path in FILES for found in upward(path, path.read_text())] == []


def test_distributed_engine_and_fibres_have_one_home():
    assert [found for path in FILES for found in reserved(path, path.read_text())] == []


def test_files_stay_short():
    lines = {p.relative_to(ROOT).as_posix(): len(p.read_text().splitlines()) for p in FILES}
    assert {name: n for name, n in lines.items() if n > MAX_LINES and name not in LONGER} == {}


@pytest.mark.parametrize("name", LONGER)
def test_a_file_that_has_become_short_needs_no_reason(name: str):
    assert len((ROOT / name).read_text().splitlines()) > MAX_LINES


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        ("wire/base.py", "from thinwire.methods import SSGD", True),
        ("wire/base.py", "def f():\n    import thinwire.run.real", True),
        ("wire/base.py", "from thinwire import cli", True),
        ("wire/base.py", "from ..worker import Worker", True),
        ("wire/base.py", "from thinwire import errors\nfrom .packet import Packet", False),
        ("run/real.py", "from thinwire.methods import SSGD", False),
        ("methods/base.py", "from thinwire.testing import toys", True),
    ],
)
def test_an_upward_import_is_found_however_it_is_written(file: str, text: str, found: bool):
    assert bool(upward(ROOT / file, text)) is found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import torch.distributed as dist", True),
        ("from torch import distributed", True),
        ("from torch.distributed.rpc import api", True),
        ("def f():\n    from greenlet import getcurrent", True),
        ("import torch", False),
        ("from torch.utils import data", False),
    ],
)
def test_a_reserved_import_is_found_however_it_is_written(text: str, found: bool):
    assert bool(reserved(ROOT / "worker.py", text)) is found
