"""The documentation of the record is the contract: it must name every field as the code has it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from thinwire.report.record import SCHEMA, Line

_PAGE = (Path(__file__).parents[2] / "docs" / "record.md").read_text()
_STRUCTS = {struct.__struct_config__.tag: struct for struct in get_args(Line)}


def _documented():
    """Kind to rows of (field, type, default as JSON or "")."""
    found = {}
    for section in re.split(r"^### ", _PAGE.split("## What a report")[0], flags=re.M)[1:]:
        kind = section.split("\n")[0].strip()
        rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \| (?:`([^`]+)` )?\|", section, flags=re.M)
        found[kind] = rows
    return found


def _declared(struct):
    rows = []
    for each in msgspec.structs.fields(struct):
        default = ""
        if each.default is not msgspec.NODEFAULT:
            default = msgspec.json.encode(each.default).decode()
        elif each.default_factory is not msgspec.NODEFAULT:
            default = msgspec.json.encode(each.default_factory()).decode()
        rows.append((each.name, struct.__annotations__[each.name], default))
    return rows


def test_every_kind_is_documented_and_no_other():
    assert list(_documented()) == list(_STRUCTS)


@pytest.mark.parametrize("kind", _STRUCTS)
def test_fields_types_and_defaults_are_as_declared(kind):
    assert _documented()[kind] == _declared(_STRUCTS[kind])


def test_the_schema_number_is_the_documented_one():
    assert f"## Schema {SCHEMA}\n" in _PAGE


def test_the_example_on_the_page_runs(example_folder, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", _PAGE, flags=re.S)
    names = {}
    exec(code, names)
    assert "reach" in names["summarise"](example_folder)
    assert "gtopk 0 ok" in capsys.readouterr().out
