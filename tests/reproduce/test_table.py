from __future__ import annotations

import pytest

from thinwire.errors import InputError
from thinwire.reproduce import REPRODUCTIONS, load_reproduction


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_every_entry_is_found_by_its_own_name_and_has_a_paper(name):
    found = load_reproduction(name)
    assert found.name == name
    assert found.title
    assert found.paper.cite()


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("gtpok", "did you mean 'gtopk'"),
        ("no_such_module:Paper", "no_such_module"),
        ("thinwire.reproduce:Nothing", "has no Nothing"),
        ("thinwire.errors:nearest", "has no run"),
        (":", "unknown"),
    ],
)
def test_what_cannot_be_reproduced_is_refused_by_name(name, named):
    with pytest.raises(InputError, match=named):
        load_reproduction(name)
