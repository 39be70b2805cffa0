"""A model's parameters and gradients as two flat vectors, with a table of the layers.

Shape suffixes: P all parameters.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from thinwire.errors import InputError

__all__ = ["Flat", "Layer", "digest", "is_finite"]


@dataclass(frozen=True, slots=True)
class Layer:
    """One parameter tensor's place in the flat vectors: elements start..stop-1.

    `shape` is the tensor's own; () where only its place is known.
    """

    name: str
    start: int
    stop: int
    shape: tuple[int, ...] = ()

    @property
    def numel(self) -> int:
        """Number of elements."""
        return self.stop - self.start


def digest(params_P: torch.Tensor) -> str:
    """16 hex digits that differ when any bit of the parameters differs ("meta" without data)."""
    if params_P.is_meta:
        return "meta"
    data = params_P.detach().cpu().contiguous().view(torch.uint8).numpy()
    return hashlib.blake2b(data.tobytes(), digest_size=8).hexdigest()


def is_finite(x: torch.Tensor) -> bool:
    """Whether no element is NaN or infinite; looks at each once unless the sum is not finite."""
    return math.isfinite(float(x.sum())) or bool(torch.isfinite(x).all())


class Flat:
    """The trainable parameters of a model, rebound as views of one vector.

    The module itself goes on working: its parameters share memory with `params_P`, and backward
    accumulates into views of `grad_P`.

    Args:
        model: its parameters that require gradients must share one dtype and device, and be dense.
        only: take none but these of the model's parameters.

    Attributes:
        params_P: all parameters, in the order of `model.parameters()`; a leaf that an optimizer
            can step.
        grad_P: all gradients.
        layers: one entry per parameter tensor.

    Raises:
        InputError: nothing to train, mixed dtypes or devices, or a distributed tensor, naming the
            parameter.
    """

    def __init__(self, model: nn.Module, only: Iterable[nn.Parameter] | None = None):
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        if only is not None:
            wanted = {id(p) for p in only}
            named = [(n, p) for n, p in named if id(p) in wanted]
        _check(named)
        sizes = [p.numel() for _, p in named]
        first = named[0][1]
        self.params_P = nn.Parameter(first.new_empty(sum(sizes)))
        self.grad_P = torch.zeros_like(self.params_P, requires_grad=False)
        self._params = [p for _, p in named]
        self._pairs: list[tuple[nn.Parameter, torch.Tensor]] = []
        layers, start = [], 0
        for (name, param), numel in zip(named, sizes, strict=True):
            stop = start + numel
            flat = self.params_P.data[start:stop]
            flat.copy_(param.data.reshape(-1))
            param.data = flat.view(param.shape)
            self._pairs.append((param, self.grad_P[start:stop].view(param.shape)))
            layers.append(Layer(name, start, stop, tuple(param.shape)))
            start = stop
        self.layers: tuple[Layer, ...] = tuple(layers)
        self._places = (self._params[0].data_ptr(), self._params[-1].data_ptr())

    @property
    def params(self) -> Sequence[nn.Parameter]:
        """The model's own parameters, in the order of `layers`."""
        return self._params

    @property
    def attached(self) -> bool:
        """Whether the model still uses these vectors, as far as its first and last parameter tell;
        moving it to another device or dtype gives it others."""
        first, last = self._places
        return self._params[0].data_ptr() == first and self._params[-1].data_ptr() == last

    def clear_grad(self) -> None:
        """Zero the gradients and make the next backward accumulate into `grad_P`."""
        self.grad_P.zero_()
        self.bind_grad()

    def bind_grad(self) -> None:
        """Make each parameter's `grad` its view of `grad_P`; that of one frozen meanwhile, None."""
        for param, view in self._pairs:
            if not param.requires_grad:
                param.grad = None
            elif param.grad is not view:
                param.grad = view

    def collect_grad(self) -> None:
        """Bring the gradients into `grad_P` from wherever they are; a missing one is zero.

        Raises:
            InputError: a sparse gradient, naming the parameter.
        """
        for index, (param, view) in enumerate(self._pairs):
            if param.grad is not view:
                self.collect_layer(index)

    @property
    def version(self) -> int:
        """Changes with each writing into `grad_P`, through a parameter's `grad` too."""
        return self.grad_P._version

    def has_grad_since(self, version: int) -> bool:
        """Whether a backward has left something in the gradients since `version` was read."""
        bound = 0
        for param, view in self._pairs:
            if param.grad is view:
                bound += 1
            elif param.grad is not None:
                return True
        return bool(bound) and self.version != version and bool(self.grad_P.any())

    def collect_layer(self, index: int) -> torch.Tensor:
        """As `collect_grad`, of one layer; returns its view of `grad_P`, in the tensor's shape."""
        param, view = self._pairs[index]
        grad = param.grad
        if grad is view:
            return view
        if grad is None:
            view.zero_()
        elif grad.layout is not torch.strided:
            raise InputError(
                f"parameter {self.layers[index].name!r} has a sparse gradient, which is not "
                "supported: build its layer with sparse=False"
            )
        else:
            view.copy_(grad)
        param.grad = view if param.requires_grad else None
        return view

    def view(self, index: int) -> torch.Tensor:
        """A layer's part of `grad_P`, in the tensor's shape: what `bind_grad` binds."""
        return self._pairs[index][1]

    def non_finite_layer(self) -> str | None:
        """The first layer whose gradient is NaN or infinite somewhere; None if all are finite."""
        if math.isfinite(float(self.grad_P.sum())):
            return None
        for layer in self.layers:
            if not bool(torch.isfinite(self.grad_P[layer.start : layer.stop]).all()):
                return layer.name
        return None  # the sum alone has overflowed

    @contextlib.contextmanager
    def before_use(self, model: nn.Module, before: Callable[[int], None]) -> Iterator[None]:
        """Within: call `before(index)` when a layer is first given to one of torch's functions.

        For those that were not, and for all of a model with compiled or scripted parts, into which
        nobody can look: in the order of `layers`, at the end and at the beginning.

        Args:
            model: whose forward pass is to come.
            before: may block, and may write the layer's parameters; called once for each.
        """
        left = {id(param): index for index, param in enumerate(self._params)}
        if not _is_eager(model):
            _call_rest(left, before)
        with _BeforeUse(left, before):
            yield
        _call_rest(left, before)

    def watch(self, on_layer: Callable[[int], None]) -> Callable[[], None]:
        """Call `on_layer(index)` as each layer's gradient is complete; returns how to stop.

        A parameter that the loss doesn't depend on never fires.
        """
        handles = [
            p.register_post_accumulate_grad_hook(lambda _, index=i: on_layer(index))
            for i, p in enumerate(self._params)
        ]

        def stop() -> None:
            for handle in handles:
                handle.remove()

        return stop


class _BeforeUse(TorchFunctionMode):
    """Looks at what torch's functions are given. Modules can't tell: some use the parameters of
    another without calling it, as attention does with its output projection.

    Args:
        left: indices by the identity of the parameter; taken out as they are called for.
        before: called with an index.
    """

    def __init__(self, left: dict[int, int], before: Callable[[int], None]):
        super().__init__()
        self._left = left
        self._before = before

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Called for each function; within, no others are looked at."""
        given = kwargs or {}
        if self._left:
            self._look(args)
            self._look(given.values())
        return func(*args, **given)

    def _look(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, torch.Tensor):
                index = self._left.pop(id(value), None)
                if index is not None:
                    self._before(index)
            elif isinstance(value, list | tuple):
                self._look(value)


def _call_rest(left: dict[int, int], before: Callable[[int], None]) -> None:
    for param, index in list(left.items()):
        del left[param]
        before(index)


def _is_eager(model: nn.Module) -> bool:
    """Whether no module of it is compiled or scripted."""
    return not any(
        isinstance(module, torch.jit.ScriptModule)
        or type(module).__name__ == "OptimizedModule"
        or module._compiled_call_impl is not None
        for module in model.modules()
    )


def _check(named: Sequence[tuple[str, nn.Parameter]]) -> None:
    if not named:
        raise InputError("the model has no parameter that requires a gradient")
    first_name, first = named[0]
    for name, param in named:
        if type(param.data).__name__ == "DTensor":
            raise InputError(f"parameter {name!r} is a DTensor: sharded models are not supported")
        if param.dtype != first.dtype or param.device != first.device:
            raise InputError(
                f"parameter {name!r} is {param.dtype} on {param.device}, {first_name!r} is "
                f"{first.dtype} on {first.device}: all trainable parameters must be alike"
            )
