"""Operations of a model's passes: counted while they run, or on a copy that has no data."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from thinwire.flat import Layer

__all__ = ["FlopCount", "Inputs", "backward_shares", "layer_shares", "without_data"]


class FlopCount(TorchDispatchMode):
    """Counts, while active, the operations of matrix products, convolutions and attention.

    Attributes:
        total: two for each multiply-add.
    """

    def __init__(self) -> None:
        super().__init__()
        from torch.utils.flop_counter import flop_registry  # a quarter second that few need

        self.total = 0
        aten = torch.ops.aten
        self._formulas = {
            **flop_registry,
            aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[
                aten._scaled_dot_product_flash_attention
            ],
            aten.convolution_backward: _convolution_backward,
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


def _convolution_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *rest: Any, **_: Any
) -> int:
    """Each of the two gradients takes what the forward pass took; torch's own formula forgets the
    groups for the weight's."""
    transposed, mask = rest[4], rest[7]
    pixels = math.prod((x if transposed else grad).shape[2:])
    return 2 * len(x) * pixels * weight.numel() * (bool(mask[0]) + bool(mask[1]))


class Inputs(NamedTuple):
    """What a forward pass was called with, without data."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @staticmethod
    def of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Inputs:
        """The same on the meta device."""
        given = tuple(args), dict(kwargs)
        return Inputs(
            *tree_map_only(torch.Tensor, lambda x: torch.empty_like(x, device="meta"), given)
        )


def backward_shares(
    model: nn.Module, names: Sequence[str], inputs: Inputs
) -> tuple[float, ...] | None:
    """Part of the backward pass's operations between the gradient completed before each parameter's
    own and that, counted by one forward and one backward pass of a copy without data.

    Follows from the model's shape alone: the same on every machine.

    Args:
        model: in the mode that it is trained in; left alone.
        names: of its parameters, as in `named_parameters()`.
        inputs: of its forward pass.

    Returns:
        By parameter, 0 for one that gets no gradient; their sum is 1. None where the model can't be
        run without data, or does nothing that is counted.
    """
    done: dict[str, int] = {}
    try:
        count = FlopCount()
        with _unhooked(model):  # whose owners a copy would take along
            twin = without_data(model)
        params = dict(twin.named_parameters())
        for name in names:
            params[name].register_post_accumulate_grad_hook(
                lambda _, name=name: done.__setitem__(name, count.total)
            )
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), count:
            outputs = twin(*inputs.args, **inputs.kwargs)
            leaves = [x for x in tree_leaves(outputs) if _has_gradient(x)]
            loss = torch.stack([x.float().sum() for x in leaves]).sum()
            before = count.total
            loss.backward()
    except Exception:  # a user's model without data may raise anything: it goes by parameters then
        return None
    total = count.total - before
    if not total or not done:
        return None
    work, upto = dict.fromkeys(names, 0), before
    for name, ready in done.items():
        work[name] = ready - upto
        upto = ready
    work[next(reversed(done))] += count.total - upto
    return tuple(work[name] / total for name in names)


def layer_shares(
    model: nn.Module, layers: Sequence[Layer], inputs: Inputs | None
) -> tuple[float, ...]:
    """`backward_shares` of the layers of a flat vector; where they can't be had, or it isn't known
    how the model is called, in proportion to the parameters."""
    shares = None
    if inputs is not None:
        shares = backward_shares(model, [layer.name for layer in layers], inputs)
    if shares is None:
        total = sum(layer.numel for layer in layers)
        shares = tuple(layer.numel / total for layer in layers)
    return shares


def _has_gradient(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def without_data(model: nn.Module) -> nn.Module:
    """A copy on the meta device; the model itself is left alone, and its data are not copied.

    Raises:
        Exception: the model's, where it can't be copied.
    """
    memo: dict[int, Any] = {}
    for param in model.parameters():
        empty = torch.empty_like(param, device="meta")
        memo[id(param)] = nn.Parameter(empty, requires_grad=param.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(model, memo)


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@contextlib.contextmanager
def _unhooked(model: nn.Module) -> Iterator[None]:
    """Within: no module has hooks."""
    kept = [(module.__dict__, name) for module in model.modules() for name in _HOOKS]
    kept = [(own, name, own[name]) for own, name in kept if own.get(name)]
    try:
        for own, name, hooks in kept:
            own[name] = type(hooks)()
        yield
    finally:
        for own, name, hooks in kept:
            own[name] = hooks
