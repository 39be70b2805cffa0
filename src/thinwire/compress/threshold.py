"""Every element at least as large as a given magnitude."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from thinwire.collectives.sparse import Sparse, index_dtype
from thinwire.compress.base import Codec, Traits
from thinwire.compress.entries import entries_of, entries_packet
from thinwire.compress.topk import BLOCK, check_density, num_kept
from thinwire.compress.values import finite_flat
from thinwire.errors import InputError
from thinwire.wire.packet import Packet

__all__ = ["Threshold", "at_least", "threshold"]

SMALLEST, LARGEST = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max


def at_least(flat: torch.Tensor, magnitude: float) -> Sparse:
    """The elements whose magnitude is not below another.

    Args:
        flat: P values, 1-D float32, finite, on any device.
        magnitude: >= 0.
    """
    if flat.device.type == "cpu":
        values, found = flat.numpy(), [np.empty(0, np.int64)]
        for start in range(0, values.size, BLOCK):  # which stays in a core's cache
            found.append(np.flatnonzero(np.abs(values[start : start + BLOCK]) >= magnitude) + start)
        index = torch.from_numpy(np.concatenate(found))
    else:
        index = (flat.abs() >= magnitude).nonzero().view(-1)
    return Sparse(index.to(index_dtype(flat.numel())).cpu(), flat[index].cpu(), flat.numel())


@dataclass(frozen=True, kw_only=True)
class Threshold(Codec):
    """Keeps what is large: 8 bytes each, as many as there are, perhaps none or all.

    Biased, so wrap it: `feedback(threshold(0.01))`.

    Args:
        magnitude: 1.18e-38 to 3.4e38; in the unit of the gradient, which changes while training.
        nominal_density: what share of a meta vector is taken to be kept, in (0, 1].

    >>> codec = threshold(2.0)
    >>> codec.decode(codec.encode(torch.tensor([3.0, -1.0, -4.0]), None))
    tensor([ 3.,  0., -4.])

    Reference: Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing",
    Interspeech 2015 (which sends plus or minus the threshold; we send the values).
    """

    magnitude: float
    nominal_density: float = 0.01

    def __post_init__(self) -> None:
        if not SMALLEST <= self.magnitude <= LARGEST:
            raise InputError(
                f"magnitude = {self.magnitude!r}; valid: {SMALLEST:.3g} to {LARGEST:.3g}"
            )
        check_density(self.nominal_density)

    @property
    def traits(self) -> Traits:
        """See `Codec`."""
        return Traits(biased=True)

    def init(self, like: torch.Tensor) -> None:
        """See `Codec`: nothing is remembered."""
        return None

    def encode(self, x: torch.Tensor, state: None) -> Packet:
        """See `Codec`.

        Raises:
            NonFiniteError: an element is NaN or infinite.
        """
        flat = finite_flat(x)
        if not flat.is_meta:
            return entries_packet(at_least(flat, self.magnitude))
        k, dtype = num_kept(self.nominal_density, flat.numel()), index_dtype(flat.numel())
        index = torch.empty(k, dtype=dtype, device="meta")
        return entries_packet(Sparse(index, flat.new_empty(k), flat.numel()))

    def decode(self, packet: Packet) -> torch.Tensor:
        """See `Codec`."""
        return entries_of(packet).to_dense()


def threshold(magnitude: float) -> Threshold:
    """`Threshold(magnitude=magnitude)`, to be composed."""
    return Threshold(magnitude=magnitude)
