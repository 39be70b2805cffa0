"""README and docs keep their word: code and commands run, output is as shown, links lead somewhere.

In a page, a comment above a code block says what else it is: `<!-- file: NAME -->` saves it for the
commands that follow, `<!-- skip: REASON -->` leaves it out.
"""

from __future__ import annotations

import doctest
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import typer

HOUSE = Path(__file__).parents[1]
DOCS = HOUSE / "docs"
PAGES = [HOUSE / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")]
PAGES += sorted(DOCS.rglob("*.md"))
BLOCK = re.compile(
    r"(?:^<!-- (?P<role>skip|file): (?P<value>[^\n]*?) -->\n+)?"
    r"^```(?P<kind>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
IMAGE_LIMIT = 300_000
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, text, and first line in the page."""

    page: Path
    kind: str
    text: str
    line: int
    skip: str = ""
    file: str = ""


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    content = page.read_text()
    found = []
    for match in BLOCK.finditer(content):
        line = content.count("\n", 0, match.start("kind")) + 1
        given = {match["role"]: match["value"]} if match["role"] else {}
        found.append(Block(page, match["kind"], match["text"], line, **given))
    return found


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """The commands of a console block, each with the output shown below it."""
    command, output, open_ = "", [], False
    for line in block.text.splitlines():
        if line.startswith("$ ") or open_:
            if not open_ and command:
                yield command, "\n".join(output)
                command, output = "", []
            command += line.removeprefix("$ ").removesuffix("\\") + " "
            open_ = line.endswith("\\")
        else:
            output.append(line)
    if command:
        yield command.strip(), "\n".join(output)


def with_kind(*kinds: str) -> list[Path]:
    """Pages that have a block of these languages that isn't skipped."""
    return [p for p in PAGES if any(b.kind in kinds and not b.skip for b in blocks(p))]


def name_of(page: Path) -> str:
    return page.relative_to(HOUSE).as_posix()


@pytest.fixture
def desk(tmp_path, monkeypatch) -> Iterator[Path]:
    """An empty folder to work in, on Python's path; what is imported from it is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for file in tmp_path.glob("*.py"):
        sys.modules.pop(file.stem, None)


@pytest.mark.parametrize("page", with_kind("python"), ids=name_of)
def test_the_code_of_a_page_runs(page: Path, desk: Path, monkeypatch):
    module = ModuleType("page")  # dataclasses look their module up
    monkeypatch.setitem(sys.modules, "page", module)
    names = vars(module)
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    parser = doctest.DocTestParser()
    for block in blocks(page):
        if block.file:
            (desk / block.file).write_text(block.text)
        if block.kind != "python" or block.skip:
            continue
        if ">>>" in block.text:
            example = parser.get_doctest(block.text, names, name_of(page), str(page), block.line)
            failures: list[str] = []
            runner.run(example, out=failures.append, clear_globs=False)
            names.update(example.globs)
            assert not failures, "".join(failures)
        else:
            code = "\n" * block.line + block.text  # so that a traceback names the page's line
            exec(compile(code, str(page), "exec", dont_inherit=True), names)


@pytest.mark.slow
@pytest.mark.parametrize("page", with_kind("console"), ids=name_of)
def test_the_commands_of_a_page_work(page: Path, desk: Path):
    checker = doctest.OutputChecker()
    for block in blocks(page):
        if block.file:
            (desk / block.file).write_text(block.text)
        if block.kind != "console" or block.skip:
            continue
        for command, output in commands(block):
            done = run(command, desk)
            where = f"{name_of(page)}:{block.line}: {command}"
            assert done.returncode == 0, f"{where}\n{done.stdout}{done.stderr}"
            got = f"{done.stdout.strip()}\n"
            if output.strip():
                message = f"{where}\nprinted:\n{got}"
                assert checker.check_output(f"{output.strip()}\n", got, FLAGS), message


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command as in a terminal 100 columns wide, with the tools of this Python first."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, shell=True, cwd=folder, env=env, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'src="([^"]+)"', text)
    for target in targets:
        if re.match(r"\w+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), f"{name_of(page)}: {target}"
        if anchor:
            assert anchor in anchors(path), f"{name_of(page)}: {target}"


def anchors(page: Path) -> list[str]:
    """The anchors that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    words = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return [word.replace(" ", "-") for word in words]


def test_every_page_is_in_the_index():
    index = (DOCS / "index.md").read_text()
    for page in PAGES:
        if DOCS in page.parents and page.name != "index.md":
            assert f"({page.relative_to(DOCS).as_posix()})" in index, name_of(page)


def test_pictures_are_small():
    for picture in (DOCS / "images").iterdir():
        assert picture.stat().st_size < IMAGE_LIMIT, picture


def test_commands_on_the_pages_exist_and_every_one_is_shown():
    from thinwire.cli.main import app

    known = sorted(typer.main.get_command(app).commands)  # pyright: ignore[reportAttributeAccessIssue]
    shown: dict[str, str] = {}
    for page in PAGES:
        for block in blocks(page):
            for line in block.text.splitlines() if block.kind in ("console", "text", "sh") else ():
                found = re.search(r"(?:^|\$ |-m |&& )thinwire ([a-z]\w*)", line)
                if found:
                    shown[found[1]] = f"{name_of(page)}: {shlex.quote(line)}"
    assert {verb: where for verb, where in shown.items() if verb not in known} == {}
    assert [verb for verb in known if verb not in shown] == []


def test_the_page_of_methods_is_up_to_date():
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert generate.methods_page() == (DOCS / "methods.md").read_text(), "run `make docs`"


def test_every_skipped_block_says_why():
    for page in PAGES:
        for match in re.finditer(r"<!-- (skip|file):?(.*?)-->", page.read_text()):
            assert len(match[2].strip()) > 2, f"{name_of(page)}: {match[0]}"
