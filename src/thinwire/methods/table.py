"""The methods by name."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from thinwire.errors import InputError, nearest
from thinwire.methods.alone import Alone
from thinwire.methods.asgd import ASGD
from thinwire.methods.base import Method
from thinwire.methods.bytescheduler import ByteScheduler
from thinwire.methods.dgc import DGC
from thinwire.methods.gtopk import GTopK
from thinwire.methods.lags import LAGS
from thinwire.methods.localsgd import LocalSGD
from thinwire.methods.oktopk import OkTopk
from thinwire.methods.powersgd import PowerSGD
from thinwire.methods.qsgd import QSGD
from thinwire.methods.ssgd import SSGD
from thinwire.methods.topk import TopK
from thinwire.methods.wfbp import WFBP

__all__ = ["METHODS", "build_method", "convert_settings", "load_method"]

T = TypeVar("T")

METHODS: dict[str, type[Method]] = {
    "alone": Alone,
    "asgd": ASGD,
    "bytescheduler": ByteScheduler,
    "dgc": DGC,
    "gtopk": GTopK,
    "lags": LAGS,
    "localsgd": LocalSGD,
    "oktopk": OkTopk,
    "powersgd": PowerSGD,
    "qsgd": QSGD,
    "ssgd": SSGD,
    "topk": TopK,
    "wfbp": WFBP,
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
    if module_name in METHODS:
        raise InputError(
            f"method = {name!r}: {class_name!r} is no setting; settings are written KEY=VALUE, as "
            "in ssgd:accumulate=8"
        )
    found = getattr(_import(name, module_name), class_name, None)
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise InputError(f"method = {name!r}: {class_name} is no class derived from Method there")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise InputError(f"method = {name!r}: these methods are missing: {missing}")
    if inspect.get_annotations(found) and "__dataclass_fields__" not in vars(found):
        raise InputError(f"method = {name!r}: put @dataclass(frozen=True, kw_only=True) above it")
    return found


def _import(name: str, module_name: str) -> types.ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"method = {name!r}: {error}; the module must lie on Python's path (PYTHONPATH)"
        ) from error
    except Exception as error:
        raise InputError(
            f"method = {name!r}: importing {module_name} raised {type(error).__name__}: {error}"
            f"{_place_of(error)}"
        ) from error


def _place_of(error: Exception) -> str:
    """Where in the user's own files it was raised, as " (file:line)"."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_name == "<module>" and code.co_filename != __file__:
            place = f" ({code.co_filename}:{trace.tb_lineno})"
        trace = trace.tb_next
    return place


def build_method(name: str, settings: Mapping[str, Any]) -> Method:
    """A method with its settings, which may be strings from a command line.

    Raises:
        InputError: an unknown method or key (the nearest valid one is named), or a value out of
            its range.

    >>> build_method("gtopk", {"density": "0.001"}).density
    0.001
    """
    return convert_settings(load_method(name), name, settings)


def convert_settings(cls: type[T], group: str, values: Mapping[str, Any]) -> T:
    """A dataclass of settings from values that may be strings.

    Args:
        cls: the dataclass.
        group: what comes before the keys in messages.
        values: by key.

    Raises:
        InputError: an unknown key, a value of a wrong kind or out of its range; names both.
    """
    valid = [f.name for f in dataclasses.fields(cls)]  # pyright: ignore[reportArgumentType]
    hints = typing.get_type_hints(cls, include_extras=True)
    converted = {}
    for key, value in values.items():
        if key not in valid:
            hint = nearest(key, valid) if valid else "it has no settings"
            raise InputError(f"{group}.{key} = {value!r}: unknown; {hint}")
        try:
            converted[key] = msgspec.convert(value, hints[key], strict=False)
        except msgspec.ValidationError as error:
            needed = _needed(hints[key]) or str(error)
            raise InputError(f"{group}.{key} = {value!r}: {needed}") from error
    try:
        return cls(**converted)
    except ValueError as error:
        text = str(error)
        raise InputError(text if text.startswith(f"{group}.") else f"{group}: {text}") from error


def _needed(hint: Any) -> str:
    """What a value of this type has to be, in words; "" where there are none."""
    if typing.get_origin(hint) is typing.Literal:
        return f"valid: {', '.join(map(str, typing.get_args(hint)))}"
    for kind in (hint, *typing.get_args(hint)):
        if kind in _KINDS:
            return f"{_KINDS[kind]} is needed"
    return ""


_KINDS = {bool: "true or false", int: "a whole number", float: "a number"}
