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
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from thinwire.fibers import inside_backward
from thinwire.wire.base import Work
from thinwire.wire.virtual.remote import RemoteComm

__all__ = ["FlopCount", "ForwardCost"]


class FlopCount(TorchDispatchMode):
    """Counts, while active, the operations of matrix products, convolutions and attention.

    Attributes:
        total: two for each multiply-add.
    """

    def __init__(self) -> None:
        super().__init__()
        from torch.utils.flop_counter import flop_registry

        self.total = 0
        aten = torch.ops.aten
        self._formulas = {
            **flop_registry,
            aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[
                aten._scaled_dot_product_flash_attention
            ],
        }

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and add what it costs."""
        given = kwargs or {}
        out = func(*args, **given)
        formula = self._formulas.get(func._overloadpacket)
        if formula is not None:
            self.total += formula(*args, **given, out_val=out)
        return out


class ForwardCost:
    """Charges a model's training passes to its rank's node.

    Args:
        comm: of the rank.
    """

    def __init__(self, comm: RemoteComm):
        self._comm = comm
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
            leaf.register_hook(lambda _: self._comm.announce(work))


def _shape(leaf: Any) -> Any:
    return (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else type(leaf)


def _has_gradient(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad
