"""A model as a table of layers and of parameter tensors: what a planner or a schedule needs of it.

Operations are floating-point operations (FLOPs) of a whole batch; a multiply-accumulate (MAC) is
two. Nothing here loads torch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from thinwire.errors import InputError
from thinwire.models._toml import parsed, quoted, text_of

__all__ = ["LayerRow", "ModelTable", "TensorRow", "load_table", "make_layers"]

_SCHEMA = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerRow:
    """One module of the model, without the modules in it.

    Args:
        name: dotted, as in `named_modules()`; "" is the model itself.
        num_params: trainable parameters that are its own.
        forward_flops: operations of its forward pass, 0 or more.
        backward_flops: operations of its backward pass, 0 or more.
        activation_bytes: what it keeps for backward, parameters and buffers left out; a tensor
            that several layers keep counts with the first.
        order: its place among the layers with parameters, in the order in which all their gradients
            are complete, from 0; None without parameters, or if a gradient never comes.
    """

    name: str
    num_params: int
    forward_flops: int
    backward_flops: int
    activation_bytes: int
    order: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorRow:
    """One trainable parameter tensor.

    Args:
        name: as in `named_parameters()`; a tied one has its first name.
        layer: index of its layer in `ModelTable.layers`.
        shape: of the tensor.
        order: its place in the order in which gradients are complete, from 0; None if it gets none.
        ready_flops: operations of the backward pass that are done when its gradient is complete.
    """

    name: str
    layer: int
    shape: tuple[int, ...]
    order: int | None
    ready_flops: int

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class ModelTable:
    """Parameters, operations, kept bytes and gradient order of a model at one batch size.

    Args:
        name: of the model.
        batch: samples that the operations and bytes are for, 1 or more.
        sample: what one sample is.
        source: how the figures were obtained.
        layers: in the order of the forward pass.
        tensors: in the order of `model.parameters()`, that of `thinwire.flat.Flat.layers`.
        notes: what was assumed or could not be seen.
    """

    name: str
    batch: int
    sample: str
    source: str
    layers: tuple[LayerRow, ...]
    tensors: tuple[TensorRow, ...]
    notes: tuple[str, ...] = ()

    @property
    def num_params(self) -> int:
        """Trainable parameters, a tied one counted once."""
        return sum(tensor.numel for tensor in self.tensors)

    @property
    def forward_flops(self) -> int:
        """Operations of the forward pass of the whole batch."""
        return sum(layer.forward_flops for layer in self.layers)

    @property
    def backward_flops(self) -> int:
        """Operations of the backward pass of the whole batch."""
        return sum(layer.backward_flops for layer in self.layers)

    @property
    def activation_bytes(self) -> int:
        """What the whole batch keeps for backward."""
        return sum(layer.activation_bytes for layer in self.layers)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the forward pass of one sample."""
        return round(self.forward_flops / (2 * self.batch))

    @property
    def ready_order(self) -> tuple[int, ...]:
        """Indices of the tensors in the order in which their gradients are complete; those that
        get none are left out."""
        ready = [(t.order, i) for i, t in enumerate(self.tensors) if t.order is not None]
        return tuple(index for _, index in sorted(ready))

    def at_batch(self, batch: int) -> ModelTable:
        """The same model for another batch, everything in proportion.

        Exact for operations; the statistics that batch normalisation keeps do not really grow, less
        than one part in a hundred of the bytes.

        Raises:
            InputError: a batch below 1.
        """
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
            raise InputError(f"batch = {batch!r}; allowed: a whole number, 1 or more")
        if batch == self.batch:
            return self

        def scaled(value: int) -> int:
            return (2 * value * batch + self.batch) // (2 * self.batch)

        layers = tuple(
            dataclasses.replace(
                layer,
                forward_flops=scaled(layer.forward_flops),
                backward_flops=scaled(layer.backward_flops),
                activation_bytes=scaled(layer.activation_bytes),
            )
            for layer in self.layers
        )
        tensors = tuple(
            dataclasses.replace(tensor, ready_flops=scaled(tensor.ready_flops))
            for tensor in self.tensors
        )
        return dataclasses.replace(self, batch=batch, layers=layers, tensors=tensors)

    def forward_shares(self) -> tuple[float, ...]:
        """Part of the forward pass's operations that follows the arrival of each tensor, by tensor;
        their sum is 1.

        A layer's operations go to its first tensor, those of a layer without parameters to the
        next layer that has some (after the last, to the last). Without any operations, in
        proportion to the elements.
        """
        first: dict[int, int] = {}
        for index, tensor in enumerate(self.tensors):
            first.setdefault(tensor.layer, index)
        work, waiting, last = [0] * len(self.tensors), 0, None
        for index, layer in enumerate(self.layers):
            waiting += layer.forward_flops
            if index in first:
                last = first[index]
                work[last] += waiting
                waiting = 0
        if last is not None:
            work[last] += waiting
        return self._shares(work)

    def backward_shares(self) -> tuple[float, ...]:
        """Part of the backward pass's operations between the gradient completed before each
        tensor's own and that, by tensor; their sum is 1.

        What follows the last gradient counts with it. A tensor that gets no gradient has 0.
        Without any operations, in proportion to the elements.
        """
        work, done = [0] * len(self.tensors), 0
        order = self.ready_order
        for index in order:
            work[index] = self.tensors[index].ready_flops - done
            done = self.tensors[index].ready_flops
        if order:
            work[order[-1]] += self.backward_flops - done
        return self._shares(work)

    def _shares(self, work: Sequence[int]) -> tuple[float, ...]:
        if not sum(work):
            work = [tensor.numel for tensor in self.tensors]
        total = sum(work)
        return tuple(part / total for part in work)

    def grouped(self, depth: int) -> tuple[LayerRow, ...]:
        """The layers summed up by the first `depth` parts of their names, 1 or more.

        A group's `order` is that of its last layer, None if it has no parameters or lacks a
        gradient.
        """
        groups: dict[str, list[LayerRow]] = {}
        for layer in self.layers:
            groups.setdefault(".".join(layer.name.split(".")[:depth]), []).append(layer)
        return tuple(_sum(name, layers) for name, layers in groups.items())

    def to_dict(self) -> dict[str, Any]:
        """Plain data: totals, layers and tensors, for JSON."""
        return {
            "name": self.name,
            "batch": self.batch,
            "sample": self.sample,
            "source": self.source,
            "num_params": self.num_params,
            "macs_per_sample": self.macs,
            "forward_flops": self.forward_flops,
            "backward_flops": self.backward_flops,
            "activation_bytes": self.activation_bytes,
            "notes": list(self.notes),
            "layers": [dataclasses.asdict(layer) for layer in self.layers],
            "tensors": [dataclasses.asdict(tensor) for tensor in self.tensors],
        }

    def to_toml(self) -> str:
        """The table as schema 1: `from_toml` makes an equal one of it."""
        head = {"name": self.name, "batch": self.batch, "sample": self.sample}
        head |= {"source": self.source, "notes": list(self.notes)}
        lines = [f"schema = {_SCHEMA}", *(f"{key} = {quoted(v)}" for key, v in head.items())]
        lines += [
            "",
            "# layer, forward FLOPs, backward FLOPs, bytes kept for backward",
            "layers = [",
        ]
        for row in self.layers:
            values = [row.name, row.forward_flops, row.backward_flops, row.activation_bytes]
            lines.append(f"  {quoted(values)},")
        lines += ["]", "", "# index of its layer, name in it, shape, place among the gradients as"]
        lines += [
            "# they are completed (-1: gets none), backward FLOPs done by then",
            "tensors = [",
        ]
        for tensor in self.tensors:
            order = -1 if tensor.order is None else tensor.order
            name = _inside(tensor.name, self.layers[tensor.layer].name)
            values = [tensor.layer, name, list(tensor.shape), order, tensor.ready_flops]
            lines.append(f"  {quoted(values)},")
        return "\n".join([*lines, "]"]) + "\n"

    @classmethod
    def from_toml(cls, text: str, source: str = "model table") -> ModelTable:
        """Read a table that `to_toml` has written.

        Args:
            text: the TOML.
            source: named in errors.

        Raises:
            InputError: not TOML, a missing or unknown key, a value out of range.
        """
        read = parsed(text, _File, source)
        _check(read, source)
        names = [row.name for row in read.layers]
        tensors = tuple(
            TensorRow(
                name=f"{names[t.layer]}.{t.name}" if names[t.layer] else t.name,
                layer=t.layer,
                shape=tuple(t.shape),
                order=None if t.order < 0 else t.order,
                ready_flops=t.ready_flops,
            )
            for t in read.tensors
        )
        layers = make_layers(
            [(r.name, r.forward_flops, r.backward_flops, r.activation_bytes) for r in read.layers],
            tensors,
        )
        head = {key: getattr(read, key) for key in ("name", "batch", "sample", "source")}
        return cls(**head, notes=tuple(read.notes), layers=layers, tensors=tensors)


def load_table(path: str | Path) -> ModelTable:
    """A table from a file that `ModelTable.to_toml` has filled.

    Raises:
        InputError: no such file, or a mistake in it.
    """
    return ModelTable.from_toml(text_of(path), source=str(path))


def make_layers(
    rows: Iterable[tuple[str, int, int, int]], tensors: Sequence[TensorRow]
) -> tuple[LayerRow, ...]:
    """Layers from (name, forward, backward, bytes); the rest follows from the tensors."""
    owned: dict[int, list[TensorRow]] = {}
    for tensor in tensors:
        owned.setdefault(tensor.layer, []).append(tensor)
    last = {
        layer: max(t.order or 0 for t in own)
        for layer, own in owned.items()
        if all(t.order is not None for t in own)
    }
    places = {layer: place for place, layer in enumerate(sorted(last, key=lambda i: last[i]))}
    return tuple(
        LayerRow(
            name=name,
            num_params=sum(t.numel for t in owned.get(index, ())),
            forward_flops=forward,
            backward_flops=backward,
            activation_bytes=kept,
            order=places.get(index),
        )
        for index, (name, forward, backward, kept) in enumerate(rows)
    )


class _LayerLine(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    name: str
    forward_flops: int
    backward_flops: int
    activation_bytes: int


class _TensorLine(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    layer: int
    name: str
    shape: list[int]
    order: int
    ready_flops: int


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: int
    name: str
    batch: int
    sample: str
    source: str
    layers: list[_LayerLine]
    tensors: list[_TensorLine]
    notes: list[str] = []


def _check(read: _File, source: str) -> None:
    if read.schema != _SCHEMA:
        raise InputError(f"{source}: schema = {read.schema}; allowed: {_SCHEMA}")
    if read.batch < 1:
        raise InputError(f"{source}: batch = {read.batch}; allowed: 1 or more")
    if not read.tensors:
        raise InputError(f"{source}: tensors is empty; allowed: at least one")
    for row in read.layers:
        if min(row.forward_flops, row.backward_flops, row.activation_bytes) < 0:
            raise InputError(f"{source}: layer {row.name!r}: its numbers must be 0 or more")
    for tensor in read.tensors:
        if not 0 <= tensor.layer < len(read.layers):
            raise InputError(
                f"{source}: tensor {tensor.name!r}: layer = {tensor.layer}; "
                f"allowed: 0 to {len(read.layers) - 1}"
            )
        if min([tensor.ready_flops, *tensor.shape]) < 0:
            raise InputError(f"{source}: tensor {tensor.name!r}: its numbers must be 0 or more")
    orders = sorted(tensor.order for tensor in read.tensors if tensor.order >= 0)
    if orders != list(range(len(orders))):
        raise InputError(f"{source}: the tensors' places must be 0, 1, 2 ..., each once, or -1")


def _sum(name: str, layers: Sequence[LayerRow]) -> LayerRow:
    own = [layer.order for layer in layers if layer.num_params]
    known = [order for order in own if order is not None]
    return LayerRow(
        name=name,
        num_params=sum(layer.num_params for layer in layers),
        forward_flops=sum(layer.forward_flops for layer in layers),
        backward_flops=sum(layer.backward_flops for layer in layers),
        activation_bytes=sum(layer.activation_bytes for layer in layers),
        order=max(known) if known and len(known) == len(own) else None,
    )


def _inside(name: str, layer: str) -> str:
    return name.removeprefix(f"{layer}.") if layer else name
