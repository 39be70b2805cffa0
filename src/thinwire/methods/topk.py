"""Top-k sparsification with error feedback, exchanged by an all-gather."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from thinwire.collectives import all_gather_sparse, traffic
from thinwire.compress import accumulate_and_select, add_sets, prepare
from thinwire.compress.coded import Packing, check_packing, form_for, is_coded, prepare_coding
from thinwire.compress.cost import scatter_work, selection_work
from thinwire.compress.warmup import check_warmup, num_warmed
from thinwire.methods.base import Method, Paper, Traits
from thinwire.worker import Worker

__all__ = ["TopK"]


@dataclass(frozen=True, kw_only=True)
class TopK(Method):
    """Each worker sends its k largest accumulated gradient entries to all others.

    Traffic per worker and step: k entries to P−1 others, of 8 bytes, or of about 5.4 at density
    0.001 where indices are coded. No staleness of the parameters; an entry that isn't sent waits in
    the error memory (one more vector). Nothing is lost: what was sent is used in full, what wasn't
    stays.

    Update rule: `a_r = e_r + w_r·g_r`; `s_r` = the k entries of a_r largest in magnitude;
    `e_r = a_r − s_r`; `x ← x − lr · Σ_r s_r`.

    Args:
        density: k / m, in (0, 1]; k = max(1, floor(density·m)).
        warmup: steps over which the density falls to what it is, in four stages, 25, 6.3, 1.6 and
            0.4 % on the way to 0.1 %; 0 for none.
        packing: "coded": indices travel near their entropy; "plain": in 4 bytes; "auto": coded in
            sets of 4,096 entries or more, below which coding takes longer than it saves. Where the
            code is no smaller, indices go as they are. The result is the same.

    Example:
        >>> TopK(density=0.001).density
        0.001
    """

    density: float = 0.01
    warmup: int = 0
    packing: Packing = "auto"

    paper: ClassVar[Paper | None] = Paper(
        authors="Aji and Heafield",
        title="Sparse Communication for Distributed Gradient Descent",
        venue="EMNLP",
        year=2017,
        url="https://arxiv.org/abs/1704.05021",
    )
    traits: ClassVar[Traits] = Traits(
        traffic="8·k·(P−1), about 5.4·k·(P−1) coded",
        staleness="0; unsent entries wait",
        synchronous=True,
        agree=True,
        packets_only=True,
        resumable=True,
    )

    def __post_init__(self) -> None:
        check_warmup(self.density, self.warmup)
        check_packing(self.packing)

    def sent_bytes(self, numel: int, size: int, steps: int) -> Sequence[int] | None:
        """See `Method`: not known beforehand where indices are coded."""
        kept = [num_warmed(self.density, t, self.warmup, numel) for t in range(steps)]
        if size > 1 and any(is_coded(self.packing, k) for k in kept):
            return None
        return traffic.added(traffic.all_gather_sparse(size, k) for k in kept)

    def worker(self, w: Worker) -> None:
        """See `Method`."""
        numel = w.params.numel()
        memory = w.remember("memory", torch.zeros_like(w.params))
        prepare(memory)
        prepare_coding(self.packing, num_warmed(self.density, 0, self.warmup, numel), memory)
        for batch in w.batches():
            k = num_warmed(self.density, w.steps, self.warmup, numel)
            gradient = w.gradient(batch)
            with w.phase("select"):
                own = accumulate_and_select(memory, gradient, batch.weight, k)
                w.comm.spend(selection_work(numel))
            with w.phase("merge"):
                # The gradient has gone into the memory; its place takes the direction.
                form = form_for(self.packing, k)
                sets = all_gather_sparse(w.comm, own, meanwhile=gradient.zero_, form=form)
                w.comm.spend(scatter_work(sum(map(len, sets))))
                direction = add_sets(sets, gradient)
            w.apply(direction)
