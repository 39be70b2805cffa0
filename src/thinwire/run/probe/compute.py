"""A model's training steps on this machine: passes, layers and the optimizer, many times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from thinwire.errors import InputError
from thinwire.flat import Flat
from thinwire.models import describe
from thinwire.models._subject import Sizes, runnable
from thinwire.run.probe.report import Computing
from thinwire.run.probe.stats import drift_of, spread_of

__all__ = ["Subject", "load_subject", "time_steps"]

_MOST = 400
_LEAST = 5
_WARM = 2


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is timed.

    Args:
        model: its name.
        batch: samples of a step.
        flops: operations of a training step, as the cost model counts them: three forward passes.
        build: the model and a call of it, which gives a scalar.
    """

    model: str
    batch: int
    flops: float
    build: Callable[[], tuple[nn.Module, Callable[[], torch.Tensor]]]


def load_subject(model: str, batch: int) -> Subject:
    """A model by name, or `module:function`, as `thinwire model` takes it.

    Raises:
        InputError: no such model, or one whose inputs cannot be guessed.
    """
    table = describe(model, batch=batch)
    if not table.forward_flops:
        raise InputError(
            f"model = {model!r}: no matrix product or convolution in it, so it has no FLOP/s"
        )

    def build() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
        torch.manual_seed(0)
        made, args, kwargs = runnable(model, Sizes(batch))
        return made, lambda: _scalar(made(*args, **kwargs))

    return Subject(model=model, batch=batch, flops=3.0 * table.forward_flops, build=build)


def _scalar(outputs: Any) -> torch.Tensor:
    """The outputs' squares, summed: every output gets a gradient, as a loss would give it."""
    leaves = [x for x in _pytree.tree_leaves(outputs) if torch.is_tensor(x) and x.requires_grad]
    return torch.stack([leaf.float().square().mean() for leaf in leaves]).sum()


def time_steps(subject: Subject, seconds: float) -> Computing:
    """Time 5 to 400 training steps with momentum SGD, in about so many seconds.

    The parameters are flat, as in a run. Every fourth step has hooks that note when layers begin
    and gradients are complete; the passes' times come from the others.
    """
    model, call = subject.build()
    flat = Flat(model)
    steps = _Steps(model, flat, call)
    for _ in range(_WARM):
        steps.plain()
    until = time.perf_counter() + seconds
    while steps.count < _MOST and (steps.count < _LEAST or time.perf_counter() < until):
        steps.hooked() if steps.count % 4 == 3 else steps.plain(keep=True)
        steps.count += 1
    total = [f + b for f, b in zip(steps.forward, steps.backward, strict=True)]
    return Computing(
        model=subject.model,
        batch=subject.batch,
        threads=torch.get_num_threads(),
        flops=subject.flops,
        num_params=flat.params_P.numel(),
        total=spread_of(total),
        forward=spread_of(steps.forward),
        backward=spread_of(steps.backward),
        update=spread_of(steps.update),
        drift=drift_of(total),
        names=[layer.name for layer in flat.layers],
        sizes=[layer.numel for layer in flat.layers],
        needed=list(map(_median, steps.needed)),
        ready=list(map(_median, steps.ready)),
    )


def _median(times: list[float]) -> float | None:
    return statistics.median(times) if times else None


class _Steps:
    """Training steps of one model, and what they took."""

    def __init__(self, model: nn.Module, flat: Flat, call: Callable[[], torch.Tensor]):
        self._model = model
        self._flat = flat
        self._call = call
        self._optimizer = torch.optim.SGD([flat.params_P], lr=1e-4, momentum=0.9)
        flat.params_P.grad = flat.grad_P
        self.count = 0
        self.forward: list[float] = []
        self.backward: list[float] = []
        self.update: list[float] = []
        self.needed: list[list[float]] = [[] for _ in flat.layers]
        self.ready: list[list[float]] = [[] for _ in flat.layers]

    def plain(self, keep: bool = False) -> None:
        """A step without hooks."""
        began, turned, ended = self._passes()
        self._optimizer.step()
        if keep:
            self.update.append(time.perf_counter() - ended)
            self.forward.append(turned - began)
            self.backward.append(ended - turned)

    def hooked(self) -> None:
        """A step that notes the moments of the layers."""
        moments: dict[int, float] = {}
        stop = self._flat.watch(lambda i: self._note(moments, i))
        begun: dict[int, float] = {}
        handles = [
            module.register_forward_pre_hook(
                lambda *_, own=own: [self._note(begun, i) for i in own] and None
            )
            for module, own in self._owners()
        ]
        try:
            began, turned, _ = self._passes()
        finally:
            stop()
            for handle in handles:
                handle.remove()
        for times, found, start in ((self.ready, moments, turned), (self.needed, begun, began)):
            for index, moment in found.items():
                times[index].append(max(0.0, moment - start))

    @staticmethod
    def _note(moments: dict[int, float], index: int) -> None:
        moments.setdefault(index, time.perf_counter())

    def _owners(self) -> list[tuple[nn.Module, list[int]]]:
        places = {id(param): i for i, param in enumerate(self._flat.params)}
        owners = []
        for module in self._model.modules():
            own = [places[id(p)] for p in module.parameters(recurse=False) if id(p) in places]
            if own:
                owners.append((module, own))
        return owners

    def _passes(self) -> tuple[float, float, float]:
        self._flat.clear_grad()
        began = time.perf_counter()
        loss = self._call()
        turned = time.perf_counter()
        loss.backward()
        return began, turned, time.perf_counter()
