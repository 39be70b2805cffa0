"""gTop-k: only about k entries of the summed gradient travel, up and down a binomial tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from thinwire.collectives import (
    Sparse,
    gtopk_all_reduce,
    gtopk_all_reduce_conserving,
    traffic,
)
from thinwire.compress import accumulate_and_select, add_sets, prepare
from thinwire.compress.coded import Packing, check_packing, form_for, is_coded, prepare_coding
from thinwire.compress.cost import merge_work, scatter_work, selection_work
from thinwire.compress.warmup import check_warmup, num_warmed
from thinwire.errors import InputError
from thinwire.methods.base import Method, Paper, Traits
from thinwire.wire.base import Comm
from thinwire.worker import Worker

__all__ = ["GTopK"]


@dataclass(frozen=True, kw_only=True)
class GTopK(Method):
    """Sparse S-SGD whose traffic grows with log P instead of P.

    Local top-k sets are merged pairwise in a tree, cut back to k entries at every merge, and the
    last set is broadcast. Traffic on the critical path: 2·log2 P messages of k entries of 8 bytes,
    or of about 5.4 at density 0.001 where indices are coded. No staleness of the parameters; one
    more vector of error memory.

    Update rule: `a_r = e_r + w_r·g_r`; s_r its k largest entries; `(I, V)` the tree's result;
    `x ← x − lr · V` on I; own entries that are not in I go back to e_r.

    The paper's rule loses the share of a worker that was cut inside the tree at an index that
    another branch brings to the end. With `losses="kept"` the cutting worker keeps what it cuts,
    and nobody puts anything back: then nothing is ever lost (ours).

    Departure from the paper: ties go to the smaller index, and P need not be a power of two.

    Args:
        density: k / m, in (0, 1]; k = max(1, floor(density·m)).
        warmup: steps over which the density falls to what it is, in four stages, 25, 6.3, 1.6 and
            0.4 % on the way to 0.1 %; 0 for none.
        losses: "paper" or "kept".
        packing: "coded": indices travel near their entropy; "plain": in 4 bytes; "auto": coded from
            4,096 entries on, below which coding takes longer than it saves. The result is the same.

    Example:
        >>> GTopK(density=0.001).losses
        'paper'
    """

    density: float = 0.01
    warmup: int = 0
    losses: Literal["paper", "kept"] = "paper"
    packing: Packing = "auto"

    paper: ClassVar[Paper | None] = Paper(
        authors="Shi, Wang, Zhao, Tang, Wang, Huang and Chu",
        title="A Distributed Synchronous SGD Algorithm with Global Top-k Sparsification "
        "for Low Bandwidth Networks",
        venue="ICDCS",
        year=2019,
        url="https://arxiv.org/abs/1901.04359",
    )
    traits: ClassVar[Traits] = Traits(
        traffic="16·k·log2 P on the critical path, about 11·k·log2 P coded",
        staleness="0; unsent entries wait",
        synchronous=True,
        agree=True,
        packets_only=True,
        resumable=True,
    )

    def __post_init__(self) -> None:
        check_warmup(self.density, self.warmup)
        if self.losses not in ("paper", "kept"):
            raise InputError(f"losses = {self.losses!r}; valid: paper, kept")
        check_packing(self.packing)

    def sent_bytes(self, numel: int, size: int, steps: int) -> Sequence[int] | None:
        """See `Method`: not known beforehand where indices are coded."""
        kept = [num_warmed(self.density, t, self.warmup, numel) for t in range(steps)]
        if any(is_coded(self.packing, k) for k in kept):
            return None
        return traffic.added(traffic.gtopk_tree(size, k) for k in kept)

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
                chosen = self.exchange(w.comm, own, k, memory, gradient.zero_)
                w.comm.spend(scatter_work(len(chosen)))
                direction = add_sets([chosen], gradient)
            w.apply(direction)

    def exchange(
        self,
        comm: Comm,
        own: Sparse,
        k: int,
        memory: torch.Tensor,
        meanwhile: Callable[[], object] | None = None,
    ) -> Sparse:
        """The tree's result, equal on all ranks; what of the own entries is not in it goes back to
        the memory. Blocks.

        Args:
            comm: this worker's endpoint.
            own: its own k entries.
            k: equal on all ranks.
            memory: changed in place.
            meanwhile: called once while packets are on their way.
        """
        form = form_for(self.packing, k)
        settings = {"work": merge_work, "form": form, "meanwhile": meanwhile}
        if self.losses == "kept":
            chosen, cut = gtopk_all_reduce_conserving(comm, own, k, **settings)
            cut.add_into(memory)
            return chosen
        chosen, hit = gtopk_all_reduce(comm, own, k, **settings)
        own.take(~hit).add_into(memory)
        return chosen
