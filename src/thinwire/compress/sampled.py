"""About the k largest elements, by a threshold that a sample suggests."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from thinwire.collectives.sparse import Sparse, top
from thinwire.compress.base import Codec, Traits
from thinwire.compress.draws import Calls, stratified
from thinwire.compress.entries import entries_of, entries_packet
from thinwire.compress.threshold import at_least
from thinwire.compress.topk import check_density, num_kept, select_top
from thinwire.compress.values import finite_flat
from thinwire.errors import InputError
from thinwire.seeds import seed_for
from thinwire.wire.packet import Packet

__all__ = ["MIN_SAMPLE", "SampledThreshold", "sampled_threshold", "select_sampled"]

MIN_SAMPLE = 1024
"""Elements that are looked at at least, where there are as many."""


def select_sampled(
    flat: torch.Tensor, k: int, sample: float, tolerance: float, seed: int
) -> Sparse:
    """About the k largest: between (1-tolerance)·k and (1+tolerance)·k of them, whatever happens.

    A sample of the magnitudes gives a threshold. When it lets too many through, the k largest of
    those are kept (selection in two levels); when too few, the k largest of all.

    Args:
        flat: P values, 1-D float32, finite, on any device.
        k: 1..P.
        sample: share of the elements looked at, above 0, at most 1.
        tolerance: 0..1.
        seed: of the places looked at, 0..2^63-1.
    """
    numel = flat.numel()
    size = min(numel, max(MIN_SAMPLE, math.ceil(sample * numel)))
    at = torch.from_numpy(stratified(numel, size, seed)).to(flat.device)
    looked = flat[at].abs()
    expected = min(size, max(1, round(size * k / numel)))
    limit = float(looked.kthvalue(size - expected + 1).values)
    found = at_least(flat, limit)
    if len(found) > (1 + tolerance) * k:
        return top(found, k)
    return found if len(found) >= (1 - tolerance) * k else select_top(flat, k)


@dataclass(frozen=True, kw_only=True)
class SampledThreshold(Codec):
    """Keeps about the largest elements, faster than exactly so where selection is slow.

    8 bytes each, `num_kept(density, numel)` of them within the tolerance. Biased, so wrap it:
    `feedback(sampled_threshold(0.001))`.

    Departure from the paper: too few kept are replaced by the exact selection, where the authors'
    code lowers the threshold step by step.

    Args:
        density: share of elements kept, above 0, at most 1.
        sample: share of elements looked at for the threshold, above 0, at most 1; the paper has
            0.001 to 0.01. At least 1,024 elements are looked at.
        tolerance: by how much of k the number kept may differ, 0..1.
        seed: of the places looked at, >= 0.

    >>> codec = sampled_threshold(0.25)
    >>> x = torch.arange(8.0)
    >>> codec.decode(codec.encode(x, codec.init(x)))
    tensor([0., 0., 0., 0., 0., 0., 6., 7.])

    Reference: Lin et al., "Deep Gradient Compression: Reducing the Communication Bandwidth for
    Distributed Training", ICLR 2018.
    """

    density: float
    sample: float = 0.01
    tolerance: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        check_density(self.density)
        if not 0 < self.sample <= 1:
            raise InputError(f"sample = {self.sample!r}; it must be above 0 and at most 1")
        if not 0 <= self.tolerance <= 1:
            raise InputError(f"tolerance = {self.tolerance!r}; valid: 0..1")
        if self.seed < 0:
            raise InputError(f"seed = {self.seed!r}; it must be >= 0")

    @property
    def traits(self) -> Traits:
        """See `Codec`."""
        return Traits(biased=True)

    def init(self, like: torch.Tensor) -> Calls:
        """See `Codec`: how often it was called, so that each call looks elsewhere."""
        return Calls()

    def encode(self, x: torch.Tensor, state: Calls) -> Packet:
        """See `Codec`.

        Raises:
            NonFiniteError: an element is NaN or infinite.
            InputError: an empty vector.
        """
        flat = finite_flat(x)
        k = num_kept(self.density, flat.numel())
        if flat.is_meta:
            kept = select_top(flat, k)
        else:
            seed = seed_for(self.seed, "sampled_threshold", state.count)
            kept = select_sampled(flat, k, self.sample, self.tolerance, seed)
        state.count += 1
        return entries_packet(kept)

    def decode(self, packet: Packet) -> torch.Tensor:
        """See `Codec`."""
        return entries_of(packet).to_dense()


def sampled_threshold(density: float, sample: float = 0.01) -> SampledThreshold:
    """`SampledThreshold(density=density, sample=sample)`, to be composed."""
    return SampledThreshold(density=density, sample=sample)
