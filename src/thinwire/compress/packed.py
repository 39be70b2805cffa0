"""Kept entries in fewer bytes: indices near their entropy, values in 16 or 8 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from thinwire.collectives.sparse import Sparse
from thinwire.compress._native import kernels
from thinwire.compress.base import Codec, Traits
from thinwire.compress.entries import entries_of, entries_packet
from thinwire.compress.indices import decode_indices, encode_indices
from thinwire.compress.values import check_form, narrow, widen
from thinwire.errors import InputError
from thinwire.wire.packet import Packet

__all__ = ["Packed", "packed"]

_INDICES = ("coded", "plain")


@dataclass(frozen=True, kw_only=True)
class Packed(Codec):
    """Repacks what a codec of kept entries sends: at density 0.001 from 64 bits an entry to about
    27.5 (bf16) or 19.5 (int8).

    The indices travel exactly. Values are rounded to the nearest, and what lies beyond the form's
    range is cut; feedback around it sends the difference later:
    `feedback(packed(topk(0.001), values="bf16"))`.

    Args:
        codec: one whose packets hold indices, values and a size: topk, threshold,
            sampled_threshold, or one of these per layer.
        values: "fp32" leaves them as they are; "fp16", "bf16"; "int8" with a scale for every 2,048.
        indices: "coded" (see `encode_indices`) or "plain".

    >>> from thinwire.compress import topk
    >>> codec = packed(topk(0.5), values="bf16")
    >>> packet = codec.encode(torch.tensor([3.0, -1.0, -4.0, 1.0]), None)
    >>> codec.decode(packet), packet.payload_nbytes
    (tensor([ 3.,  0., -4.,  0.]), 15)
    """

    codec: Codec
    values: Literal["fp32", "fp16", "bf16", "int8"] = "fp32"
    indices: Literal["coded", "plain"] = "coded"

    def __post_init__(self) -> None:
        check_form(self.values, "values")
        check_form(self.indices, "indices", _INDICES)

    @property
    def traits(self) -> Traits:
        """See `Codec`."""
        inner = self.codec.traits
        return Traits(
            biased=inner.biased or self.values != "fp32", shared_support=inner.shared_support
        )

    def init(self, like: torch.Tensor) -> Any:
        """See `Codec`: the inner codec's state."""
        if self.indices == "coded" and not like.is_meta:
            kernels()  # loaded now, not in the first step
        return self.codec.init(like)

    def encode(self, x: torch.Tensor, state: Any) -> Packet:
        """See `Codec`. Buffers: the indices or their code (uint8), the values (two for int8: codes
        and scales), the vector's size (int64).

        Raises:
            InputError: the inner codec's packets do not hold entries.
        """
        kept = entries_of(self.codec.encode(x, state))
        coded = self.indices == "coded"
        index = encode_indices(kept.index, kept.numel) if coded else kept.index
        exact = self.values == "fp32"
        value = (kept.value,) if exact else narrow(kept.value.float(), self.values)
        return Packet((index, *value, torch.tensor([kept.numel])), "gradient")

    def decode(self, packet: Packet) -> torch.Tensor:
        """See `Codec`.

        Raises:
            InputError: a packet that does not hold what this codec sends.
        """
        index, *value, size = packet.buffers
        numel, wide = int(size), widen(tuple(value), self.values)
        if wide.is_meta:
            return wide.new_empty(numel)
        if self.indices == "coded":
            index = decode_indices(index, numel)
        if index.numel() != wide.numel():
            raise InputError(f"{index.numel()} indices came with {wide.numel()} values")
        return self.codec.decode(entries_packet(Sparse(index, wide, numel)))


def packed(
    codec: Codec,
    values: Literal["fp32", "fp16", "bf16", "int8"] = "fp32",
    indices: Literal["coded", "plain"] = "coded",
) -> Packed:
    """`Packed(codec=codec, values=values, indices=indices)`, to be composed."""
    return Packed(codec=codec, values=values, indices=indices)
