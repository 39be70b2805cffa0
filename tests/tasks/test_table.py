from __future__ import annotations

from pathlib import Path

import pytest

from thinwire.errors import InputError
from thinwire.tasks import TASKS, AbstractClassification, Digits, load_task


def test_names_agree_with_the_table():
    assert {name: task.name for name, task in TASKS.items()} == {name: name for name in TASKS}
    assert list(TASKS) == sorted(TASKS)


def test_settings_reach_the_task():
    assert load_task("digits", train_limit=64) == Digits(train_limit=64)


def test_a_setting_of_none_is_absent():
    assert load_task("digits", data=None, train_limit=None, test_limit=None) == Digits()


def test_an_unknown_name_hints_at_the_nearest():
    with pytest.raises(InputError, match="task = 'digts'; did you mean 'digits'"):
        load_task("digts")


def test_a_setting_without_effect_is_refused():
    with pytest.raises(InputError, match="data = somewhere has no effect on task digits"):
        load_task("digits", data="somewhere")
    with pytest.raises(InputError, match="did you mean 'train_limit'"):
        load_task("digits", train_limt=5)


def test_a_task_of_ones_own_is_found_by_module_and_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "own_task_module.py").write_text(
        "from thinwire.testing.toys import Moons\n"
        "class Mine(Moons):\n"
        "    name = 'mine'\n"
        "class Half(Moons.__mro__[1]):\n"
        "    name = 'half'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert load_task("own_task_module:Mine").num_train == 256
    with pytest.raises(InputError, match="missing: model, test_data, train_data"):
        load_task("own_task_module:Half")
    with pytest.raises(InputError, match="has no 'Other'"):
        load_task("own_task_module:Other")


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("no_such_module_here:X", "No module named 'no_such_module_here'"),
        (":X", "':X'"),
        ("json:loads", "not a class derived from"),
        ("json:JSONDecoder", "not a class derived from"),
    ],
)
def test_what_is_not_a_task_is_refused(name: str, match: str):
    with pytest.raises(InputError, match=match):
        load_task(name)


def test_the_abstract_part_is_no_task():
    with pytest.raises(TypeError):
        AbstractClassification()  # pyright: ignore[reportAbstractUsage]
