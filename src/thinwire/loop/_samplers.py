"""A sampler that is never told its epoch gives every epoch the same order: say so, once."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DistributedSampler

__all__ = ["SameOrder", "watch_samplers"]

Training = Callable[[], int | None]
"""Steps taken by now; None while the loop is not training."""


class SameOrder(UserWarning):
    """A `DistributedSampler` is gone through again without `set_epoch`."""


_watching: dict[int, Training] = {}
_plain_iter = DistributedSampler.__iter__
_seen: weakref.WeakKeyDictionary[DistributedSampler[Any], tuple[int, int]] = (
    weakref.WeakKeyDictionary()
)
"""Epoch and steps at which each was last gone through in training."""


def watch_samplers(training: Training) -> Callable[[], None]:
    """Warn once for each sampler that shuffles, is gone through a second time after steps were
    taken, and has had no `set_epoch` between.

    Args:
        training: of one loop.

    Returns:
        How to stop; with the last loop the class is as it was.
    """
    key = id(training)
    _watching[key] = training
    DistributedSampler.__iter__ = _iter  # pyright: ignore[reportAttributeAccessIssue]

    def stop() -> None:
        _watching.pop(key, None)
        if not _watching:
            DistributedSampler.__iter__ = _plain_iter

    return stop


def _iter(sampler: DistributedSampler[Any]) -> Iterator[Any]:
    told = [steps for training in _watching.values() if (steps := training()) is not None]
    if told and sampler.shuffle:
        epoch, before = _seen.get(sampler, (None, 0))
        if epoch == sampler.epoch and 0 <= before < max(told):
            warnings.warn(
                f"the DistributedSampler gives the order of epoch {epoch} again, as no set_epoch() "
                "came since: every epoch has the same batches. Call sampler.set_epoch(epoch) at "
                "the beginning of each",
                SameOrder,
                stacklevel=2,
            )
            _seen[sampler] = (sampler.epoch, -1)
        elif epoch != sampler.epoch or before >= 0:
            _seen[sampler] = (sampler.epoch, max(told))
    return _plain_iter(sampler)
