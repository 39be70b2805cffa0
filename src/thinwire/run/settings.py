"""What a run is asked to do, as frozen dataclasses that a TOML file or `--set` fills."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from thinwire.errors import InputError, nearest
from thinwire.methods import Method, build_method
from thinwire.methods.fit import check_collectives, check_optimizer
from thinwire.methods.table import convert_settings

__all__ = [
    "Assigned",
    "MethodSpec",
    "TrainSettings",
    "WireSettings",
    "assign",
    "parse_assignments",
    "read_settings",
]

_REAL_ONLY = ("collectives", "deadline", "warn_after")
_VIRTUAL_ONLY = ("link_model",)


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """What is learned, and with which steps.

    Args:
        batch: samples per worker and step on average; the global batch is this times the workers.
        split: "equal" batches, or "by_speed": in proportion to the workers' speeds.
        epochs: passes over the training set, by all workers together.
        evals: evaluations in a run, about.
        optimizer: see `thinwire.worker.Optimizer`.
        lr: learning rate.
        lr_batch: samples of a step over all workers for which `lr` is meant: with another global
            batch the rate grows or falls in proportion (linear scaling); 0: `lr` as it is.
        momentum: of sgd; 0 with another optimizer unless given, which lars allows.
        weight_decay: L2 coefficient.
        warmup: updates over which the learning rate rises to `lr`.
        decay: how the rate falls over the run: "none", or to zero by "linear" or "cosine".
        train_limit: use only the first samples of the training set.
        threads: of torch, per process; 0 divides this machine's cores among its processes.
            Equal bits on a virtual and a real run need equal threads.
    """

    batch: int = 16
    split: Literal["equal", "by_speed"] = "equal"
    epochs: float = 12.0
    evals: int = 30
    optimizer: str = "sgd"
    lr: float = 0.05
    lr_batch: int = 0
    momentum: float = 0.9
    weight_decay: float = 0.0
    warmup: int = 0
    decay: Literal["none", "linear", "cosine"] = "none"
    train_limit: int | None = None
    threads: int = 0

    def __post_init__(self) -> None:
        if self.threads < 0:
            raise InputError(f"train.threads = {self.threads}: at least 0 is needed")
        if self.lr_batch < 0:
            raise InputError(
                f"train.lr_batch = {self.lr_batch}: a number of samples, or 0 for none, is needed"
            )
        for key in ("batch", "evals"):
            if getattr(self, key) < 1:
                raise InputError(f"train.{key} = {getattr(self, key)}: at least 1 is needed")
        if not 0 < self.epochs < math.inf:
            raise InputError(f"train.epochs = {self.epochs}: a finite number above 0 is needed")


@dataclass(frozen=True, kw_only=True)
class WireSettings:
    """How messages travel.

    Args:
        link_model: of the virtual network: "fair" (streams share links) or "queue".
        collectives: on the real wire: "written" (thinwire's own, the same bits as the virtual run)
            or "native" (torch.distributed's).
        deadline: seconds after which a wait on the real wire fails, naming who is missing.
        warn_after: seconds after which a wait on the real wire is reported.
    """

    link_model: Literal["fair", "queue"] = "fair"
    collectives: Literal["written", "native"] = "written"
    deadline: float = 300.0
    warn_after: float = 10.0

    def __post_init__(self) -> None:
        for key in ("deadline", "warn_after"):
            if not getattr(self, key) > 0:
                raise InputError(f"wire.{key} = {getattr(self, key)}: more than 0 s is needed")


@dataclass(frozen=True, kw_only=True)
class MethodSpec:
    """A method as written on a command line: `gtopk`, `ssgd:accumulate=8`, `mine:Method`.

    Args:
        name: a key of METHODS or `module:Class`.
        settings: its settings as given.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def parse(text: str) -> MethodSpec:
        """Read the command-line form.

        >>> MethodSpec.parse("ssgd:accumulate=8").settings
        {'accumulate': 8}
        >>> MethodSpec.parse("mine:Method").name
        'mine:Method'
        """
        parts = text.strip().split(":")
        name = ":".join(p for p in parts if "=" not in p)
        settings = dict(_assignment(p) for p in parts if "=" in p)
        if not name.strip(": "):
            raise InputError(f"method {text!r}: a name is needed, as in ssgd:accumulate=8")
        return MethodSpec(name=name, settings=settings)

    @property
    def label(self) -> str:
        """What tables call it."""
        return " ".join([self.name, *(f"{k}={v}" for k, v in self.settings.items())])

    def build(self) -> Method:
        """The method itself; raises InputError."""
        return build_method(self.name, self.settings)


def parse_assignments(texts: Iterable[str]) -> dict[str, Any]:
    """`a.b=value` texts as a flat mapping; values are TOML, or else plain words.

    >>> parse_assignments(["train.lr=0.1", "train.split=by_speed"])
    {'train.lr': 0.1, 'train.split': 'by_speed'}
    """
    return dict(_assignment(text) for text in texts)


def _assignment(text: str) -> tuple[str, Any]:
    key, equals, value = text.rpartition("=")  # a label may hold one, as in "ssgd accumulate=8"
    if not equals or not key.strip():
        raise InputError(f"--set {text!r}: the form is key=value, as in train.lr=0.1")
    try:
        parsed = tomllib.loads(f"x = {value.strip()}")["x"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    return key.strip(), parsed


def read_settings(path: Path) -> dict[str, Any]:
    """A settings file: the keys of `--set` as TOML tables, given back flat.

    Raises:
        InputError: an unreadable file, with the line.
    """
    try:
        with path.open("rb") as file:
            tree = tomllib.load(file)
    except OSError as error:
        raise InputError(f"settings file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise InputError(
            f"settings file {path}:{line}: not UTF-8 text, which TOML must be"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"settings file {path}: {error}") from error
    return _flatten(tree)


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


@dataclass(frozen=True, kw_only=True)
class Assigned:
    """Settings for one labelled method after all assignments.

    Args:
        method: built with its settings.
        train: for this method.
        wire: for this method.
    """

    method: Method
    train: TrainSettings
    wire: WireSettings


def assign(
    specs: list[MethodSpec],
    given: Mapping[str, Any],
    recipes: Mapping[str, Mapping[str, Any]],
    *,
    real: bool = False,
) -> list[Assigned]:
    """Settings for every method: its recipe, then what the user gave, from general to special.

    Keys are `train.KEY` and `wire.KEY` (all methods), `method.KEY` (every method that has it),
    `NAME.KEY` and `NAME.train.KEY` (that method with whatever settings), and the same with a
    `LABEL`. What stands with the method itself, as in `ssgd:accumulate=8`, holds.

    Args:
        specs: the methods.
        given: flat keys to values.
        recipes: training settings by label or name, used where `given` says nothing.
        real: for processes, not for the virtual cluster.

    Raises:
        InputError: an unknown key, or one that has no effect on any of the methods.
    """
    used: set[str] = set()
    out = []
    for spec in specs:
        train = {}
        for name in ("*", spec.name, spec.label):
            train.update(recipes.get(name, {}))
        settings: dict[str, Any] = {}
        wire: dict[str, Any] = {}
        for key in sorted(given, key=lambda key: _specificity(spec, key)):
            if _place(spec, key, given[key], train, wire, settings):
                used.add(key)
        _refuse_idle(wire, real)
        method = build_method(spec.name, {**settings, **spec.settings})
        if train.get("optimizer", "sgd") != "sgd" or method.traits.momentum == "method":
            train.setdefault("momentum", 0.0)
        out.append(
            Assigned(
                method=method,
                train=convert_settings(TrainSettings, "train", train),
                wire=convert_settings(WireSettings, "wire", wire),
            )
        )
        check_optimizer(method, out[-1].train.optimizer, out[-1].train.momentum)
        check_collectives(method, out[-1].wire.collectives)
    unused = [key for key in given if key not in used]
    if unused:
        key = unused[0]
        raise InputError(f"{key} = {given[key]!r} has no effect here: {_valid_keys(specs, key)}")
    return out


def _specificity(spec: MethodSpec, key: str) -> int:
    """0 for all methods, 1 for this one by name, 2 by label: the last one placed holds."""
    group = _own_prefix(spec, key)
    return 0 if not group else 1 if group == spec.name else 2


def _own_prefix(spec: MethodSpec, key: str) -> str:
    """The beginning of a key that means this method, "" if none does."""
    for prefix in (spec.label, spec.label.replace(" ", ":"), spec.name):
        if key.startswith(f"{prefix}.") and prefix not in ("train", "wire", "method"):
            return prefix
    return ""


def _refuse_idle(wire: Mapping[str, Any], real: bool) -> None:
    for key in _VIRTUAL_ONLY if real else _REAL_ONLY:
        if key in wire:
            kind = "real" if real else "virtual"
            raise InputError(f"wire.{key} = {wire[key]!r} has no effect on a {kind} run")


def _place(
    spec: MethodSpec,
    key: str,
    value: Any,
    train: dict[str, Any],
    wire: dict[str, Any],
    settings: dict[str, Any],
) -> bool:
    """Put one assignment where it belongs for this method; whether it belongs anywhere."""
    group, _, rest = key.partition(".")
    own = _own_prefix(spec, key)
    if own:
        group, rest = "own", key[len(own) + 1 :]
    if group == "own" and rest.startswith(("train.", "wire.")):
        group, _, rest = rest.partition(".")
    if group == "train":
        train[rest] = value
    elif group == "wire":
        wire[rest] = value
    elif rest in spec.settings:
        return False
    elif group == "own" or (group == "method" and rest in _fields(spec)):
        settings[rest] = value
    else:
        return False
    return True


def _fields(spec: MethodSpec) -> list[str]:
    return [f.name for f in dataclasses.fields(type(spec.build()))]


def _valid_keys(specs: list[MethodSpec], key: str) -> str:
    valid = [f"train.{f.name}" for f in dataclasses.fields(TrainSettings)]
    valid += [f"wire.{f.name}" for f in dataclasses.fields(WireSettings)]
    for spec in specs:
        valid += [f"{spec.name}.{name}" for name in _fields(spec)]
    return nearest(key, dict.fromkeys(valid))
