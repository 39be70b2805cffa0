"""What a message owes to a user, and what an exit code says."""

from __future__ import annotations

import inspect

import pytest

from thinwire import errors
from thinwire.errors import InputError, PeerDiedError, ThinwireError, WorkerFailedError, nearest

ALL = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if cls.__module__ == errors.__name__
]


def test_every_error_is_a_thinwire_error_and_is_exported():
    assert len(ALL) >= 10
    for cls in ALL:
        assert issubclass(cls, ThinwireError)
        assert cls.__name__ in errors.__all__


def test_only_what_a_user_can_correct_exits_with_2():
    assert [cls.__name__ for cls in ALL if cls.exit_code == 2] == ["InputError"]
    assert {cls.exit_code for cls in ALL if cls is not InputError} == {1}


def test_bad_input_is_a_value_error_too():
    with pytest.raises(ValueError, match="lr"):
        raise InputError("lr = -1")


@pytest.mark.parametrize("cls", [PeerDiedError, WorkerFailedError])
def test_errors_about_a_rank_carry_it(cls):
    error = cls(3, "rank 3 died")
    assert error.rank == 3
    assert str(error) == "rank 3 died"


def test_the_nearest_name_comes_first_and_all_are_listed():
    assert nearest("gtpok", ["ssgd", "gtopk"]) == "did you mean 'gtopk'? valid: ssgd, gtopk"


def test_nothing_near_is_not_guessed():
    assert nearest("quantum", ["ssgd", "gtopk"]) == "valid: ssgd, gtopk"


def test_the_valid_names_may_be_given_once():
    assert nearest("ssg", iter(["ssgd", "topk"])) == "did you mean 'ssgd'? valid: ssgd, topk"
