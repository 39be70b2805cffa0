"""Which samples each worker takes at each step: one endless stream, cut without overlap.

The stream is epoch after epoch of shuffled sample indices. Step t of the whole cluster takes its
next `global_batch` indices and rank r the slice `[offset_r, offset_r + b_r)` of them, so that the
union over the ranks is exactly the batch of one process. Epochs are joined, not padded or cut: a
step that reaches over the end of an epoch goes on in the next one and every batch is full.

torch's DataLoader and DistributedSampler are not used: they give every rank as many samples, pad
the last batch, and shuffle with a state that a resumed run cannot ask for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import torch

from thinwire.errors import InputError
from thinwire.seeds import generator_for

__all__ = ["SampleStream", "batch_slice", "split_batch"]

# Workers that share a stream may be in this many different epochs before one is shuffled again.
_KEPT_EPOCHS = 8


class SampleStream:
    """An endless stream of sample indices: any part of it at any time, the same on every machine.

    Epoch e is a permutation of 0..num_samples-1 drawn from the seed labelled ("epoch", e); the
    stream has no position of its own, so that a resumed run needs to know only its step. Workers of
    one process share a stream and with it the few permutations that it keeps.

    Args:
        num_samples: size of the training set, 1 or more.
        seed: of the run.

    Raises:
        InputError: an empty training set.

    >>> stream = SampleStream(3, seed=0)
    >>> sorted(stream.take(3, 3).tolist())
    [0, 1, 2]
    """

    def __init__(self, num_samples: int, seed: int):
        if num_samples < 1:
            raise InputError(f"num_samples = {num_samples}; allowed: 1 or more")
        self.num_samples = num_samples
        self.seed = seed
        self._epochs: dict[int, torch.Tensor] = {}

    def take(self, start: int, count: int) -> torch.Tensor:
        """The indices at places start..start+count-1 of the stream.

        Args:
            start: 0 or more.
            count: 0 or more; may reach over several epochs.

        Returns:
            int64 tensor of shape (count,), values 0..num_samples-1, the caller's own.

        Raises:
            InputError: a negative start or count.
        """
        if start < 0 or count < 0:
            raise InputError(f"start = {start}, count = {count}; allowed: 0 or more")
        parts = []
        while count > 0:
            epoch, place = divmod(start, self.num_samples)
            part = self._epoch(epoch)[place : place + count]
            parts.append(part)
            start, count = start + len(part), count - len(part)
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)

    def _epoch(self, epoch: int) -> torch.Tensor:
        order = self._epochs.pop(epoch, None)
        if order is None:
            generator = generator_for(self.seed, "epoch", epoch)
            order = torch.randperm(self.num_samples, generator=generator)
        self._epochs[epoch] = order  # last in the dict: used last
        if len(self._epochs) > _KEPT_EPOCHS:
            del self._epochs[next(iter(self._epochs))]
        return order


def split_batch(global_batch: int, weights: Sequence[float] | None, size: int) -> tuple[int, ...]:
    """Samples per worker and step: equal, or in proportion to the weights.

    A worker whose share is below one sample gets one; the others divide the rest by largest
    remainder, ties to the lower rank. Without weights the first workers get one sample more where
    the batch does not divide. The sum is exactly `global_batch`.

    Args:
        global_batch: samples of one step over all workers, `size` or more.
        weights: one per worker, positive and finite, such as samples per second; None is equal.
        size: number of workers, 1 or more.

    Raises:
        InputError: fewer samples than workers, or weights that are not as said.

    >>> split_batch(10, None, 4)
    (3, 3, 2, 2)
    >>> split_batch(16, [1.0, 2.0, 5.0], 3)
    (2, 4, 10)
    """
    if size < 1:
        raise InputError(f"size = {size}; allowed: 1 or more workers")
    if global_batch < size:
        raise InputError(
            f"global_batch = {global_batch} for {size} workers; allowed: {size} or more, "
            "for each worker takes one sample or more per step"
        )
    return _divide(global_batch, _checked(weights, size))


def batch_slice(step: int, rank: int, shares: Sequence[int]) -> tuple[int, int]:
    """Where the batch of a rank lies in the stream, as (start, count) for `SampleStream.take`.

    Args:
        step: counted from 0.
        rank: 0..len(shares)-1.
        shares: samples per worker and step, as `split_batch` gives them.

    >>> batch_slice(step=2, rank=1, shares=(3, 5))
    (19, 5)
    """
    assert step >= 0, step
    assert 0 <= rank < len(shares), (rank, shares)
    return step * sum(shares) + sum(shares[:rank]), shares[rank]


def _checked(weights: Sequence[float] | None, size: int) -> list[Fraction]:
    if weights is None:
        return [Fraction(1)] * size
    if len(weights) != size:
        raise InputError(f"weights = {list(weights)} for {size} workers; allowed: one per worker")
    for rank, weight in enumerate(weights):
        if not (math.isfinite(weight) and weight > 0):
            raise InputError(f"weights[{rank}] = {weight}; allowed: positive and finite numbers")
    # Exact, so that no rounding decides a remainder.
    return [Fraction(float(weight)) for weight in weights]


def _divide(total: int, weights: list[Fraction]) -> tuple[int, ...]:
    shares = [1] * len(weights)
    ranks = list(range(len(weights)))
    # Giving one sample to a small worker takes from the others' quotas, which may fall below one.
    while True:
        pool = total - (len(weights) - len(ranks))
        unit = pool / sum(weights[r] for r in ranks)
        large = [r for r in ranks if weights[r] * unit >= 1]
        if len(large) == len(ranks):
            break
        ranks = large
    for r in ranks:
        shares[r] = math.floor(weights[r] * unit)
    left = total - sum(shares)
    for r in sorted(ranks, key=lambda r: (shares[r] - weights[r] * unit, r))[:left]:
        shares[r] += 1
    return tuple(shares)
