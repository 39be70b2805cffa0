"""A codec for each layer of a flat vector on its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Protocol

import torch

from thinwire.collectives.sparse import Sparse, index_dtype
from thinwire.compress.base import Codec, Traits
from thinwire.compress.entries import entries_of, entries_packet
from thinwire.compress.values import refuse_bad
from thinwire.errors import InputError
from thinwire.wire.packet import Packet

__all__ = ["PerLayer", "per_layer"]


class _HasNumel(Protocol):
    @property
    def numel(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class PerLayer(Codec):
    """Compresses every layer for itself, in one packet: a density, scale or norm of its own.

    Layers smaller than `dense_below` go whole: biases and norms are few, matter, and would be
    starved by the large ones. Around a codec of kept entries the packet holds the entries of the
    whole vector, those of dense layers among them, so that `packed(per_layer(...))` works and is
    what makes their indices cheap: 1 bit each instead of 32.

    Args:
        codec: of each layer.
        sizes: elements of the layers, in order, each >= 1; together the vector.
        dense_below: layers of fewer elements travel as they are; 0 for none.

    >>> from thinwire.compress import topk
    >>> codec = per_layer(topk(0.25), [4, 2], dense_below=3)
    >>> x = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    >>> codec.decode(codec.encode(x, codec.init(x)))
    tensor([0., 0., 0., 4., 5., 6.])
    """

    codec: Codec
    sizes: tuple[int, ...]
    dense_below: int = 0

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise InputError(f"sizes = {self.sizes!r}; every layer has at least one element")
        if self.dense_below < 0:
            raise InputError(f"dense_below = {self.dense_below!r}; it must be >= 0")

    @property
    def traits(self) -> Traits:
        """See `Codec`."""
        return replace(self.codec.traits, linear=False)

    def init(self, like: torch.Tensor) -> list[Any]:
        """See `Codec`: a state for each layer that is compressed, None for the others."""
        layers = self._split(like)
        return [self.codec.init(x) if self._coded(x.numel()) else None for x in layers]

    def encode(self, x: torch.Tensor, state: list[Any]) -> Packet:
        """See `Codec`. Around kept entries: those of the whole vector. Around others: the lengths
        of every layer's buffers (int32); the first buffers of all layers one after another, the
        second, and so on; the dense layers' elements.

        Raises:
            NonFiniteError: an element is NaN or infinite; no state has changed.
        """
        layers = self._split(x)
        refuse_bad(x.detach().reshape(-1))
        packets = [
            self.codec.encode(layer, inner) if self._coded(layer.numel()) else None
            for layer, inner in zip(layers, state, strict=True)
        ]
        kinds = {packet.kind: None for packet in packets if packet is not None}
        if len(kinds) > 1:
            raise InputError(f"the layers' packets are of different kinds: {', '.join(kinds)}")
        if "sparse" in kinds:
            return self._entries(layers, packets)
        return _joined(layers, packets, next(iter(kinds), "gradient"))

    def decode(self, packet: Packet) -> torch.Tensor:
        """See `Codec`.

        Raises:
            InputError: a packet that does not fit these layers.
        """
        if packet.kind == "sparse":
            return self.codec.decode(packet)
        lengths, *parts, raw = packet.buffers
        coded = [numel for numel in self.sizes if self._coded(numel)]
        dense = [numel for numel in self.sizes if not self._coded(numel)]
        inner = _parted(lengths, parts, len(coded), packet.kind)
        if raw.numel() != sum(dense):
            raise InputError(f"{raw.numel()} elements came for dense layers of {sum(dense)}")
        wholes, decoded = iter(raw.split(dense)), iter(inner)
        layers = []
        for numel in self.sizes:
            layer = self.codec.decode(next(decoded)) if self._coded(numel) else next(wholes)
            if layer.numel() != numel:
                raise InputError(f"{layer.numel()} elements came for a layer of {numel}")
            layers.append(layer)
        return torch.cat(layers)

    def _coded(self, numel: int) -> bool:
        return numel >= self.dense_below

    def _split(self, x: torch.Tensor) -> Sequence[torch.Tensor]:
        flat = x.detach().reshape(-1)
        if flat.numel() != sum(self.sizes):
            raise InputError(
                f"a vector of {flat.numel()} elements meets layers of {sum(self.sizes)}"
            )
        return flat.split(list(self.sizes))

    def _entries(self, layers: Sequence[torch.Tensor], packets: Sequence[Packet | None]) -> Packet:
        numel, indices, values = sum(self.sizes), [], []
        dtype = next(entries_of(p).value.dtype for p in packets if p is not None)
        starts = accumulate(self.sizes, initial=0)
        for start, layer, packet in zip(starts, layers, packets, strict=False):
            if packet is None:
                index = torch.arange(layer.numel(), device="meta" if layer.is_meta else "cpu")
                values.append(layer.to(dtype) if layer.is_meta else layer.to(dtype).cpu())
            else:
                kept = entries_of(packet)
                index = kept.index.to(torch.int64)
                values.append(kept.value)
            indices.append((index + start).to(index_dtype(numel)))
        return entries_packet(Sparse(torch.cat(indices), torch.cat(values), numel))


def _joined(layers: Sequence[torch.Tensor], packets: Sequence[Packet | None], kind: str) -> Packet:
    coded = [packet.buffers for packet in packets if packet is not None]
    lengths = torch.tensor([b.numel() for buffers in coded for b in buffers], dtype=torch.int32)
    parts = [torch.cat(column) for column in zip(*coded, strict=True)]
    dense = [x.float() for x, packet in zip(layers, packets, strict=True) if packet is None]
    raw = torch.cat(dense) if dense else torch.empty(0)
    return Packet((lengths, *parts, raw if raw.is_meta else raw.cpu()), kind)


def _parted(
    lengths: torch.Tensor, parts: Sequence[torch.Tensor], num_layers: int, kind: str
) -> list[Packet]:
    if lengths.numel() != num_layers * len(parts):
        raise InputError(
            f"{lengths.numel()} lengths came for {num_layers} layers of {len(parts)} buffers"
        )
    columns = []
    for i, part in enumerate(parts):
        column = lengths[i :: len(parts)].tolist()
        if sum(column) != part.numel() or min(column) < 0:
            raise InputError(f"buffer {i + 1} has {part.numel()} elements, {sum(column)} declared")
        columns.append(part.split(column))
    return [Packet(buffers, kind) for buffers in zip(*columns, strict=True)]


def per_layer(codec: Codec, layers: Iterable[int | _HasNumel], dense_below: int = 0) -> PerLayer:
    """`PerLayer`, to be composed: `feedback(per_layer(topk(0.01), worker.layers))`.

    Args:
        codec: of each layer.
        layers: sizes, or things with a `numel` as in `Worker.layers`.
        dense_below: layers of fewer elements travel as they are.
    """
    sizes = tuple(layer if isinstance(layer, int) else layer.numel for layer in layers)
    return PerLayer(codec=codec, sizes=sizes, dense_below=dense_below)
