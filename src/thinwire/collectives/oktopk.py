"""Ok-Topk's sparse all-reduce: entries go to the owner of their region, survivors to everybody.

Each worker owns a region of the vector. It gets everybody's entries there, adds them up, keeps what
passes a threshold that all know, and the survivors are gathered. With k entries a worker, k of the
sum, and regions that split the workers' sets evenly, a worker sends 2k(P-1)/P words to owners, not
more than as much to balance the survivors, and 2k(P-1)/P in the gather: at most 6k(P-1)/P however
many workers there are. Now and then the threshold is estimated anew, from all that the owners hold,
and the regions are drawn anew; both cost more, and are spread over many steps.

Reference: Li and Hoefler, "Near-Optimal Sparse Allreduce for Distributed Deep Learning", PPoPP
2022. Departures: an owner whose survivors, together with the others', are more than k keeps its
share of k (its largest entries), so that the bound holds at every such step; the threshold moves
with the distance of the count from k instead of by 0.8 %.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch

from thinwire.collectives._moves import take
from thinwire.collectives._schedule import dealt
from thinwire.collectives.dense import all_gather, all_reduce
from thinwire.collectives.sparse import Form, Plain, Sparse, gather_sets, sum_sparse, top
from thinwire.errors import NonFiniteError
from thinwire.wire.base import Comm, Posted, Tag, Work

__all__ = ["adjusted", "agree_regions", "even_regions", "oktopk_all_reduce"]

_PLAIN = Plain()

BALANCE_FROM = 2.0
"""Survivors are balanced when some worker has this many times its even share."""


def even_regions(numel: int, size: int) -> list[int]:
    """The borders of regions of equal length: P+1 indices, from 0 to `numel`; region r is
    `borders[r]` to `borders[r + 1] - 1`.

    >>> even_regions(10, 4)
    [0, 3, 6, 8, 10]
    """
    return list(accumulate(dealt(numel, size), initial=0))


def agree_regions(comm: Comm, s: Sparse, tag: Tag = "oktopk regions") -> list[int]:
    """Borders such that each region has about as many of the workers' entries as any other.

    Every worker proposes those that split its own set evenly; the mean is taken. One small
    all-reduce.

    Args:
        comm: this worker's endpoint.
        s: this worker's set.
        tag: equal on all ranks.
    """
    size = comm.size
    proposal = torch.tensor(even_regions(s.numel, size)[1:-1], dtype=torch.float64)
    if len(s) and not s.is_meta:
        cuts = torch.tensor([i * len(s) // size for i in range(1, size)], dtype=torch.int64)
        proposal = s.index[cuts].double()
    total = all_reduce(comm, proposal, tag=tag)  # of whole numbers: exact, so still rising
    return [0, *(int(x) for x in total.div_(size).floor_().tolist()), s.numel]


def oktopk_all_reduce(
    comm: Comm,
    s: Sparse,
    k: int,
    borders: Sequence[int],
    threshold: float | None,
    tag: Tag = "oktopk",
    work: Callable[[int], Work] | None = None,
    form: Form = _PLAIN,
) -> tuple[Sparse, float]:
    """About the k largest entries of the sum of the workers' sets.

    Nothing is lost that the caller keeps: a set's entry whose index is in the result has been added
    to it in full, and all others not at all.

    Args:
        comm: this worker's endpoint.
        s: this worker's set.
        k: >= 1, equal on all ranks; without a threshold the result has k entries, or all there
            are; with one never more.
        borders: of the regions, equal on all ranks.
        threshold: magnitude that the sum's entries have to reach; None to select exactly.
        tag: of the packets, equal on all ranks.
        work: what adding up or cutting that many entries is charged as; by default nothing.
        form: how entries travel, within the regions that they lie in; equal on all ranks.

    Returns:
        The entries, summed, not averaged, equal to the bit on all ranks; and the threshold for the
        next call, which is for this rank's own use.

    Raises:
        NonFiniteError: a value is NaN or infinite.
    """
    part = _own_region(comm, s, borders, _tag(tag, "split"), work, form)
    if threshold is None:
        # What is among the k largest of all is among those of its region.
        whole = _gather(comm, top(part, k), borders, _tag(tag, "gather"), form)
        if work is not None:
            comm.spend(work(len(whole)))
        chosen = _finite(top(whole, k))
        return chosen, _smallest(chosen)
    part = _passing(part, k, threshold, comm)
    counts = _counts(comm, len(part), _tag(tag, "counts"))
    total = sum(counts)
    if total > k:
        counts = [count * k // total for count in counts]
        part = _largest(part, counts[comm.rank])
    chosen = _finite(_gather(comm, part, borders, _tag(tag, "gather"), form, counts))
    return chosen, adjusted(threshold, total, k)


def adjusted(threshold: float, count: int, k: int) -> float:
    """A threshold for the next step, when `count` elements have passed where k should: unchanged
    within a third of k, else by the fourth root of their ratio and at most a tenth.

    >>> adjusted(1.0, 900, 1000), adjusted(1.0, 5000, 1000)
    (1.0, 1.1)
    """
    if 2 * k <= 3 * count <= 4 * k:
        return threshold
    return threshold * min(1.1, max(0.9, (count / k) ** 0.25))


def _own_region(
    comm: Comm,
    s: Sparse,
    borders: Sequence[int],
    tag: Tag,
    work: Callable[[int], Work] | None,
    form: Form,
) -> Sparse:
    """The sum of all workers' entries in this rank's region."""
    rank, size = comm.rank, comm.size
    forms = [form.within(*region) for region in pairwise(borders)]
    places = _places(s, borders)
    pieces: list[Sparse] = [_slice(s, places[r], places[r + 1]) for r in range(size)]
    leaving: Posted | None = None
    for i in range(1, size):
        # To each another one at a time, so that no two meet on a link where all are alike.
        to = (rank + i) % size
        leaving = comm.post(to, forms[to].packet(comm, pieces[to]), tag, after=leaving)
    own = [pieces[rank]] * size
    for i in range(1, size):
        source = (rank - i) % size
        own[source] = forms[rank].entries(comm, take(comm, source, tag), s.numel)
    if work is not None and size > 1:
        comm.spend(work(sum(map(len, own))))
    return sum_sparse(own)


def _places(s: Sparse, borders: Sequence[int]) -> list[int]:
    """Where in the set each region begins, and its end; of a meta set evenly."""
    if s.is_meta:
        return even_regions(len(s), len(borders) - 1)
    return np.searchsorted(s.index.numpy(), np.asarray(borders)).tolist()


def _slice(s: Sparse, start: int, stop: int) -> Sparse:
    return Sparse(s.index[start:stop], s.value[start:stop], s.numel)


def _passing(part: Sparse, k: int, threshold: float, comm: Comm) -> Sparse:
    if part.is_meta:
        return _slice(part, 0, min(len(part), dealt(k, comm.size)[comm.rank]))
    return part.take(part.value.abs() >= threshold)


def _largest(part: Sparse, count: int) -> Sparse:
    return top(part, count) if count else _slice(part, 0, 0)


def _smallest(s: Sparse) -> float:
    return 0.0 if s.is_meta or not len(s) else float(s.value.abs().min())


def _counts(comm: Comm, count: int, tag: Tag) -> list[int]:
    return [int(x) for x in all_gather(comm, torch.tensor([count]), tag=tag)]


def _gather(
    comm: Comm,
    part: Sparse,
    borders: Sequence[int],
    tag: Tag,
    form: Form,
    counts: Sequence[int] | None = None,
) -> Sparse:
    """All parts one after the other, which are in the order of their indices.

    Args:
        comm: this worker's endpoint.
        part: of this rank's region.
        borders: of the regions.
        tag: equal on all ranks.
        form: how entries travel.
        counts: sizes of all parts, by rank, where they are known: then they are balanced before
            the gather if they are uneven.
    """
    forms = [form.within(*region) for region in pairwise(borders)]
    if counts is not None and max(counts) * comm.size > BALANCE_FROM * sum(counts):
        have = list(accumulate(counts, initial=0))
        want = list(accumulate(dealt(have[-1], comm.size), initial=0))
        part = _balanced(comm, part, have, want, tag, forms)
        forms = [form.within(*_covered(borders, have, *share)) for share in pairwise(want)]
    sets = gather_sets(comm, part, tag, forms)
    return Sparse(
        torch.cat([s.index for s in sets]), torch.cat([s.value for s in sets]), part.numel
    )


def _covered(borders: Sequence[int], have: Sequence[int], start: int, stop: int) -> tuple[int, int]:
    """The part of the vector that the start-th to the last before the stop-th of all survivors lie
    in: the regions of those who had them."""
    owners = [r for r in range(len(have) - 1) if max(have[r], start) < min(have[r + 1], stop)]
    return (borders[owners[0]], borders[owners[-1] + 1]) if owners else (0, borders[-1])


def _balanced(
    comm: Comm,
    part: Sparse,
    have: Sequence[int],
    want: Sequence[int],
    tag: Tag,
    forms: Sequence[Form],
) -> Sparse:
    """This rank's even share of all parts one after the other: whoever has too many gives some of
    them to the ranks whose share they lie in.

    Args:
        comm: this worker's endpoint.
        part: of this rank's region.
        have: survivors before each rank's, and all of them.
        want: the same when they are balanced.
        tag: equal on all ranks.
        forms: of each region's entries.
    """
    rank, size = comm.rank, comm.size
    leaving: Posted | None = None
    for i in range(1, size):
        to = (rank + i) % size
        start, stop = max(have[rank], want[to]), min(have[rank + 1], want[to + 1])
        if start < stop:
            piece = _slice(part, start - have[rank], stop - have[rank])
            packet = forms[rank].packet(comm, piece)
            leaving = comm.post(to, packet, _tag(tag, "balance"), after=leaving)
    pieces = []
    for source in range(size):
        start, stop = max(have[source], want[rank]), min(have[source + 1], want[rank + 1])
        if start >= stop:
            continue
        if source == rank:
            pieces.append(_slice(part, start - have[rank], stop - have[rank]))
        else:
            packet = take(comm, source, _tag(tag, "balance"))
            pieces.append(forms[source].entries(comm, packet, part.numel))
    if not pieces:
        return _slice(part, 0, 0)
    index, value = torch.cat([p.index for p in pieces]), torch.cat([p.value for p in pieces])
    return Sparse(index, value, part.numel)


def _tag(tag: Tag, what: str) -> Tag:
    return (*tag, what) if isinstance(tag, tuple) else (tag, what)


def _finite(chosen: Sparse) -> Sparse:
    if not chosen.is_meta and not bool(torch.isfinite(chosen.value).all()):
        raise NonFiniteError(
            "a sum of sparse values is NaN or infinite: the values sent were too large; lower the "
            "learning rate or clip the gradient"
        )
    return chosen
