"""The k largest elements of a vector, exactly and repeatably."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from thinwire.collectives.sparse import Sparse, index_dtype, keep_largest
from thinwire.compress.base import Codec, Traits
from thinwire.errors import InputError, NonFiniteError
from thinwire.wire.packet import Packet

__all__ = ["SAMPLE", "SAMPLE_FROM", "STRIDE", "TopK", "num_kept", "select_top", "topk"]

SAMPLE_FROM = 1 << 13
"""Elements from which on the threshold is first estimated from a sample."""

STRIDE, SAMPLE = 16, 1 << 16
"""One element in so many is looked at for it, or as many elements as the second says."""

BLOCK = 1 << 16
"""Elements looked at at once: they and their magnitudes stay in a core's cache."""


def num_kept(density: float, numel: int) -> int:
    """k = max(1, floor(density · numel)).

    Args:
        density: share of elements kept, above 0, at most 1.
        numel: >= 1.

    >>> num_kept(0.001, 25_557_032), num_kept(0.001, 10)
    (25557, 1)
    """
    check_density(density)
    if numel < 1:
        raise InputError(f"numel = {numel!r}; a vector of no elements has no largest one")
    return max(1, math.floor(density * numel))


def check_density(density: float) -> None:
    """Reject what is not a share of a vector."""
    if not 0 < density <= 1:
        raise InputError(f"density = {density!r}; it must be above 0 and at most 1")


def select_top(x: torch.Tensor, k: int) -> Sparse:
    """The k elements of largest magnitude; of equal ones those with the smaller index.

    Exact. On the CPU one pass collects the candidates above a threshold that a sample suggests, and
    the k-th largest is found among them; when the sample misled, among all.

    Args:
        x: any shape, counted as flat; any device. Half precision gives float32 values. Meta gives k
            nominal entries.
        k: 1..numel.

    Raises:
        NonFiniteError: an element is NaN or infinite.
    """
    numel = x.numel()
    if not 1 <= k <= numel:
        raise InputError(f"k = {k!r}; valid: 1..{numel}")
    flat = x.detach().reshape(-1)
    if flat.dtype not in (torch.float32, torch.float64):
        # Exact for half precision. A whole copy, but half precision is rare on the CPU.
        flat = flat.float()
    if flat.is_meta:
        index = torch.empty(k, dtype=index_dtype(numel), device="meta")
        return Sparse(index, torch.empty(k, dtype=flat.dtype, device="meta"), numel)
    if flat.device.type != "cpu":
        return _select_on_device(flat, k)
    values = flat.numpy()
    index = _candidates(values, k)
    if index is None:
        magnitude = np.abs(values)
        _check_finite(magnitude, 0)
        index = np.flatnonzero(keep_largest(magnitude, k))
    else:
        index = index[keep_largest(np.abs(values[index]), k)]
    chosen = torch.from_numpy(index).to(index_dtype(numel))
    return Sparse(chosen, torch.from_numpy(values[index]), numel)


def _candidates(values: np.ndarray, k: int) -> np.ndarray | None:
    """Indices, rising, of elements among which are the k largest; None when a sample is no help."""
    numel = values.size
    if numel < SAMPLE_FROM:
        return None
    sample = np.abs(values[:: max(STRIDE, numel // SAMPLE)])
    expected = sample.size * k / numel
    # Four standard deviations more than the sample's share of k, so that too few are rare.
    enough = math.ceil(expected + 4 * math.sqrt(expected) + 10)
    if enough > sample.size // 2:
        return None
    threshold = np.partition(sample, sample.size - enough)[sample.size - enough]
    found, buffer = [], np.empty(BLOCK, values.dtype)
    for start in range(0, numel, BLOCK):
        block = values[start : start + BLOCK]
        magnitude = np.abs(block, out=buffer[: block.size])
        _check_finite(magnitude, start)
        above = np.flatnonzero(magnitude >= threshold)
        above += start
        found.append(above)
    index = np.concatenate(found)
    return index if k <= index.size <= numel // 2 else None


def _check_finite(magnitude: np.ndarray, start: int) -> None:
    if np.isfinite(magnitude.max()):
        return
    at = int(np.flatnonzero(~np.isfinite(magnitude))[0])
    raise NonFiniteError(
        f"element {start + at} of the vector to select from is {magnitude[at]} in magnitude; "
        "nothing was selected. Lower the learning rate, clip the gradient, or skip the step"
    )


def _select_on_device(flat: torch.Tensor, k: int) -> Sparse:
    magnitude = flat.abs()
    if not bool(torch.isfinite(magnitude.max())):
        _check_finite(magnitude.cpu().numpy(), 0)
    kth = magnitude.topk(k, sorted=False).values.min()
    above = (magnitude > kth).nonzero().view(-1)
    equal = (magnitude == kth).nonzero().view(-1)[: k - above.numel()]
    index = torch.cat((above, equal)).sort().values
    return Sparse(index.to(index_dtype(flat.numel())).cpu(), flat[index].cpu(), flat.numel())


@dataclass(frozen=True, kw_only=True)
class TopK(Codec):
    """Keeps the largest elements: 8 bytes each, `num_kept(density, numel)` of them.

    Biased, so wrap it: `feedback(topk(0.01))`. The packet holds indices, values, and the vector's
    size as one int64.

    Args:
        density: share of elements kept, above 0, at most 1.

    >>> codec = topk(0.5)
    >>> codec.decode(codec.encode(torch.tensor([3.0, -1.0, -4.0, 1.0]), None))
    tensor([ 3.,  0., -4.,  0.])
    """

    density: float

    def __post_init__(self) -> None:
        check_density(self.density)

    @property
    def traits(self) -> Traits:
        """See `Codec`."""
        return Traits(biased=True)

    def init(self, like: torch.Tensor) -> None:
        """See `Codec`: nothing is remembered."""
        return None

    def encode(self, x: torch.Tensor, state: None) -> Packet:
        """See `Codec`."""
        s = select_top(x, num_kept(self.density, x.numel()))
        # The size is a real number even in a meta packet, which could not be decoded without it.
        return Packet((s.index, s.value, torch.tensor([s.numel])), "sparse")

    def decode(self, packet: Packet) -> torch.Tensor:
        """See `Codec`."""
        index, value, size = packet.buffers
        return Sparse(index, value, int(size)).to_dense()


def topk(density: float) -> TopK:
    """`TopK(density=density)`, to be composed."""
    return TopK(density=density)
