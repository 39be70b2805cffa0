from __future__ import annotations

import tomllib
from typing import Any

import pytest

from thinwire.cluster._lines import line_of, toml_lines

STRINGS = r'''# comment = 1
"quoted.key" = "a # [b] {c} = \" d"   # [x]
'literal' = 'c:\path'
dotted . "in ner".last = 1979-05-27 07:32:00
many = """
[not.a.table]
x = "y" \""" """""
after = 1
'''


def test_a_key_in_a_text_of_several_lines_is_not_taken_for_one():
    lines = toml_lines(STRINGS)
    assert ("not",) not in lines
    assert lines["after",] == 8


DOCUMENTS = [
    STRINGS,
    "plain = '''\n[[nope]]\nk = 1'''\nafter = 2\n",
    "e = ''''''\nf = \"\"\"\"\"\"\ng = ''\nh = \"\"\n",
    "a = [ [1, 2], # one\n  [3,\n4], [] ]\nb = {x = {y = [1, {z = 2}]}, 'w' = \"}\"}\n",
    "[t]\na = 1\n[t.u]\nb = 2\n[[t.v]]\nc = 3\n[[t.v]]\n[t.v.w]\nd = 4\n",
    "[[t.v]]\n[[t.v.x]]\ne=5\n[[t.v.x]]\n[[t.v]]\n[[t.v.x]]\n",
    "[[n]]\n[n.s]\nq = 1.5e-3\n\n[[n]]\ns.q = true\r\ns.r = 07:32:00\r\n",
    "x.y = 1\nx.z = 2\n[ a . 'b' ]\nc = nan",
    "",
    "# only a comment",
]


def paths(value: Any, path: tuple = ()) -> list[tuple]:
    found = [path] if path else []
    if isinstance(value, dict):
        inner = [paths(item, (*path, key)) for key, item in value.items()]
    elif isinstance(value, list):
        inner = [paths(item, (*path, i)) for i, item in enumerate(value)]
    else:
        inner = []
    return found + [p for part in inner for p in part]


@pytest.mark.parametrize("text", DOCUMENTS)
def test_every_path_of_the_document_has_a_line_and_no_other(text: str):
    assert sorted(toml_lines(text), key=str) == sorted(paths(tomllib.loads(text)), key=str)


def test_lines_are_those_of_the_keys():
    text = "\na = 1\n[[n]]\nb = [\n1,\n2]\n[[n]]\nb = {c = 1}\n"
    lines = toml_lines(text)
    assert lines["a",] == 2
    assert lines["n", 0] == 3
    assert lines["n", 0, "b"] == 4
    assert lines["n", 0, "b", 1] == 6
    assert lines["n", 1] == 7
    assert lines["n", 1, "b", "c"] == 8


def test_a_path_that_is_not_written_has_the_line_around_it():
    lines = toml_lines("\n\n[t]\na = 1\n")
    assert line_of(lines, ("t", "missing")) == 3
    assert line_of(lines, ("elsewhere",)) == 1
