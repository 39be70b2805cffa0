from __future__ import annotations

import json

import pytest

from thinwire.errors import InputError
from thinwire.reproduce import Line, Result


def line(**fields) -> Line:
    return Line(**{"section": "s", "name": "n", "ours": 1.0, **fields})


@pytest.mark.parametrize(
    ("fields", "holds"),
    [
        ({"ours": 9.0, "published": 10.0, "tolerance": 0.11}, True),
        ({"ours": 9.0, "published": 10.0, "tolerance": 0.09}, False),
        ({"ours": 11.0, "published": 10.0, "tolerance": 0.09}, False),
        ({"ours": -9.0, "published": -10.0, "tolerance": 0.11}, True),
        ({"ours": 0.9, "at_least": 0.9}, True),
        ({"ours": 0.89, "at_least": 0.9}, False),
        ({"ours": 6.1, "at_most": 6.0}, False),
        ({"ours": 10.0, "published": 10.0, "tolerance": 0.1, "at_most": 6.0}, False),
        ({"ours": 5.0, "published": 10.0}, None),
    ],
)
def test_a_line_holds_when_everything_it_is_judged_by_does(fields, holds):
    assert line(**fields).holds is holds


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"kind": "claim"}, "a claim needs"),
        ({"kind": "fitted", "at_most": 1.0}, "fitted cannot be judged"),
        ({"kind": "beside", "at_most": 1.0}, "beside cannot be judged"),
        ({"kind": "guess"}, "valid: fitted"),
        ({"tolerance": 0.1}, "needs a published figure"),
        ({"tolerance": 0.0, "published": 1.0}, "above 0"),
        ({"ours": float("nan")}, "finite"),
    ],
)
def test_a_line_that_could_not_be_judged_fairly_is_refused(fields, named):
    with pytest.raises(InputError, match=named):
        line(**fields)


def test_two_lines_of_one_name_in_a_section_are_refused():
    with pytest.raises(InputError, match="twice"):
        Result(name="r", title="", source="", lines=(line(), line()))


def test_one_line_that_does_not_hold_makes_the_exit_code_3(small):
    assert small.exit_code == 3
    assert [each.name for each in small.failed] == ["too small"]
    good = Result(name="good", title="", source="", lines=small.lines[:3])
    assert good.exit_code == 0


def test_json_says_what_follows_from_the_figures(small):
    values = json.loads(json.dumps(small.to_dict()))
    assert values["holds"] is False
    assert [entry["holds"] for entry in values["lines"]] == [None, True, None, False]
    assert [entry["ratio"] for entry in values["lines"]] == [1.0, 0.9, None, None]
