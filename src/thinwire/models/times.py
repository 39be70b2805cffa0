"""How long a model's passes and layers took on machines: a file beside a cluster's description.

Nothing here loads torch. `thinwire probe` writes such files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from thinwire.errors import InputError, nearest
from thinwire.models._toml import parsed, quoted, text_of

__all__ = ["LayerTimes", "NodeTimes", "TimedTensor", "load_layer_times"]

_SCHEMA = 1
_NONE = -1.0
_OWN = ("forward", "backward", "step", "needed", "ready")


class TimedTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A trainable parameter tensor: its name as in `named_parameters()`, and its elements."""

    name: str
    numel: int


@dataclass(frozen=True, kw_only=True)
class NodeTimes:
    """One machine's times, all in seconds, medians over training steps.

    Args:
        name: of the node in the cluster's description.
        forward: forward pass with the loss.
        backward: backward pass.
        step: the optimizer's step.
        needed: by tensor: from the beginning of the forward pass until the layer that owns it
            begins; None where it never does.
        ready: by tensor: from the beginning of the backward pass until its gradient is complete;
            None where it gets none.
        count: training steps of which these are the medians, 1 or more.
        spread: relative, half of the middle half's width of a whole step, 0 or more.
    """

    name: str
    forward: float
    backward: float
    step: float
    needed: tuple[float | None, ...]
    ready: tuple[float | None, ...]
    count: int
    spread: float


@dataclass(frozen=True, kw_only=True)
class LayerTimes:
    """A model's layer times on the machines of a cluster.

    Args:
        model: its name.
        batch: samples of a step, 1 or more.
        source: how they were obtained.
        tensors: in the order of `model.parameters()`.
        nodes: by machine, in the order of the cluster's nodes.
    """

    model: str
    batch: int
    source: str
    tensors: tuple[TimedTensor, ...]
    nodes: tuple[NodeTimes, ...]

    def of(self, node: str) -> NodeTimes:
        """A machine's times.

        Raises:
            InputError: no such machine.
        """
        for found in self.nodes:
            if found.name == node:
                return found
        names = [found.name for found in self.nodes]
        raise InputError(f"layer times of node {node!r}: {nearest(node, names)}")

    def to_toml(self) -> str:
        """The times as schema 1; `from_toml` makes equal ones of it.

        Equal to a tenth of a microsecond, to which they are rounded.
        """
        lines = [
            f"schema = {_SCHEMA}",
            f"model = {quoted(self.model)}",
            f"batch = {self.batch}",
            f"source = {quoted(self.source)}",
            "",
            "# name and elements of each trainable tensor, in the order of model.parameters()",
            "tensors = [",
            *(f"  {quoted([tensor.name, tensor.numel])}," for tensor in self.tensors),
            "]",
        ]
        for node in self.nodes:
            lines += [
                "",
                "[[nodes]]",
                f"name = {quoted(node.name)}",
                f"forward = {_seconds(node.forward)}        # seconds, median",
                f"backward = {_seconds(node.backward)}",
                f"step = {_seconds(node.step)}",
                f"count = {node.count}",
                f"spread = {node.spread:.4f}",
                "# by tensor: seconds into the forward pass until its layer begins (or -1)",
                f"needed = [{', '.join(map(_seconds, node.needed))}]",
                "# by tensor: seconds into the backward pass until its gradient is there (or -1)",
                f"ready = [{', '.join(map(_seconds, node.ready))}]",
            ]
        return "\n".join(lines) + "\n"

    @classmethod
    def from_toml(cls, text: str, source: str = "layer times") -> LayerTimes:
        """Read what `to_toml` has written.

        Args:
            text: the TOML.
            source: named in errors.

        Raises:
            InputError: not TOML, a missing or unknown key, a value out of range.
        """
        read = parsed(text, _File, source, strict=False)
        _check(read, source)
        return cls(
            model=read.model,
            batch=read.batch,
            source=read.source,
            tensors=tuple(read.tensors),
            nodes=tuple(
                NodeTimes(
                    name=node.name,
                    forward=node.forward,
                    backward=node.backward,
                    step=node.step,
                    needed=tuple(map(_maybe, node.needed)),
                    ready=tuple(map(_maybe, node.ready)),
                    count=node.count,
                    spread=node.spread,
                )
                for node in read.nodes
            ),
        )


def load_layer_times(path: str | Path) -> LayerTimes:
    """Layer times from a file that `thinwire probe` has written.

    Raises:
        InputError: no such file, or a mistake in it.
    """
    return LayerTimes.from_toml(text_of(path), source=str(path))


class _Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    forward: float
    backward: float
    step: float
    count: int
    spread: float
    needed: list[float]
    ready: list[float]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: int
    model: str
    batch: int
    source: str
    tensors: list[TimedTensor]
    nodes: list[_Node]


def _check(read: _File, source: str) -> None:
    if read.schema != _SCHEMA:
        raise InputError(f"{source}: schema = {read.schema}; allowed: {_SCHEMA}")
    if read.batch < 1:
        raise InputError(f"{source}: batch = {read.batch}; allowed: 1 or more")
    for key in ("tensors", "nodes"):
        if not getattr(read, key):
            raise InputError(f"{source}: {key} is empty; allowed: at least one")
    for tensor in read.tensors:
        if tensor.numel < 0:
            raise InputError(f"{source}: tensor {tensor.name!r}: {tensor.numel} elements")
    for node in read.nodes:
        _check_node(node, len(read.tensors), source)


def _check_node(node: _Node, num_tensors: int, source: str) -> None:
    if node.count < 1:
        raise InputError(f"{source}: node {node.name!r}: count = {node.count}; allowed: 1 or more")
    for key in (*_OWN, "spread"):
        value = getattr(node, key)
        values: Sequence[float] = value if isinstance(value, list) else (value,)
        if isinstance(value, list) and len(value) != num_tensors:
            raise InputError(
                f"{source}: node {node.name!r}: {key} has {len(value)} numbers for {num_tensors} "
                "tensors; allowed: one each"
            )
        for seconds in values:
            never = isinstance(value, list) and seconds == _NONE
            if not never and not (math.isfinite(seconds) and seconds >= 0):
                raise InputError(
                    f"{source}: node {node.name!r}: {key} holds {seconds!r}; allowed: seconds, 0 "
                    "or more" + (", or -1 for never" if isinstance(value, list) else "")
                )


def _maybe(seconds: float) -> float | None:
    return None if seconds == _NONE else seconds


def _seconds(value: float | None) -> str:
    return "-1" if value is None else f"{value:.7f}"
