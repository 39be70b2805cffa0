"""What holds for the package as a whole: its names, its dependencies, its pins, its speed."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import thinwire

HOUSE = Path(__file__).parents[1]
ROOT = HOUSE / "src/thinwire"
PROJECT = tomllib.loads((HOUSE / "pyproject.toml").read_text())["project"]
PACKAGES = sorted(ROOT.rglob("__init__.py"))

PACKAGE_OF = {"PIL": "pillow", "sklearn": "scikit-learn", "zmq": "pyzmq"}
"""Import name to distribution, where they differ."""

OPTIONAL = ("pillow",)
"""Of the extras: imported where it is used, with an error that says what to install."""


def module_name(path: Path) -> str:
    """The dotted name of a source file."""
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def parsed(path: Path) -> ast.Module:
    """A file's syntax, for all that ask."""
    return ast.parse(path.read_text())


def declared(path: Path) -> list[str] | None:
    """A file's `__all__`."""
    for node in parsed(path).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return None


def order(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions: ruff's order."""
    if name.isupper() and len(name) > 1:
        return 0, name
    return (1 if name[:1].isupper() else 2), name


def imported(*folders: Path) -> list[str]:
    """Distributions that the files of these folders import, at top level or in functions."""
    found: dict[str, None] = {}
    for folder in folders:
        for path in folder.rglob("*.py"):
            for node in ast.walk(parsed(path)):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and not node.level:
                    names = [node.module or ""]
                for name in names:
                    top = name.partition(".")[0]
                    if top not in sys.stdlib_module_names and top != "thinwire":
                        found[PACKAGE_OF.get(top, top)] = None
    return sorted(found)


def requirements(texts: list[str]) -> list[str]:
    """Distribution names of requirement texts."""
    return sorted(re.split(r"[\s<>=!~\[;]", text)[0].lower() for text in texts)


def pins() -> dict[str, str]:
    """What requirements.txt pins."""
    lines = (HOUSE / "requirements.txt").read_text().splitlines()
    kept = [line for line in lines if line and not line.startswith("#")]
    return dict(line.split("==") for line in kept)


def test_every_name_that_a_package_declares_can_be_imported():
    for path in PACKAGES:
        module = importlib.import_module(module_name(path))
        for name in declared(path) or []:
            assert getattr(module, name) is not None


def test_every_module_declares_its_names_in_order():
    for path in sorted(ROOT.rglob("*.py")):
        names = declared(path)
        if names is None:
            body = parsed(path).body
            assert not [n for n in body if isinstance(n, ast.ClassDef | ast.FunctionDef)], path
        else:
            assert names == sorted(set(names), key=order), path


def test_a_package_only_reexports():
    """All but thinwire itself, which does so when asked."""
    for path in PACKAGES:
        if path == ROOT / "__init__.py":
            continue
        for node in parsed(path).body:
            text = ast.unparse(node)
            docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            allowed = docstring or isinstance(node, ast.ImportFrom) or text.startswith("__all__ =")
            assert allowed, f"{path}: {text}"


def test_the_lazy_names_are_those_declared():
    assert sorted(thinwire._HOMES) == sorted(set(thinwire.__all__) - {"__version__"})
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = thinwire.Nothing


@pytest.mark.parametrize(
    "code", ["import thinwire", "import thinwire.cli", "import thinwire.planner"]
)
def test_torch_is_not_loaded_before_it_is_needed(code: str):
    check = f"import sys; {code}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], timeout=60).returncode == 0


def test_every_dependency_is_imported_and_every_import_is_a_dependency():
    needed = requirements(PROJECT["dependencies"])
    assert sorted(set(imported(ROOT)) - set(OPTIONAL)) == needed


def test_tests_and_benchmarks_need_no_more_than_the_dev_extra():
    allowed = requirements(PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"])
    folders = [HOUSE / name for name in ("tests", "benchmarks", "docs", "examples")]
    own = [path.stem for folder in folders for path in folder.rglob("*.py")]
    extra = set(imported(*folders)) - set(allowed) - set(own)
    assert sorted(extra) == []


def test_requirements_pin_every_dependency_exactly():
    wanted = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]
    pinned = pins()
    for name in requirements(wanted):
        assert re.fullmatch(r"[0-9][0-9a-z.]*", pinned.get(name, "")), name
    assert "://" not in (HOUSE / "requirements.txt").read_text()


def test_pins_lie_above_the_floors_and_below_the_ceilings():
    specifiers = pytest.importorskip("packaging.requirements")
    pinned = pins()
    for text in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]:
        wanted = specifiers.Requirement(text)
        assert wanted.specifier.contains(pinned[wanted.name]), text


def test_the_source_names_no_place_of_one_machine():
    """Absolute paths of a home or work folder have no business in a package."""
    wrong = re.compile(r"(?<![\w.])/(?:home|root|work|Users)/\w")
    for path in _texts():
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            assert not wrong.search(line), f"{path.relative_to(HOUSE)}:{number}: {line.strip()}"


def _texts() -> Iterator[Path]:
    for folder, pattern in (("src", "*.py"), ("docs", "*.md"), ("benchmarks", "*.py")):
        yield from (HOUSE / folder).rglob(pattern)
    yield from HOUSE.glob("*.md")
