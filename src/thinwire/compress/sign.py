"""One bit an element, and one scale."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from thinwire.compress.base import Codec, Traits
from thinwire.compress.values import finite_flat
from thinwire.errors import InputError
from thinwire.wire.packet import Packet

__all__ = ["Sign", "sign"]


@dataclass(frozen=True, kw_only=True)
class Sign(Codec):
    """Sends every element's sign, times the mean magnitude: 1/32 of the bytes.

    Biased, so wrap it: `feedback(sign())`. Layers differ in magnitude:
    `feedback(per_layer(sign(), layers))` has a scale for each.

    Update rule: C(x) = (‖x‖₁ / m) · sign(x), with sign(0) = 1.

    >>> codec = sign()
    >>> codec.decode(codec.encode(torch.tensor([3.0, -1.0, 2.0]), None))
    tensor([ 2., -2.,  2.])

    Reference: Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression
    Schemes", ICML 2019.
    """

    @property
    def traits(self) -> Traits:
        """See `Codec`."""
        return Traits(biased=True, shared_support=True)

    def init(self, like: torch.Tensor) -> None:
        """See `Codec`: nothing is remembered."""
        return None

    def encode(self, x: torch.Tensor, state: None) -> Packet:
        """See `Codec`. Buffers: the bits, set for negative, the first element in the lowest bit of
        the first byte; the scale (float32); the number of elements (int64).

        Raises:
            NonFiniteError: an element is NaN or infinite.
        """
        flat = finite_flat(x)
        numel = flat.numel()
        size = torch.tensor([numel])
        if flat.is_meta:
            bits = torch.empty(-(-numel // 8), dtype=torch.uint8, device="meta")
            return Packet((bits, flat.new_empty(1), size), "gradient")
        scale = flat.abs().sum(dtype=torch.float64) / max(1, numel)
        bits = np.packbits((flat < 0).cpu().numpy(), bitorder="little")
        return Packet((torch.from_numpy(bits), scale.float().view(1).cpu(), size), "gradient")

    def decode(self, packet: Packet) -> torch.Tensor:
        """See `Codec`."""
        bits, scale, size = packet.buffers
        numel = int(size)
        if bits.is_meta:
            return scale.new_empty(numel)
        if bits.numel() != -(-numel // 8):
            raise InputError(f"{bits.numel()} bytes do not hold the signs of {numel} elements")
        negative = torch.from_numpy(np.unpackbits(bits.numpy(), count=numel, bitorder="little"))
        return negative.float().mul_(-2).add_(1).mul_(scale)


def sign() -> Sign:
    """`Sign()`, to be composed."""
    return Sign()
