"""What a method works on in somebody's own loop: their model and their optimizer.

Shape suffixes: P all parameters.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from thinwire.batches import SampleStream
from thinwire.errors import InputError, NonFiniteError
from thinwire.fibers import pause
from thinwire.flat import Flat, Layer
from thinwire.loop._journal import Journal
from thinwire.loop._overlap import Overlap
from thinwire.phases import Phases
from thinwire.wire.base import Comm
from thinwire.worker import Batch, Plan, step_work

__all__ = ["BATCH", "GRADIENT", "LoopBody", "ServedBody"]

logger = logging.getLogger("thinwire.loop")

BATCH = "batch"
GRADIENT = "gradient"


class LoopBody:
    """A model and its optimizer; batches and gradients are what the loop around them makes.

    The method's program runs in a fibre: `next_batch` and `gradient` pause it until the loop has
    come so far.

    Args:
        flat: the model's parameters that the optimizer steps.
        plan: how much there is to do; its length becomes known at the end.
        comm: for error messages.
        step: the optimizer's own step.
        overlap: gives gradients away during backward; None where the method works at the step.

    Attributes:
        wants: what the program is paused for: BATCH, GRADIENT, or None while it runs.
        ready: whether the loop has made this step's gradient before the program asks for it; then
            `gradient` does not pause.
        journal: of the loop.
        timed: whether anybody reads where the program's time goes.
        in_vain: whether no rank has a gradient for this step: then `apply` takes what a method had
            still in store, but no step along zero, which momentum would turn into a real one.
    """

    def __init__(
        self,
        flat: Flat,
        plan: Plan,
        comm: Comm,
        step: Callable[[], Any],
        overlap: Overlap | None = None,
    ):
        self.flat = flat
        self.plan = plan
        self.done = 0
        self.comm = comm
        self.overlap = overlap
        self.wants: str | None = None
        self.ready = False
        self.timed = comm.size > 1
        self.in_vain = False
        self.journal: Journal | None = None
        self._step = step
        nothing = torch.empty(0)
        self._work = step_work(flat.grad_P)
        self._batch = Batch(torch.zeros(1, dtype=torch.int64), nothing, nothing, 1 / comm.size)

    @property
    def params(self) -> torch.Tensor:
        """All parameters as one vector (P,), shared with the model; written in place."""
        return self.flat.params_P.data

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layer table of `params`."""
        return self.flat.layers

    def next_batch(self, step: int, stream: SampleStream | None) -> Batch | None:
        """Pause until the loop begins its next step; None once it has ended.

        The batch is a stand-in without data that counts as one sample.
        """
        if self._paused_for(BATCH):
            return self._batch
        self.plan = replace(self.plan, steps=step)
        return None

    @property
    def _phases(self) -> Phases | None:
        return self.comm.phases if self.timed else None

    def _paused_for(self, what: str) -> Any:
        """Pause; what the loop does meanwhile is computing, or none of the method's business."""
        self.wants = what
        phase, phases = "compute" if what is GRADIENT else "other", self._phases
        if phases is None or phases.current == phase:  # a clock is read at each change
            answer = pause()
        else:
            before = phases.enter(phase)
            answer = pause()
            phases.enter(before)
        self.wants = None
        return answer

    def gradient(
        self,
        batch: Batch,
        before_layer: Callable[[int], None] | None = None,
        on_layer: Callable[[int, torch.Tensor], None] | None = None,
    ) -> torch.Tensor:
        """The gradient (P,) that the loop has accumulated when it calls the optimizer.

        With a method that works at the step the callbacks come all at once, before the forward pass
        and after the backward passes, so that accumulation and clipping stay the loop's own. With
        one that sends during backward, `on_layer` comes as each gradient is complete.

        Raises:
            NonFiniteError: it is NaN or infinite somewhere. A world of one is spared the look, for
                which an accelerator would be waited for: the loop sees it, as in plain training.
        """
        if before_layer is not None:
            for index in range(len(self.layers)):
                before_layer(index)
        if self.overlap is not None:
            self.overlap.arm(on_layer)
            self._paused_for(GRADIENT)
            self.overlap.complete()
            return self.flat.grad_P
        if self.ready:
            self.ready = False
        else:
            self._paused_for(GRADIENT)
        bad = None if self.comm.size == 1 else self.flat.non_finite_layer()
        if bad is not None:
            raise NonFiniteError(
                f"rank {self.comm.rank}, step {self.comm.step}: the gradient of {bad!r} is not "
                "finite. Lower the learning rate, or clip the gradient before optimizer.step()"
            )
        if on_layer is not None:
            for index, layer in reversed(list(enumerate(self.layers))):
                on_layer(index, self.flat.grad_P[layer.start : layer.stop])
        return self.flat.grad_P

    def apply(self, direction: torch.Tensor) -> None:
        """Write the direction (P,) where the gradients are and take the optimizer's own step.

        Raises:
            InputError: a vector of another size.
        """
        grad_P = self.flat.grad_P  # the parameters' own gradients since the last collect or clear
        if direction is not grad_P:
            _check_shape(direction, grad_P)
            grad_P.copy_(direction)
        if self.in_vain and not bool(grad_P.any()):
            return
        phases = self._phases
        if phases is None:
            self._step()
        else:
            before = phases.enter("apply")
            self._step()
            phases.enter(before)
        self.comm.spend(self._work)

    def evaluate(self, steps: int, samples: int, *, final: bool = False) -> None:
        """Nothing: the loop tests its model when it likes."""

    def log(self, values: dict[str, float]) -> None:
        """To the journal, if there is one, and to the logger "thinwire.loop", at level DEBUG."""
        logger.debug("rank %d, step %d: %s", self.comm.rank, self.comm.step, values)
        if self.journal is not None:
            self.journal.log(self.comm.step, values)


class ServedBody:
    """A server's copy of the parameters, stepped by a copy of the optimizer.

    Args:
        flat: the parameters of the model beside which the server runs.
        plan: how much there is to do.
        optimizer: its settings, such as the learning rate, are followed at each step; its state is
            copied here once.
        comm: the server's, charged with the steps.
    """

    def __init__(self, flat: Flat, plan: Plan, optimizer: torch.optim.Optimizer, comm: Comm):
        self.plan = plan
        self.done = 0
        self._comm = comm
        self.params = flat.params_P.data.clone()
        self._grad_P = torch.zeros_like(self.params)
        self._leader = optimizer
        copies: dict[int, Any] = {}
        for param, layer in zip(flat.params, flat.layers, strict=True):
            part = slice(layer.start, layer.stop)
            twin = nn.Parameter(self.params[part].view(param.shape))
            twin.grad = self._grad_P[part].view(param.shape)
            copies[id(param)] = twin
        self._optimizer = copy.deepcopy(optimizer, copies)

    def apply(self, direction: torch.Tensor) -> None:
        """One step of the copied optimizer along (P,)."""
        _check_shape(direction, self.params)
        self._grad_P.copy_(direction)
        for own, theirs in zip(
            self._optimizer.param_groups, self._leader.param_groups, strict=True
        ):
            own.update({k: v for k, v in theirs.items() if k != "params"})
        self._optimizer.step()
        self._comm.spend(step_work(self._grad_P))

    def evaluate(self, steps: int, samples: int, *, final: bool = False) -> None:
        """Nothing: the loop tests its model when it likes."""


def _check_shape(direction: torch.Tensor, wanted: torch.Tensor) -> None:
    if direction.shape != wanted.shape:
        raise InputError(
            f"apply() was given a vector of {tuple(direction.shape)}; "
            f"the model has {tuple(wanted.shape)}"
        )
