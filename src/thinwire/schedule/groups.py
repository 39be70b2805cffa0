"""Which gradients leave together: the tensors of a model cut into messages.

All inputs go by the order in which gradients are complete, position 0 first (backward order):

* `order[j]`: index of the tensor that is complete as the j-th;
* `ready[j]`: seconds from the beginning of backward until it is, >= 0 and never falling;
* `nbytes[j]` (or `numel[j]`): its bytes (or elements), >= 0.

A grouping cuts `order` into consecutive parts. Messages go one after the other on one channel, each
when its last tensor is complete and the channel is free. Everything is plain arithmetic in a fixed
order: equal inputs give equal groups on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TypeAlias

from thinwire.errors import InputError

__all__ = [
    "DDP_FIRST",
    "DDP_LIMIT",
    "Groups",
    "buckets",
    "finish",
    "merged",
    "optimal",
    "per_tensor",
    "sizes",
    "sparse_finish",
    "sparse_merged",
    "whole",
]

Groups: TypeAlias = tuple[tuple[int, ...], ...]
"""Indices of tensors by message: messages in order of sending, tensors in backward order."""

DDP_LIMIT, DDP_FIRST = 25 * 2**20, 2**20
"""Bytes of a bucket, and of the first one, that DistributedDataParallel takes by default."""


def per_tensor(order: Sequence[int]) -> Groups:
    """A message for each tensor: wait-free backpropagation (WFBP).

    Reference: Zhang et al., "Poseidon: An Efficient Communication Architecture for Distributed Deep
    Learning on GPU Clusters", USENIX ATC 2017.

    >>> per_tensor([2, 1, 0])
    ((2,), (1,), (0,))
    """
    return tuple((tensor,) for tensor in order)


def whole(order: Sequence[int]) -> Groups:
    """One message with all tensors; none without tensors.

    >>> whole([2, 1, 0])
    ((2, 1, 0),)
    """
    return (tuple(order),) if order else ()


def buckets(
    order: Sequence[int],
    nbytes: Sequence[int],
    limit: int = DDP_LIMIT,
    first: int | None = None,
) -> Groups:
    """Messages of a fixed size: one is closed as soon as it holds `limit` bytes or more.

    Args:
        order: tensors by completion.
        nbytes: their bytes.
        limit: bytes, >= 1.
        first: the same for the first message alone, for it to leave early; None: `limit`.
            DistributedDataParallel takes `DDP_FIRST`.

    >>> buckets([3, 2, 1, 0], [10, 10, 50, 10], limit=60)
    ((3, 2, 1), (0,))
    """
    _check(order, nbytes, "nbytes")
    for name, value in (("limit", limit), ("first", limit if first is None else first)):
        if value < 1:
            raise InputError(f"{name} = {value!r} bytes; a message needs 1 or more")
    ends, held, most = [], 0, limit if first is None else first
    for j, size in enumerate(nbytes):
        held += size
        if held >= most:
            ends.append(j + 1)
            held, most = 0, limit
    return _cut(order, ends)


def merged(
    order: Sequence[int],
    ready: Sequence[float],
    nbytes: Sequence[int],
    startup: float,
    per_byte: float,
) -> Groups:
    """MG-WFBP's rule: a tensor joins the next where waiting for that costs less than a start-up.

    For messages that take `startup + per_byte · bytes`. A message is closed when the next tensor is
    ready no sooner than `startup` after the message could begin; without a start-up there is
    nothing to save, and each tensor goes alone.

    It ends no later than one message a tensor, nor than one message. *Proof.* Let a message begin
    at t once all tensors up to j are complete, and r ≤ t + a when the next is (a the start-up).
    Sent apart the two end at t + 2a + b·s; together at max(t, r) + a + b·s, which is no later; and
    ends only rise with the moment when the channel is free, so induction over j gives the first.
    A closed message begins at t ≤ r − a and so ends by r + b·s, where r is when the next tensor is
    ready; by induction the channel is never further behind the last gradient than the bytes already
    sent take, and the last message ends by (last ready) + a + b·(all bytes), which is the second.
    It is not always the best: `optimal` is.

    Args:
        order: tensors by completion.
        ready: when each is complete.
        nbytes: their bytes.
        startup: seconds of an empty message, >= 0.
        per_byte: seconds, >= 0.

    Reference: Shi, Chu and Li, "MG-WFBP: Efficient Data Communication for Distributed Synchronous
    SGD Algorithms", IEEE INFOCOM 2019.

    >>> merged([2, 1, 0], [1.0, 1.5, 9.0], [10, 10, 10], startup=2.0, per_byte=0.1)
    ((2, 1), (0,))
    """
    _check_times(order, ready, nbytes, "nbytes")
    for name, value in (("startup", startup), ("per_byte", per_byte)):
        if not (value >= 0 and math.isfinite(value)):
            raise InputError(f"{name} = {value!r} seconds; it must be finite and >= 0")
    ends, free, held = [], 0.0, 0
    for j, size in enumerate(nbytes):
        held += size
        start = max(free, ready[j])
        if j + 1 == len(nbytes) or max(0.0, ready[j + 1] - start) >= startup:
            ends.append(j + 1)
            free, held = start + startup + per_byte * held, 0
    return _cut(order, ends)


def optimal(
    order: Sequence[int],
    ready: Sequence[float],
    nbytes: Sequence[int],
    cost: Callable[[int], float],
) -> Groups:
    """The grouping whose last message ends first, among all of consecutive tensors.

    A program over prefixes: f(0) = 0, f(j) = min over i < j of max(f(i), ready of j) + cost(bytes
    from i to j). Exact for any cost, since a channel that is free earlier never ends later; O(L²)
    costs for L tensors. Of equally good last messages the longest is taken.

    Args:
        order: tensors by completion.
        ready: when each is complete.
        nbytes: their bytes.
        cost: seconds of a message of so many bytes, >= 0.

    >>> optimal([2, 1, 0], [1.0, 2.9, 4.8], [10, 10, 10], lambda n: 2.0 + 0.1 * n)
    ((2,), (1, 0))
    """
    _check_times(order, ready, nbytes, "nbytes")
    total = [0, *accumulate(nbytes)]
    best, begin = [0.0], [0]
    for j in range(1, len(total)):
        options = [max(best[i], ready[j - 1]) + cost(total[j] - total[i]) for i in range(j)]
        end = min(options)
        best.append(end)
        begin.append(options.index(end))
    ends, j = [], len(order)
    while j:
        ends.append(j)
        j = begin[j]
    return _cut(order, ends[::-1])


def finish(
    groups: Groups,
    ready: Sequence[float],
    nbytes: Sequence[int],
    cost: Callable[[int], float],
) -> float:
    """Seconds from the beginning of backward until the last message has ended.

    Args:
        groups: as one of this module's functions made it.
        ready: by position, as given to that function.
        nbytes: likewise.
        cost: seconds of a message of so many bytes.

    >>> finish(((1,), (0,)), [1.0, 2.0], [10, 10], lambda n: 0.2 * n)
    5.0
    """
    end = 0.0
    for first, last in _spans(groups, len(ready)):
        end = max(end, ready[last - 1]) + cost(sum(nbytes[first:last]))
    return end


def sizes(groups: Groups, nbytes: Sequence[int]) -> tuple[int, ...]:
    """Bytes of each message; `nbytes` by position.

    >>> sizes(((2, 1), (0,)), [5, 6, 7])
    (11, 7)
    """
    return tuple(sum(nbytes[first:last]) for first, last in _spans(groups, len(nbytes)))


def sparse_merged(
    order: Sequence[int],
    ready: Sequence[float],
    numel: Sequence[int],
    density: float,
    select: Callable[[int], float],
    gather: Callable[[int], float],
) -> Groups:
    """OMGS-SGD's rule: tensors are selected from and gathered together where that saves more than
    it delays.

    Selecting stands in the way of the backward pass: the gradient after a group begins when the
    group's entries are chosen. A group takes in the next tensor when what its message is delayed by
    (the backward pass of that tensor, and what selecting from both at once costs more than apart;
    less what it would have waited for the channel) is below what one gather saves over two.

    Args:
        order: tensors by completion.
        ready: when each would be complete if selecting took no time.
        numel: their elements.
        density: share of elements kept, above 0, at most 1.
        select: seconds of choosing from so many elements.
        gather: seconds of gathering so many kept entries from each worker.

    Reference: Shi et al., "Communication-Efficient Distributed Deep Learning with Merged Gradient
    Sparsification on GPUs", IEEE INFOCOM 2020.

    >>> sparse_merged([1, 0], [1.0, 1.1], [100, 100], 0.1, lambda n: 0.0, lambda k: 1.0 + k)
    ((1, 0),)
    """
    _check_times(order, ready, numel, "numel")
    _check_density(density)
    ends, free, clock, held, backward = [], 0.0, 0.0, 0, 0.0
    for j, elements in enumerate(numel):
        held += elements
        backward += ready[j] - (ready[j - 1] if j else 0.0)
        if j + 1 < len(numel):
            after, step = numel[j + 1], ready[j + 1] - ready[j]
        else:
            after, step = 0, math.inf
        selected = clock + backward + select(held)
        start = max(free, selected)
        kept, kept_after = _kept(density, held), _kept(density, after)
        wait = step + select(held + after) - select(held) - select(after) - (start - selected)
        save = gather(kept) + gather(kept_after) - gather(_kept(density, held + after))
        if not wait < save:
            ends.append(j + 1)
            free, clock, held, backward = start + gather(kept), selected, 0, 0.0
    return _cut(order, ends)


def sparse_finish(
    groups: Groups,
    ready: Sequence[float],
    numel: Sequence[int],
    density: float,
    select: Callable[[int], float],
    gather: Callable[[int], float],
) -> tuple[float, float]:
    """When the last entries are chosen, and when the last gather has ended, from the beginning of
    backward; the arguments as in `sparse_merged`, by position.

    >>> cheap, one = (lambda n: 0.5), (lambda k: 2.0)
    >>> sparse_finish(((1,), (0,)), [1.0, 2.0], [10, 10], 0.1, cheap, one)
    (3.0, 5.5)
    """
    _check_density(density)
    clock = end = before = 0.0
    for first, last in _spans(groups, len(ready)):
        held = sum(numel[first:last])
        clock += ready[last - 1] - before + select(held)
        before = ready[last - 1]
        end = max(end, clock) + gather(_kept(density, held))
    return clock, end


def _kept(density: float, numel: int) -> int:
    return max(1, int(density * numel)) if numel else 0


def _cut(order: Sequence[int], ends: Sequence[int]) -> Groups:
    """The order in parts that end at `ends`, and what is left as the last part."""
    borders = [0, *ends] if ends and ends[-1] == len(order) else [0, *ends, len(order)]
    return tuple(tuple(order[i:j]) for i, j in pairwise(borders) if j > i)


def _spans(groups: Groups, length: int) -> Iterator[tuple[int, int]]:
    """First position of each group, and the one after its last."""
    borders = [0, *accumulate(len(group) for group in groups)]
    if borders[-1] != length:
        raise InputError(f"groups hold {borders[-1]} tensors; the times and sizes are of {length}")
    return pairwise(borders)


def _check(order: Sequence[int], sizes: Sequence[int], name: str) -> None:
    if len(sizes) != len(order):
        raise InputError(f"{name} has {len(sizes)} entries, order has {len(order)}; one for each")
    for j, size in enumerate(sizes):
        if size < 0:
            raise InputError(f"{name}[{j}] = {size!r}; it must be >= 0")


def _check_times(
    order: Sequence[int], ready: Sequence[float], sizes: Sequence[int], name: str
) -> None:
    _check(order, sizes, name)
    if len(ready) != len(order):
        raise InputError(f"ready has {len(ready)} entries, order has {len(order)}; one for each")
    for before, after in pairwise([0.0, *ready]):
        if not (before <= after < math.inf):
            raise InputError(f"ready = {after!r} after {before!r}; >= 0, finite and never falling")


def _check_density(density: float) -> None:
    if not 0 < density <= 1:
        raise InputError(f"density = {density!r}; above 0, at most 1")
