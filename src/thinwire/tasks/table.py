"""The tasks by name."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from thinwire.errors import InputError, nearest
from thinwire.tasks.base import Task
from thinwire.tasks.digits import Digits
from thinwire.tasks.images import Cifar10, Cifar10ResNet20, FashionMnist

__all__ = ["TASKS", "load_task"]

TASKS: dict[str, type[Task]] = {
    "cifar10": Cifar10,
    "cifar10-resnet20": Cifar10ResNet20,
    "digits": Digits,
    "fashion-mnist": FashionMnist,
}


def load_task(name: str, data: str | Path | None = None, **settings: Any) -> Task:
    """The task of that name, with its data found but not yet read.

    Args:
        name: a key of `TASKS`, or `module:Class` for a task of one's own.
        data: where its data are, for the tasks that read some.
        settings: the task's own, such as train_limit; None is as good as absent.

    Raises:
        InputError: an unknown name, a setting that the task does not have, data that are missing.

    >>> load_task("digits", train_limit=100).num_train
    100
    """
    make = _import_task(name) if ":" in name else TASKS.get(name)
    if make is None:
        raise InputError(f"task = {name!r}; {nearest(name, TASKS)}, or module:Class")
    given = {key: value for key, value in settings.items() if value is not None}
    if data is not None:
        given["data"] = Path(data).expanduser()
    _refuse_unknown(name, make, given)
    return make(**given)


def _refuse_unknown(name: str, make: Callable[..., Task], given: dict[str, Any]) -> None:
    allowed = list(inspect.signature(make).parameters)
    for key, value in given.items():
        if key not in allowed:
            hint = nearest(key, allowed) if allowed else "it has no settings"
            raise InputError(f"{key} = {value} has no effect on task {name}: {hint}")


def _import_task(name: str) -> type[Task]:
    module_name, _, class_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"task = {name!r}: {error}; the module must lie on Python's path (PYTHONPATH)"
        ) from error
    except Exception as error:
        raise InputError(
            f"task = {name!r}: importing {module_name} raised {type(error).__name__}: {error}"
        ) from error
    found = getattr(module, class_name, None)
    if found is None:
        raise InputError(f"task = {name!r}: module {module_name} has no {class_name!r}")
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise InputError(f"task = {name!r}: not a class derived from thinwire.tasks.Task")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise InputError(f"task = {name!r}: these methods are missing: {missing}")
    return found
