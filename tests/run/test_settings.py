"""From words to settings: what is read, what wins, what is refused and what the refusal says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from thinwire.errors import InputError
from thinwire.methods import SSGD, LocalSGD
from thinwire.run.settings import (
    Assigned,
    MethodSpec,
    TrainSettings,
    assign,
    parse_assignments,
    read_settings,
)


def assigned(methods: str, given: dict | None = None, recipes: dict | None = None, **keywords):
    specs = [MethodSpec.parse(text) for text in methods.split(",")]
    return assign(specs, given or {}, recipes or {}, **keywords)


# --set


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("train.lr=0.1", "train.lr", 0.1),
        ("train.lr = 1e-3", "train.lr", 1e-3),
        ("train.batch=16", "train.batch", 16),
        ("train.split=by_speed", "train.split", "by_speed"),
        ("train.split='by_speed'", "train.split", "by_speed"),
        ("method.flag=true", "method.flag", True),
        ("ssgd accumulate=8.train.lr=0.2", "ssgd accumulate=8.train.lr", 0.2),
        ("train.lr=", "train.lr", ""),
    ],
)
def test_an_assignment_is_a_key_and_a_toml_value_or_a_plain_word(text, key, value):
    assert parse_assignments([text]) == {key: value}


def test_the_last_assignment_of_a_key_wins():
    assert parse_assignments(["train.lr=1", "train.lr=2"]) == {"train.lr": 2}


@pytest.mark.parametrize("text", ["train.lr", "=3", "", "  = 3"])
def test_an_assignment_without_key_or_value_shows_the_form(text):
    with pytest.raises(InputError, match=r"key=value, as in train\.lr=0\.1"):
        parse_assignments([text])


# A settings file


def test_a_file_has_the_keys_of_set_as_tables(tmp_path: Path):
    file = tmp_path / "run.toml"
    file.write_text(
        'train = { lr = 0.1 }\n[wire]\nlink_model = "queue"\n'
        '["ssgd accumulate=8".train]\nbatch = 4\n'
    )
    assert read_settings(file) == {
        "train.lr": 0.1,
        "wire.link_model": "queue",
        "ssgd accumulate=8.train.batch": 4,
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[train]\nlr 0.1\n", r"run\.toml: .*line 2"),
        (b"[train]\nlr = 0.1\n# \xff\n", r"run\.toml:3: not UTF-8"),
        (None, r"run\.toml: No such file"),
    ],
)
def test_an_unreadable_file_is_named_with_the_line(tmp_path: Path, content, message):
    file = tmp_path / "run.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_settings(file)


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="directory"):
        read_settings(tmp_path)


# Methods


@pytest.mark.parametrize(
    ("text", "name", "settings", "label"),
    [
        ("ssgd", "ssgd", {}, "ssgd"),
        (" ssgd:accumulate=8 ", "ssgd", {"accumulate": 8}, "ssgd accumulate=8"),
        (
            "gtopk:density=0.001:losses=kept",
            "gtopk",
            {"density": 0.001, "losses": "kept"},
            "gtopk density=0.001 losses=kept",
        ),
        ("mine:Method", "mine:Method", {}, "mine:Method"),
        ("pkg.mine:Method:h=2", "pkg.mine:Method", {"h": 2}, "pkg.mine:Method h=2"),
    ],
)
def test_a_method_is_a_name_with_settings_after_colons(text, name, settings, label):
    spec = MethodSpec.parse(text)
    assert (spec.name, dict(spec.settings), spec.label) == (name, settings, label)


@pytest.mark.parametrize("text", ["", ":", "accumulate=8"])
def test_a_method_needs_a_name(text):
    with pytest.raises(InputError, match="a name is needed"):
        MethodSpec.parse(text)


def test_a_setting_without_a_value_is_not_taken_for_a_module():
    with pytest.raises(InputError, match="KEY=VALUE, as in ssgd:accumulate=8"):
        MethodSpec.parse("ssgd:accumulate").build()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = undefined\n", r"importing broken raised NameError: .*broken\.py:1\)"),
        ("def f(:\n", r"importing broken raised SyntaxError"),
        ("import a_module_that_is_not_there\n", "a_module_that_is_not_there"),
        ("X = 3\n", "X is no class derived from Method"),
        ("from thinwire import Method\nclass X(Method): pass\n", "missing: worker"),
        (
            "from thinwire import Method\nclass X(Method):\n    h: int = 1\n"
            "    def worker(self, w): pass\n",
            "put @dataclass",
        ),
    ],
)
def test_a_method_of_ones_own_that_cannot_be_used_says_why(tmp_path, monkeypatch, source, message):
    (tmp_path / "broken.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    with pytest.raises(InputError, match=message):
        MethodSpec.parse("broken:X").build()
    sys.modules.pop("broken", None)


# What goes where


def test_without_anything_given_the_defaults_hold():
    assert assigned("ssgd")[0] == Assigned(
        method=SSGD(), train=TrainSettings(), wire=assigned("ssgd")[0].wire
    )


def test_a_recipe_holds_where_nothing_is_given():
    recipes = {"ssgd": {"lr": 0.2, "batch": 4}, "ssgd accumulate=8": {"lr": 0.3}}
    plain, accumulating, other = (
        a.train for a in assigned("ssgd,ssgd:accumulate=8,topk", {"train.batch": 5}, recipes)
    )
    assert (plain.lr, accumulating.lr, other.lr) == (0.2, 0.3, TrainSettings().lr)
    assert plain.batch == accumulating.batch == other.batch == 5


def test_a_recipe_for_all_methods_gives_way_to_their_own():
    recipes = {"*": {"lr": 0.1, "batch": 4}, "ssgd": {"lr": 0.2}}
    ssgd, topk = (a.train for a in assigned("ssgd,topk", None, recipes))
    assert (ssgd.lr, ssgd.batch, topk.lr, topk.batch) == (0.2, 4, 0.1, 4)


@pytest.mark.parametrize("turned", [False, True])
def test_the_more_special_key_wins_whatever_the_order(turned):
    given = {
        "train.lr": 0.1,
        "ssgd.train.lr": 0.2,
        "ssgd accumulate=8.train.lr": 0.3,
    }
    if turned:
        given = dict(reversed(given.items()))
    lrs = [a.train.lr for a in assigned("topk,ssgd,ssgd:accumulate=8", given)]
    assert lrs == [0.1, 0.2, 0.3]


def test_a_label_may_be_written_as_on_the_command_line():
    given = parse_assignments(["ssgd:accumulate=8.train.lr=0.3"])
    assert assigned("ssgd,ssgd:accumulate=8", given)[1].train.lr == 0.3


def test_a_method_key_reaches_every_method_that_has_it_and_a_named_key_that_one():
    topk, gtopk, ssgd = assigned("topk,gtopk,ssgd", {"method.density": 0.5, "gtopk.losses": "kept"})
    assert topk.method.density == gtopk.method.density == 0.5
    assert gtopk.method.losses == "kept"
    assert ssgd.method == SSGD()


def test_what_stands_with_the_method_holds_against_set():
    plain, own = assigned("ssgd,ssgd:accumulate=4", {"ssgd.accumulate": 8})
    assert (plain.method.accumulate, own.method.accumulate) == (8, 4)


def test_values_may_be_words():
    given = {"train.lr": "0.5", "train.batch": "8", "localsgd.every": "16"}
    a = assigned("localsgd", given)[0]
    assert (a.train.lr, a.train.batch, a.method) == (0.5, 8, LocalSGD(every=16))


def test_momentum_goes_with_sgd_and_does_not_stand_in_the_way_of_others():
    adam = assigned("ssgd", {"train.optimizer": "adam"})[0].train
    assert adam.momentum == 0.0
    assert assigned("ssgd", {"train.optimizer": "sgd"})[0].train.momentum == 0.9
    lars = assigned("ssgd", {"train.optimizer": "lars", "train.momentum": 0.8})[0].train
    assert lars.momentum == 0.8


@pytest.mark.parametrize(
    ("methods", "key", "value", "message"),
    [
        ("ssgd", "trian.lr", 1, r"trian\.lr = 1 has no effect.*did you mean 'train\.lr'"),
        ("ssgd", "train.lrr", 1, r"train\.lrr = 1: unknown; did you mean 'lr'"),
        ("ssgd", "train", 1, r"train"),
        ("ssgd", "lr", 1, r"lr = 1 has no effect"),
        ("ssgd", "wire.link", "fair", r"wire\.link = 'fair': unknown; did you mean 'link_model'"),
        ("ssgd", "gtopk.density", 0.1, r"gtopk\.density = 0\.1 has no effect"),
        ("ssgd", "method.density", 0.1, r"method\.density = 0\.1 has no effect"),
        ("ssgd:accumulate=4", "ssgd.accumulate", 8, r"ssgd\.accumulate = 8 has no effect"),
        ("gtopk", "gtopk.densty", 0.1, r"gtopk\.densty = 0\.1: unknown; did you mean 'density'"),
        ("topk,gtopk", "topk.train.lrr", 1, r"train\.lrr"),
        ("ssgd", "train.split", "by_sped", r"train\.split = 'by_sped': valid: equal, by_speed"),
        ("ssgd", "train.lr", "fast", r"train\.lr = 'fast': a number is needed"),
        ("ssgd", "train.batch", 1.5, r"train\.batch = 1\.5: a whole number is needed"),
        ("ssgd", "train.train_limit", "x", r"train\.train_limit = 'x': a whole number"),
        ("ssgd", "train.batch", 0, r"train\.batch = 0: at least 1"),
        ("ssgd", "train.evals", 0, r"train\.evals = 0: at least 1"),
        ("ssgd", "train.epochs", float("inf"), r"train\.epochs = inf: a finite number above 0"),
        ("ssgd", "train.epochs", float("nan"), r"train\.epochs = nan"),
        ("ssgd", "train.threads", -1, r"train\.threads = -1"),
        ("localsgd", "localsgd.pace", "fast", r"localsgd\.pace = 'fast': valid: equal, speed"),
        ("localsgd", "localsgd.every", 0, r"localsgd: every = 0: at least 1"),
        ("ssgd", "wire.link_model", "magic", r"wire\.link_model = 'magic': valid: fair, queue"),
    ],
)
def test_a_bad_key_or_value_is_named_with_what_is_valid(methods, key, value, message):
    with pytest.raises(InputError, match=message):
        assigned(methods, {key: value})


@pytest.mark.parametrize(
    ("key", "value", "works_when_real"),
    [
        ("wire.collectives", "native", True),
        ("wire.deadline", 5, True),
        ("wire.warn_after", 5, True),
        ("wire.link_model", "queue", False),
    ],
)
def test_a_wire_setting_of_the_other_wire_is_an_error(key, value, works_when_real):
    assigned("ssgd", {key: value}, real=works_when_real)
    other = "virtual" if works_when_real else "real"
    with pytest.raises(InputError, match=f"{key} = .* has no effect on a {other} run"):
        assigned("ssgd", {key: value}, real=not works_when_real)


@pytest.mark.parametrize("key", ["deadline", "warn_after"])
def test_a_wait_needs_time(key):
    with pytest.raises(InputError, match=rf"wire\.{key} = 0.* more than 0 s"):
        assigned("ssgd", {f"wire.{key}": 0}, real=True)
