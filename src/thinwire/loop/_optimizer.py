"""Somebody's optimizer object with our `step` and `zero_grad` in the place of its own."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Takeover"]

_SCALED = "_step_supports_amp_scaling"


class Takeover:
    """Replaces `step` and `zero_grad` of one optimizer object, and gives them back.

    Args:
        optimizer: whose.

    Attributes:
        plain_step: the optimizer's own.
        plain_zero_grad: the optimizer's own.
    """

    def __init__(self, optimizer: torch.optim.Optimizer):
        self._optimizer = optimizer
        self.plain_step: Callable[..., Any] = optimizer.step
        self.plain_zero_grad: Callable[..., Any] = optimizer.zero_grad
        self._plain_scaled = optimizer.__dict__.get(_SCALED)

    def begin(
        self, on_step: Callable[[Any], Any], on_zero_grad: Callable[[bool], None], several: bool
    ) -> None:
        """From now on.

        Args:
            on_step: called with the closure or None; its answer is the caller's.
            on_zero_grad: called with `set_to_none`.
            several: whether there are other ranks. GradScaler then calls `step` also where it
                would skip it, which would leave the others waiting.
        """

        def step(optimizer: torch.optim.Optimizer, closure: Any = None) -> Any:
            return on_step(closure)

        def zero_grad(optimizer: torch.optim.Optimizer, set_to_none: bool = True) -> None:
            on_zero_grad(set_to_none)

        # A learning-rate scheduler wraps `step` by its __func__, and marks what it has wrapped.
        if getattr(self.plain_step, "_wrapped_by_lr_sched", False):
            step.__dict__["_wrapped_by_lr_sched"] = True
        own = self._optimizer
        self._step = types.MethodType(step, own)
        self._zero_grad = types.MethodType(zero_grad, own)
        own.step = self._step
        own.zero_grad = self._zero_grad
        if several:
            own.__dict__[_SCALED] = True

    def end(self) -> None:
        """Make the optimizer ordinary again."""
        own, attributes = self._optimizer, self._optimizer.__dict__
        for name, ours, plain in (
            ("step", self._step, self.plain_step),
            ("zero_grad", self._zero_grad, self.plain_zero_grad),
        ):
            # Where somebody has wrapped ours since, it stays and passes on.
            if attributes.get(name) is ours:
                delattr(own, name)
                if getattr(own, name) != plain:
                    setattr(own, name, plain)
        attributes.pop(_SCALED, None)
        if self._plain_scaled is not None:
            attributes[_SCALED] = self._plain_scaled
