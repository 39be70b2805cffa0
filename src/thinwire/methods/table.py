"""The methods by name."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import msgspec

from thinwire.errors import InputError, nearest
from thinwire.methods.alone import Alone
from thinwire.methods.asgd import ASGD
from thinwire.methods.base import Method
from thinwire.methods.gtopk import GTopK
from thinwire.methods.localsgd import LocalSGD
from thinwire.methods.ssgd import SSGD
from thinwire.methods.topk import TopK

__all__ = ["METHODS", "build_method", "load_method"]

METHODS: dict[str, type[Method]] = {
    "alone": Alone,
    "asgd": ASGD,
    "gtopk": GTopK,
    "localsgd": LocalSGD,
    "ssgd": SSGD,
    "topk": TopK,
}


def load_method(name: str) -> type[Method]:
    """The method of that name, or a user's own as `module:Class`.

    Raises:
        InputError: an unknown name, with the nearest valid one; a module or class that cannot be
            used, with the reason.

    >>> load_method("gtopk").__name__
    'GTopK'
    """
    if ":" not in name:
        if name not in METHODS:
            raise InputError(f"method = {name!r}: {nearest(name, METHODS)}, or module:Class")
        return METHODS[name]
    module_name, _, class_name = name.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name, None)
    except (ImportError, ValueError) as error:
        raise InputError(
            f"method = {name!r}: {error}; the module must lie on Python's path (PYTHONPATH)"
        ) from error
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise InputError(f"method = {name!r}: {class_name} is no class derived from Method there")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise InputError(f"method = {name!r}: these methods are missing: {missing}")
    if not dataclasses.is_dataclass(found):
        raise InputError(f"method = {name!r}: put @dataclass(frozen=True, kw_only=True) above it")
    return found


def build_method(name: str, settings: Mapping[str, Any]) -> Method:
    """A method with its settings, which may be strings from a command line.

    Raises:
        InputError: an unknown method or key (the nearest valid one is named), or a value out of
            its range.

    >>> build_method("gtopk", {"density": "0.001"}).density
    0.001
    """
    cls = load_method(name)
    valid = [f.name for f in dataclasses.fields(cls)]
    for key, value in settings.items():
        if key not in valid:
            hint = nearest(key, valid) if valid else "it has no settings"
            raise InputError(f"{name}.{key} = {value!r}: unknown; {hint}")
    try:
        return msgspec.convert(dict(settings), type=cls, strict=False)
    except msgspec.ValidationError as error:
        raise InputError(f"method {name}: {error}") from error
