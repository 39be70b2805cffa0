"""Ok-Topk's promise: a worker sends less than 6k words, however many workers there are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch

from thinwire.collectives import Sparse, all_gather_sparse, gtopk_all_reduce, sum_sparse
from thinwire.collectives.oktopk import agree_regions, oktopk_all_reduce
from thinwire.collectives.sparse import index_dtype
from thinwire.methods import OkTopk, Paper
from thinwire.reproduce.base import result_of
from thinwire.reproduce.bench import Network, sparse_of_size
from thinwire.reproduce.line import Line, Result
from thinwire.seeds import generator_for
from thinwire.wire.virtual import World

__all__ = ["OkTopkVolume"]

_WORKERS = (2, 4, 8, 16, 32)
_NUMEL, _KEPT = 320_000, 3_200
_WORD = 4
_BOUND = 6.0
_NETWORK = Network(latency=1e-4, rate=125e6)


@dataclass(frozen=True)
class OkTopkVolume:
    """Bytes of simulated steps with known thresholds, in words of 4 bytes for each kept entry.

    Example:
        >>> OkTopkVolume().name
        'oktopk'
    """

    name: ClassVar[str] = "oktopk"
    title: ClassVar[str] = "Ok-Topk: less than 6k words from each worker"
    paper: ClassVar[Paper] = OkTopk.paper  # pyright: ignore[reportAssignmentType] - it has one

    def run(self) -> Result:
        """See `Reproduction`."""
        lines = (*_volumes("even", 1.0), *_volumes("skewed", 4.0), *_others())
        return result_of(
            self,
            lines,
            (
                "The bound is that of the authors' README. It holds for the steps that reuse the "
                "threshold, 31 of 32 by default; a step that selects exactly gathers all that the "
                "owners hold.",
                f"Sets of {_KEPT:,} of {_NUMEL:,} elements, drawn at random: evenly, or the more "
                "often the smaller their index, as where one layer has the large gradients. "
                "Counts and the borders of regions are included, packet headers are not.",
            ),
        )


def _volumes(how: str, skew: float) -> Iterator[Line]:
    for workers in _WORKERS:
        yield Line(
            section="Words sent by the busiest worker, over k",
            name=f"{how} sets, {workers} workers",
            published=_BOUND,
            ours=_busiest(workers, skew),
            kind="claim",
            at_most=_BOUND,
            series=how,
        )


def _busiest(workers: int, skew: float) -> float:
    sets = [_random_set(rank, skew) for rank in range(workers)]
    largest = sum_sparse(sets).value.abs().sort(descending=True).values
    world = _world(workers)

    def program(comm):
        borders = agree_regions(comm, sets[comm.rank])
        oktopk_all_reduce(comm, sets[comm.rank], _KEPT, borders, float(largest[_KEPT - 1]))

    world.run(program)
    return _most_words(world)


def _others() -> Iterator[Line]:
    """What the two other sparse exchanges send."""
    section = "The other exchanges, words sent by the busiest worker, over k"
    for workers in _WORKERS:
        meta = sparse_of_size(_KEPT, _NUMEL)
        gather, tree = _world(workers), _world(workers)
        gather.run(lambda comm, meta=meta: all_gather_sparse(comm, meta))
        tree.run(lambda comm, meta=meta: gtopk_all_reduce(comm, meta, _KEPT))
        yield Line(section=section, name=f"top-k, {workers} workers",
                   published=2.0 * (workers - 1), ours=_most_words(gather), kind="claim",
                   tolerance=1e-9, series="top-k")  # fmt: skip
        # Half of the published figure, which is that of the longest path, up and down.
        yield Line(section=section, name=f"gTop-k, {workers} workers",
                   published=4.0 * (workers - 1).bit_length(), ours=_most_words(tree),
                   kind="beside", series="gTop-k")  # fmt: skip


def _world(workers: int) -> World:
    return World(_NETWORK.cluster(workers), link_model="queue", charge_headers=False)


def _most_words(world: World) -> float:
    return max(e.meter.sent for e in world.endpoints) / (_WORD * _KEPT)


def _random_set(rank: int, skew: float) -> Sparse:
    rng = generator_for(0, "reproduce oktopk", rank)
    weight = torch.rand(_NUMEL, generator=rng, dtype=torch.float64)
    place = torch.arange(1, _NUMEL + 1, dtype=torch.float64) / _NUMEL
    # The k smallest of u·place^(skew-1): small indices are chosen the more often the more skew.
    index = (weight * place ** (skew - 1.0)).topk(_KEPT, largest=False).indices.sort().values
    value = torch.randn(_KEPT, generator=rng)
    return Sparse(index.to(index_dtype(_NUMEL)), value, _NUMEL)
