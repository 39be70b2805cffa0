"""A result small enough to know by heart."""

from __future__ import annotations

import pytest

from thinwire.reproduce import Line, Result


@pytest.fixture
def small() -> Result:
    lines = (
        Line(
            section="a & b", name="fitted <1>", ours=2.0, published=2.0, kind="fitted", series="x"
        ),
        Line(section="a & b", name="near", ours=9.0, published=10.0, tolerance=0.2, series="y"),
        Line(section="a & b", name="no figure", ours=3.0, kind="beside", note="since & so"),
        Line(section="claims", name="too small", ours=0.8, at_least=0.9, kind="claim"),
    )
    return Result(name="small", title="Small & simple", source="Nobody, 2020.", lines=lines)
