"""How much of each gradient to send: as much as hides behind the rest of the backward pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from thinwire.errors import InputError

__all__ = ["kept_of", "layer_ratios", "next_budgets"]


def layer_ratios(
    numel: Sequence[int],
    budget: Sequence[float],
    gather_seconds: Callable[[int, float], float],
    select_seconds: Callable[[int], float],
    limit: float,
) -> tuple[float, ...]:
    """Compression ratio c of each tensor: the smallest whose exchange fits into its budget.

    c = min{ c ≥ 1 : gather(c) + select ≤ budget }, and never above `limit`, which is also taken
    where nothing fits. A tensor of which nothing is left out (c = 1) is not selected from, so that
    selecting then costs nothing. Searched over whole numbers of kept entries, by halving.

    Args:
        numel: elements of each tensor, >= 1.
        budget: seconds that its exchange may take, e.g. `next_budgets`.
        gather_seconds: seconds of exchanging numel / ratio entries from each worker, by numel and
            ratio; it must not rise with the ratio above 1. At ratio 1 it may be that of a dense
            exchange.
        select_seconds: seconds of choosing the entries, by numel.
        limit: the largest ratio allowed, >= 1. LAGS takes 1000, and 250 for an LSTM.

    Returns:
        Ratios between 1 and min(limit, numel); `kept_of` makes the number of entries of them.

    Reference: Shi et al., "Layer-wise Adaptive Gradient Sparsification for Distributed Deep
    Learning with Convergence Guarantees", ECAI 2020.

    >>> layer_ratios([1000, 1000], [1.0, 0.1], lambda n, c: 1e-3 * n / c, lambda n: 0.0, 1000)
    (1.0, 10.0)
    """
    if not (limit >= 1 and math.isfinite(limit)):
        raise InputError(f"limit = {limit!r}; a compression ratio is 1 or more")
    if len(budget) != len(numel):
        raise InputError(f"budget has {len(budget)} entries, numel has {len(numel)}; one for each")
    return tuple(
        _ratio(elements, left, gather_seconds, select_seconds, limit)
        for elements, left in zip(numel, budget, strict=True)
    )


def next_budgets(ready: Sequence[float]) -> tuple[float, ...]:
    """Seconds between the completion of each gradient and of the next, by position in backward
    order; 0 for the last, behind which nothing hides.

    Args:
        ready: seconds from the beginning of backward, never falling.

    >>> next_budgets([1.0, 1.5, 4.0])
    (0.5, 2.5, 0.0)
    """
    return (*(after - before for before, after in pairwise(ready)), 0.0)[: len(ready)]


def kept_of(numel: int, ratio: float) -> int:
    """Entries kept at a compression ratio, at least 1.

    >>> kept_of(1000, 1000 / 3), kept_of(10, 250.0)
    (3, 1)
    """
    return max(1, round(numel / ratio))


def _ratio(
    numel: int,
    budget: float,
    gather_seconds: Callable[[int, float], float],
    select_seconds: Callable[[int], float],
    limit: float,
) -> float:
    if numel < 1:
        raise InputError(f"numel = {numel!r}; a tensor has 1 element or more")
    if gather_seconds(numel, 1.0) <= budget:
        return 1.0
    most = float(min(limit, numel))
    left = budget - select_seconds(numel)
    fits, too_many = kept_of(numel, most), numel
    if fits == too_many or gather_seconds(numel, most) > left:
        return most
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if gather_seconds(numel, numel / middle) <= left:
            fits = middle
        else:
            too_many = middle
    return min(most, numel / fits)
