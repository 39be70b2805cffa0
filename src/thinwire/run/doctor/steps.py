"""The time of a training step on this machine, of a task or of a model of the user's own."""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from thinwire.errors import InputError, ThinwireError
from thinwire.run.doctor.report import StepTime
from thinwire.tasks import load_task

__all__ = ["Bench", "load_bench", "time_steps"]

_MOST = 30
_WARM = 2


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What is timed: a model and a function that does one training step of it.

    Args:
        what: for the report.
        build: makes both; it may read data and take its time.
    """

    what: str
    build: Callable[[], tuple[nn.Module, Callable[[], object]]]


def load_bench(task: str, model: str, data: str | None, batch: int) -> Bench:
    """What to time.

    Args:
        task: a key of TASKS or `module:Class`; not looked at where `model` is given.
        model: `module:function`, which returns a model and a function without arguments that does
            one training step; or empty.
        data: where the task's data are.
        batch: samples of a step, 1 or more.

    Raises:
        InputError: no such thing, or the task's data are missing.
    """
    if model:
        return Bench(what=model, build=_own(model))
    found = load_task(task, data)

    def build() -> tuple[nn.Module, Callable[[], object]]:
        torch.manual_seed(0)
        net = found.model()
        x, y = (tensor[:batch] for tensor in found.train_data())
        params = [p for p in net.parameters() if p.requires_grad]

        def step() -> None:
            net.zero_grad()
            found.loss(net, x, y).backward()
            with torch.no_grad():
                for param in params:
                    if param.grad is not None:
                        param.sub_(param.grad, alpha=1e-3)

        return net, step

    return Bench(what=f"{task}, batch of {batch}", build=build)


def _own(model: str) -> Callable[[], tuple[nn.Module, Callable[[], object]]]:
    module_name, _, name = model.partition(":")
    if not (module_name and name):
        raise InputError(f"--model {model}: must be module:function")
    try:
        make = getattr(importlib.import_module(module_name), name, None)
    except Exception as error:
        raise InputError(
            f"--model {model}: importing {module_name} raised {type(error).__name__}: {error}"
        ) from error
    if not callable(make):
        raise InputError(f"--model {model}: module {module_name} has no function {name!r}")

    def build() -> tuple[nn.Module, Callable[[], object]]:
        return _checked(model, make())

    return build


def _checked(model: str, made: Any) -> tuple[nn.Module, Callable[[], object]]:
    good = isinstance(made, tuple) and len(made) == 2
    if not (good and isinstance(made[0], nn.Module) and callable(made[1])):
        raise InputError(
            f"--model {model}: returned {type(made).__name__}; it must return a model and a "
            "function without arguments that does one training step: return model, step"
        )
    return made


def time_steps(bench: Bench, seconds: float) -> StepTime:
    """Time up to 30 steps, in about so many seconds; what goes wrong is in the result."""
    times: list[float] = []
    try:
        model, step = bench.build()
        for _ in range(_WARM):
            step()
        until = time.perf_counter() + seconds
        while len(times) < _MOST and (len(times) < 3 or time.perf_counter() < until):
            began = time.perf_counter()
            step()
            _finish_gpu()
            times.append(time.perf_counter() - began)
        num_params = sum(p.numel() for p in model.parameters())
    except ThinwireError as error:
        return StepTime(what=bench.what, problem=str(error))
    except Exception as error:
        return StepTime(what=bench.what, problem=f"{type(error).__name__}: {error}")
    return StepTime(
        what=bench.what,
        median=statistics.median(times),
        fastest=min(times),
        slowest=max(times),
        count=len(times),
        num_params=num_params,
    )


def _finish_gpu() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
