"""Counting a model's layers by one forward and one backward pass on the meta device.

Four public mechanisms of torch work together, all without data: `FlopCounterMode` adds up
operations; module hooks say which layer is running; hooks on saved tensors say what a layer keeps
and, as backward asks for it again, whose backward is running; hooks on the parameters say when a
gradient is complete. The counter's own assignment to modules isn't used: in backward it leaves a
module whose input needs no gradient open, and charges it with what others do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from thinwire.errors import InputError
from thinwire.models.table import LayerRow, TensorRow, make_layers

__all__ = ["Counted", "count"]


@dataclass(frozen=True)
class Counted:
    """What a pass over the model has shown."""

    layers: tuple[LayerRow, ...]
    tensors: tuple[TensorRow, ...]
    notes: tuple[str, ...]


def count(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    loss: Callable[[Any], torch.Tensor] | None = None,
) -> Counted:
    """Layers and tensors of a model on the meta device; its hooks are removed again.

    Args:
        model: in the mode (training) that is to be counted.
        args: of its forward pass, tensors on the meta device.
        kwargs: likewise.
        loss: from the outputs to a scalar; by default the sum of all outputs, which costs nothing.

    Raises:
        InputError: the forward pass fails without data, or no output depends on a parameter.
    """
    counter = FlopCounterMode(display=False, custom_mapping=_FORMULAS)
    ledger = _Ledger(model, counter)
    unseen, notes = _Unseen(counter), []
    with contextlib.ExitStack() as stack:
        stack.callback(ledger.remove)
        stack.enter_context(torch.enable_grad())
        stack.enter_context(_no_autocast_on_meta())
        stack.enter_context(unseen)
        stack.enter_context(counter)
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(ledger.pack, ledger.unpack))
        value = _forward(model, args, kwargs, loss)
        ledger.turn()
        try:
            value.backward()
        except Exception as error:  # an operator without a meta kernel may raise anything
            notes.append(
                "backward did not run on the meta device "
                f"({type(error).__name__}: {_first_line(error)}): taken as twice the forward "
                "pass, gradients complete in reverse order"
            )
            ledger.assume_backward()
    ledger.settle()
    return ledger.result([*notes, *unseen.notes()])


def _forward(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    loss: Callable[[Any], torch.Tensor] | None,
) -> torch.Tensor:
    try:
        outputs = model(*args, **kwargs)
        value = _summed(outputs) if loss is None else loss(outputs)
    except Exception as error:
        raise InputError(
            f"the forward pass did not run on the meta device: {type(error).__name__}: "
            f"{_first_line(error)}. A model whose shapes follow from values (boolean masks) cannot "
            "be described so; one that takes other inputs can be given them; or plan with params "
            "and step_time"
        ) from error
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        what = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        raise InputError(f"the loss is {what}; allowed: a tensor of one element")
    if not value.requires_grad:
        raise InputError("no floating-point output of the model depends on a trainable parameter")
    return value


def _summed(outputs: Any) -> torch.Tensor:
    own = getattr(outputs, "loss", None)  # a Hugging Face output that was given labels
    if isinstance(own, torch.Tensor):
        return own
    found = [x.float().sum() for x in _tensors(outputs) if x.requires_grad]
    return torch.stack(found).sum() if found else torch.zeros(())


def _tensors(outputs: Any) -> Iterator[torch.Tensor]:
    """Tensors in mappings, sequences and dataclasses, however deep."""
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, Mapping):
        for item in outputs.values():
            yield from _tensors(item)
    elif isinstance(outputs, (tuple, list)):
        for item in outputs:
            yield from _tensors(item)
    elif dataclasses.is_dataclass(outputs) and not isinstance(outputs, type):
        for field in dataclasses.fields(outputs):
            yield from _tensors(getattr(outputs, field.name))


class _Ledger:
    """Who has done what so far: a running total, and whom the next operations are charged to."""

    def __init__(self, model: nn.Module, counter: FlopCounterMode):
        self._counter = counter
        self._params = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        self._num_frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
        self._forward: dict[str, int] = {}
        self._backward: dict[str, int] = {}
        self._kept: dict[str, int] = {}
        self._ready: dict[str, int] = {}
        self._into = self._forward
        self._current, self._stack, self._settled = "", [], 0
        state = [*model.parameters(), *model.buffers()]
        self._known = {_storage(tensor) for tensor in state}
        self._hooks = [
            module.register_forward_pre_hook(self._enter(name))
            for name, module in model.named_modules()
        ]
        self._hooks += [
            module.register_forward_hook(self._leave, always_call=True)
            for module in model.modules()
        ]
        self._hooks += [
            param.register_post_accumulate_grad_hook(self._complete(name))
            for name, param in self._params
        ]

    def _enter(self, name: str) -> Callable[..., None]:
        def enter(*_: Any) -> None:
            self._stack.append(self._current)
            self._move(name)

        return enter

    def _leave(self, *_: Any) -> None:
        self._move(self._stack.pop())

    def _complete(self, name: str) -> Callable[[torch.Tensor], None]:
        def complete(_: torch.Tensor) -> None:
            self.settle()
            self._ready[name] = sum(self._backward.values())

        return complete

    def pack(self, tensor: torch.Tensor) -> tuple[torch.Tensor, str]:
        """A tensor is kept for backward. The detached one has its storage but no way back to the
        graph, which would keep itself alive."""
        kept = tensor.detach()
        key = _storage(kept)
        if key not in self._known and self._into is self._forward:
            self._known.add(key)
            size = kept.untyped_storage().nbytes() if key is not None else 0
            self._kept[self._current] = self._kept.get(self._current, 0) + size
        return kept, self._current

    def unpack(self, packed: tuple[torch.Tensor, str]) -> torch.Tensor:
        """Backward asks for a tensor: the operations that follow are its layer's."""
        if self._into is self._backward and not self._stack:
            self._move(packed[1])
        return packed[0]

    def _move(self, name: str) -> None:
        self.settle()
        self._current = name
        if self._into is self._forward:
            self._forward.setdefault(name, 0)  # the order of the rows

    def settle(self) -> None:
        """Charge what has been done since the last time."""
        total = self._counter.get_total_flops()
        done = total - self._settled
        self._into[self._current] = self._into.get(self._current, 0) + done
        self._settled = total

    def turn(self) -> None:
        """The forward pass is over."""
        self.settle()
        self._into, self._stack = self._backward, []

    def assume_backward(self) -> None:
        """Backward as twice the forward pass, layer by layer in reverse order."""
        self._backward = self._into = {name: 2 * f for name, f in self._forward.items()}
        self._ready = {}
        place = {name: i for i, name in enumerate(self._forward)}
        after, total = {}, 0
        for name in reversed(self._forward):
            total += self._backward[name]
            after[name] = total
        owners = [(name, self._owner(name)) for name, _ in reversed(self._params)]
        for name, owner in sorted(owners, key=lambda item: place.get(item[1], -1), reverse=True):
            self._ready[name] = after.get(owner, total)
        self._settled = self._counter.get_total_flops()

    def remove(self) -> None:
        """Take the hooks off."""
        for hook in self._hooks:
            hook.remove()

    def _owner(self, param: str) -> str:
        """The layer of a parameter: the innermost module around it whose forward was called, since
        attention uses the weights of its projections without calling them. One without a gradient
        stays with its own module."""
        own = name = param.rpartition(".")[0]
        if param not in self._ready and self._ready:
            return own
        while name and name not in self._forward:
            name = name.rpartition(".")[0]
        return name

    def result(self, notes: Sequence[str]) -> Counted:
        """Rows of all that did something; a layer never called comes last."""
        owners = {name: self._owner(name) for name, _ in self._params}
        for owner in owners.values():
            self._forward.setdefault(owner, 0)
        order = {name: place for place, name in enumerate(self._ready)}
        total = sum(self._backward.values())
        rows = [
            (name, done, self._backward.get(name, 0), self._kept.get(name, 0))
            for name, done in self._forward.items()
        ]
        rows = [row for row in rows if any(row[1:]) or row[0] in owners.values()]
        index = {row[0]: i for i, row in enumerate(rows)}
        tensors = tuple(
            TensorRow(
                name=name,
                layer=index[owners[name]],
                shape=tuple(param.shape),
                order=order.get(name),
                ready_flops=self._ready.get(name, total),
            )
            for name, param in self._params
        )
        found = list(notes)
        if self._num_frozen:
            found.append(f"{self._num_frozen:,} frozen parameters are not in the table")
        absent = [t.name for t in tensors if t.order is None]
        if absent:
            found.append(f"{len(absent)} parameter tensors get no gradient, as {absent[0]!r}")
        return Counted(make_layers(rows, tensors), tensors, tuple(found))


def _storage(tensor: torch.Tensor) -> int | None:
    """What identifies a storage while it lives; None for a layout without one."""
    if tensor.layout is not torch.strided:
        return None
    return tensor.untyped_storage()._cdata


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]


def _convolution_backward(
    grad: Sequence[int],
    x: Sequence[int],
    weight: Sequence[int],
    _bias: Any,
    _stride: Any,
    _padding: Any,
    _dilation: Any,
    transposed: bool,
    _output_padding: Any,
    _groups: int,
    mask: Sequence[bool],
    **_: Any,
) -> int:
    """Each of the two gradients takes what the forward pass took. torch's own formula forgets the
    groups for the weight's: 32 times too much for a depthwise convolution of 32 channels."""
    pixels = math.prod((x if transposed else grad)[2:])
    return 2 * x[0] * pixels * math.prod(weight) * (bool(mask[0]) + bool(mask[1]))


def _matrix_vector(matrix: Sequence[int], vector: Sequence[int], **_: Any) -> int:
    return 2 * math.prod(matrix)


_FORMULAS = {
    torch.ops.aten.convolution_backward: _convolution_backward,
    torch.ops.aten.mv: _matrix_vector,
}

_UNCOUNTED = ("_trilinear", "_fft_r2c", "_fft_c2c", "_fft_c2r", "_cdist_forward", "dot", "addmv")
"""Operators of aten that do much and have no formula."""

_MAX_LOOKS = 10_000  # a loop that waits for a value would never end


class _Unseen(TorchDispatchMode):
    """Notes the operators that have no formula though they compute (a few of torch's own, and all
    of other libraries), and answers the model when it looks at a value: there is none, so 0."""

    def __init__(self, counter: FlopCounterMode) -> None:
        super().__init__()
        self._counted = counter.flop_registry
        self._found: dict[str, None] = {}
        self._num_looks = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        space, _, name = func._schema.name.partition("::")
        if name == "_local_scalar_dense" and args[0].is_meta:
            return self._look(args[0])
        foreign = space not in ("aten", "prim", "prims", "profiler")
        if (foreign or name in _UNCOUNTED) and func._overloadpacket not in self._counted:
            self._found[f"{space}::{name}"] = None
        return func(*args, **(kwargs or {}))

    def _look(self, tensor: torch.Tensor) -> bool | int | float:
        self._num_looks += 1
        if self._num_looks > _MAX_LOOKS:
            raise RuntimeError(f"more than {_MAX_LOOKS:,} values were looked at")
        if tensor.dtype is torch.bool:
            return False
        return 0.0 if tensor.is_floating_point() else 0

    def notes(self) -> list[str]:
        """A line about values, one about operators, where there is something to say."""
        found = []
        if self._num_looks:
            times = "once" if self._num_looks == 1 else f"{self._num_looks} times"
            found.append(f"the model looked at a value {times} and got 0, there being no data")
        if self._found:
            found.append(f"operators without a formula, counted as 0: {', '.join(self._found)}")
        return found


@contextlib.contextmanager
def _no_autocast_on_meta() -> Iterator[None]:
    """Within: `torch.autocast("meta")` does nothing, where it would raise.

    Rotary embeddings of many language models switch autocast off for the device they find; torch
    knows none of that name.
    """
    original = torch.autocast

    def autocast(device_type: str, *args: Any, **kwargs: Any) -> Any:
        if device_type == "meta":
            return contextlib.nullcontext()
        return original(device_type, *args, **kwargs)

    torch.autocast = torch.amp.autocast = autocast
    try:
        yield
    finally:
        torch.autocast = torch.amp.autocast = original
