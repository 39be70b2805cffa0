"""Tasks whose answer is one class of several."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn

from thinwire.tasks.base import Task

__all__ = ["AbstractClassification", "evaluating"]

_EVALUATION_BATCH = 500


class AbstractClassification(Task):
    """Cross-entropy over classes; accuracy is the share of samples whose largest score is right.

    The model maps a batch of inputs to scores of shape (samples, classes); targets are int64.
    """

    def loss(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """As `Task.loss`."""
        return F.cross_entropy(model(x), y)

    def evaluate(self, model: nn.Module) -> tuple[float, float]:
        """As `Task.evaluate`; on the model's device, in batches of 500."""
        x, y = self.test_data()
        device = next(model.parameters()).device
        correct, total = 0, 0.0
        with evaluating(model):
            for begin in range(0, len(y), _EVALUATION_BATCH):
                part = slice(begin, begin + _EVALUATION_BATCH)
                scores, target = model(x[part].to(device)), y[part].to(device)
                correct += int((scores.argmax(dim=1) == target).sum())
                total += float(F.cross_entropy(scores, target, reduction="sum"))
        return correct / len(y), total / len(y)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in evaluation mode without gradients; after, each module's own mode is
    back, also where a user had frozen some."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
