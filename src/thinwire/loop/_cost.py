"""What a loop's own forward and backward passes cost on the virtual cluster.

A script computes its gradients for real; how long that takes on the node that it plays follows from
the floating-point operations of its forward passes. They are counted by torch, once for each shape
of inputs, while the first such pass runs; a backward pass counts as two forward ones. Only passes
that train are charged: testing is free, as it is in a comparison.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from thinwire.fibers import inside_backward
from thinwire.loop._overlap import Overlap
from thinwire.operations import FlopCount, Inputs
from thinwire.wire.base import Work
from thinwire.wire.virtual.remote import RemoteComm

__all__ = ["ForwardCost"]


class ForwardCost:
    """Charges a model's training passes to its rank's node.

    Args:
        comm: of the rank.
        overlap: takes the backward passes whose time passes layer by layer.
    """

    def __init__(self, comm: RemoteComm, overlap: Overlap | None):
        self._comm = comm
        self._overlap = overlap
        self._known: dict[Any, float] = {}
        self._count: FlopCount | None = None
        self._key: Any = None
        self._thread = threading.get_ident()
        self._remove: list[Callable[[], None]] = []

    def attach(self, model: nn.Module) -> None:
        """Watch the model's forward passes."""
        before = model.register_forward_pre_hook(self._before, with_kwargs=True)
        after = model.register_forward_hook(self._after, with_kwargs=True, always_call=True)
        self._remove = [before.remove, after.remove]

    def detach(self) -> None:
        """Let the model alone."""
        for remove in self._remove:
            remove()

    def _before(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        self._key = None
        if not (model.training and torch.is_grad_enabled()) or inside_backward():
            return
        self._key = tuple(_shape(leaf) for leaf in tree_leaves((args, kwargs)))
        if self._overlap is not None and self._overlap.inputs is None:
            self._overlap.inputs = Inputs.of(args, kwargs)
        flops = self._known.get(self._key)
        if flops is not None:
            self._comm.announce(Work(flops=flops))
        else:
            self._count = FlopCount()
            self._count.__enter__()

    def _after(self, model: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        count, self._count = self._count, None
        if count is not None:
            count.__exit__(None, None, None)
        if self._key is None or out is None:
            return
        if count is not None:
            flops = self._known[self._key] = float(count.total)
            self._comm.announce(Work(flops=flops))
            if not flops:
                warnings.warn(
                    "the model's forward pass has no matrix product or convolution that could be "
                    "counted: it takes no virtual time",
                    stacklevel=2,
                )
        work = Work(flops=2 * self._known[self._key])
        leaf = next((t for t in tree_leaves(out) if _has_gradient(t)), None)
        if leaf is not None:
            leaf.register_hook(lambda _: self._backward(work))

    def _backward(self, work: Work) -> None:
        if self._overlap is None or not self._overlap.charge(work):
            self._comm.announce(work)


def _shape(leaf: Any) -> Any:
    return (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else type(leaf)


def _has_gradient(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad
