"""A random subset of the elements, the same on all ranks: no indices travel."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from thinwire.collectives.sparse import Sparse, index_dtype
from thinwire.compress.base import Codec, Traits
from thinwire.compress.draws import Calls, stratified
from thinwire.compress.topk import check_density, num_kept
from thinwire.compress.values import finite_flat
from thinwire.errors import InputError
from thinwire.seeds import seed_for
from thinwire.wire.packet import Packet

__all__ = ["RandK", "randk"]


@dataclass(frozen=True, kw_only=True)
class RandK(Codec):
    """Keeps random elements: 4 bytes each, `num_kept(density, numel)` of them.

    Ranks with the same seed and equally many calls draw the same elements, so that packets can be
    added on the way: the dense all-reduce of their values is that of the vectors, there. The kept
    elements are not scaled up, so wrap it: `feedback(randk(0.01))`.

    Update rule: C(x)_i = x_i for i in S, else 0, with S one element from each of k equal ranges.
    Departure from the paper: S is stratified, which needs time in k and not in m.

    Args:
        density: share of elements kept, above 0, at most 1.
        seed: >= 0, the same on all ranks.

    >>> codec = randk(0.5, seed=3)
    >>> packet = codec.encode(torch.ones(8), codec.init(torch.ones(8)))
    >>> int(codec.decode(packet).sum()), packet.payload_nbytes
    (4, 32)

    Reference: Stich, Cordonnier, Jaggi, "Sparsified SGD with Memory", NeurIPS 2018.
    """

    density: float
    seed: int = 0

    def __post_init__(self) -> None:
        check_density(self.density)
        if self.seed < 0:
            raise InputError(f"seed = {self.seed!r}; it must be >= 0")

    @property
    def traits(self) -> Traits:
        """See `Codec`."""
        return Traits(linear=True, biased=True, shared_support=True)

    def init(self, like: torch.Tensor) -> Calls:
        """See `Codec`: how often it was called, so that each call draws anew."""
        return Calls()

    def encode(self, x: torch.Tensor, state: Calls) -> Packet:
        """See `Codec`. Buffers: K values; the vector's size and the call's seed as two int64.

        Raises:
            NonFiniteError: an element is NaN or infinite, kept or not.
            InputError: an empty vector.
        """
        flat = finite_flat(x)
        k = num_kept(self.density, flat.numel())
        draw = seed_for(self.seed, "randk", state.count)
        if flat.is_meta:
            value = flat.new_empty(k)
        else:
            index = torch.from_numpy(stratified(flat.numel(), k, draw))
            value = flat[index.to(flat.device)].cpu()
        state.count += 1
        return Packet((value, torch.tensor([flat.numel(), draw])), "gradient")

    def decode(self, packet: Packet) -> torch.Tensor:
        """See `Codec`."""
        value, (numel, draw) = packet.buffers[0], map(int, packet.buffers[1])
        if value.is_meta:
            return value.new_empty(numel)
        index = torch.from_numpy(stratified(numel, value.numel(), draw))
        return Sparse(index.to(index_dtype(numel)), value, numel).to_dense()


def randk(density: float, seed: int = 0) -> RandK:
    """`RandK(density=density, seed=seed)`, to be composed."""
    return RandK(density=density, seed=seed)
