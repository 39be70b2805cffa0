"""What a loop has to tell while it goes on, a line every few steps; where it is kept is a book's
affair."""

from __future__ import annotations

import contextlib
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import nn

from thinwire.errors import InputError
from thinwire.wire.virtual.remote import RemoteComm

__all__ = ["Book", "Journal", "Values", "VirtualBook"]

logger = logging.getLogger("thinwire.loop")

Values: TypeAlias = Mapping[str, float | torch.Tensor]


class Book(ABC):
    """Where the lines go."""

    @abstractmethod
    def measure(self, step: int, samples: int) -> None:
        """A step that gets a line is over now, after so many samples of this rank."""

    @abstractmethod
    def step(self, values: dict[str, float]) -> None:
        """What was logged for the step measured last, whose line is complete now."""

    @abstractmethod
    def evaluation(self, step: int, samples: int, accuracy: float, loss: float) -> None:
        """A test of the model now, after so many steps of this rank and samples of all ranks."""

    @abstractmethod
    def end(self, steps: int, samples: int) -> None:
        """All has gone well; all ranks call. May block."""

    @abstractmethod
    def fail(self, error: BaseException, steps: int) -> None:
        """What ended the loop instead. Doesn't block."""


class VirtualBook(Book):
    """For a script on the virtual cluster: `thinwire run` keeps the record, in virtual time.

    Args:
        comm: rank 0's.
    """

    def __init__(self, comm: RemoteComm):
        self._comm = comm

    def measure(self, step: int, samples: int) -> None:
        """See `Book`."""
        self._comm.log("measure", step, {})

    def step(self, values: dict[str, float]) -> None:
        """See `Book`."""
        if values:
            self._comm.log("step", 0, values)

    def evaluation(self, step: int, samples: int, accuracy: float, loss: float) -> None:
        """See `Book`."""
        told = {"accuracy": accuracy, "loss": loss, "samples": samples}
        self._comm.log("evaluation", step, told)

    def end(self, steps: int, samples: int) -> None:
        """See `Book`: the clock server sees it."""

    def fail(self, error: BaseException, steps: int) -> None:
        """See `Book`: the clock server sees it."""


class Journal:
    """What a loop tells: a line at its first step and at every `every`-th, with the numbers logged
    since the one before, and one for each evaluation.

    The line of a step is complete when the next step is: most loops log a step's loss after it.

    Args:
        book: where lines go.
        size: number of ranks.
        every: steps.

    Attributes:
        steps: done.
    """

    def __init__(self, book: Book, size: int, every: int):
        self._book = book
        self._size = size
        self._every = every
        self.steps = 0
        self._samples = 0
        self._held: dict[str, Any] | None = None
        self._held_step = 0
        self._pending: dict[str, Any] = {}
        self._hook: Any = None

    @property
    def samples(self) -> int:
        """This rank's training samples so far: the first dimension of the model's first input."""
        return self._samples

    def count(self, model: nn.Module) -> None:
        """From now on count the samples of its training forward passes."""

        def forward(module: nn.Module, args: tuple[Any, ...]) -> None:
            if module.training and torch.is_grad_enabled():
                first = next((a for a in args if isinstance(a, torch.Tensor) and a.dim()), None)
                self._samples += 0 if first is None else len(first)

        self._hook = model.register_forward_pre_hook(forward)

    def stepped(self, step: int) -> None:
        """So many steps are done."""
        self.steps = step
        if self._held is not None:
            self._write()
        if step % self._every == 0 or step == 1:
            self._held, self._pending = self._pending, {}
            self._held_step = step
            self._book.measure(step, self._samples)

    def log(self, step: int, values: Values) -> None:
        """Take note of numbers that belong to a step.

        Raises:
            InputError: something that is no number, naming it.
        """
        found = {key: _checked(key, value) for key, value in values.items()}
        if "accuracy" in found:
            accuracy = float(found.pop("accuracy"))
            loss = float(found.pop("loss", math.nan))
            self._book.evaluation(self.steps, self._samples * self._size, accuracy, loss)
        if not found:
            return
        if self._held is not None and step <= self._held_step:
            self._held.update(found)
        else:
            self._pending.update(found)

    def _write(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._book.step({key: float(value) for key, value in held.items()})

    def end(self) -> None:
        """The loop has ended well; all ranks call. May block."""
        self._stop()
        self._book.end(self.steps, self._samples)

    def fail(self, error: BaseException) -> None:
        """The loop has ended by an error. Doesn't raise: that error is what matters."""
        with contextlib.suppress(Exception):
            self._stop()
        with contextlib.suppress(Exception):
            self._book.fail(error, self.steps)

    def _stop(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self._write()


def _checked(key: str, value: Any) -> Any:
    """A number, or a tensor of one, which is read only when it is written: that may wait for an
    accelerator."""
    if isinstance(value, torch.Tensor):
        if value.numel() == 1:
            return value.detach()
        raise InputError(f"log({key}=...): a tensor of shape {tuple(value.shape)}; allowed: one")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(
            f"log({key}={value!r}): a {type(value).__name__}; allowed: numbers"
        ) from None
