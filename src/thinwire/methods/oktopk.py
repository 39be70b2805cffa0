"""Ok-Topk: a sparse all-reduce whose traffic does not grow with the number of workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from thinwire.collectives import Sparse, top
from thinwire.collectives.oktopk import (
    adjusted,
    agree_regions,
    even_regions,
    oktopk_all_reduce,
)
from thinwire.compress import accumulate_above, accumulate_and_select, add_sets, prepare
from thinwire.compress.coded import Packing, check_packing, form_for, prepare_coding
from thinwire.compress.cost import merge_work, scan_work, scatter_work, selection_work
from thinwire.compress.warmup import check_warmup, num_warmed
from thinwire.errors import InputError
from thinwire.methods.base import Method, Paper, Traits
from thinwire.worker import Worker

__all__ = ["OkTopk"]


@dataclass(frozen=True, kw_only=True)
class OkTopk(Method):
    """Sparse S-SGD in which each worker adds up one region of the gradient for all.

    Traffic per worker and step: below 6·k·(P−1)/P words of 4 bytes however many workers there are,
    4·k·(P−1)/P where regions split the entries evenly; every `estimate_every` steps once up to
    2·k·P. Coded at density 0.001, two words are about 5.4 bytes instead of 8. No
    staleness of the parameters; one more vector of error memory. Nothing is lost: what is used is
    used in full, everything else stays.

    Update rule: `a_r = e_r + w_r·g_r`; `s_r` = the entries of a_r above the local threshold, at
    most k; `S` = those of `Σ_r s_r` above the global one, at most k; `x ← x − lr · S`; `e_r = a_r`,
    zero where s_r and S both have an entry. Both thresholds are those of an exact selection, made
    anew every `estimate_every` steps and adjusted in between by the number that passes.

    Departures from the paper: never more than k entries are sent or used, so that the bound holds
    at each step; thresholds move by the distance from k, not by 1.2 and 0.8 %; borders are taken
    from the first step on.

    Args:
        density: k / m, in (0, 1]; k = max(1, floor(density·m)).
        warmup: steps over which the density falls to what it is, in four stages, 25, 6.3, 1.6 and
            0.4 % on the way to 0.1 %; 0 for none.
        estimate_every: steps between two exact selections (τ′), at least 1.
        balance_every: steps between two agreements on the regions' borders (τ), at least 1.
        packing: "coded": indices travel near their entropy; "plain": in 4 bytes; "auto": coded in
            messages of 4,096 entries or more, k/P of them being in one, below which coding takes
            longer than it saves. Where the code is no smaller, indices go as they are. The result
            is the same.

    Example:
        >>> OkTopk(density=0.001).estimate_every
        32
    """

    density: float = 0.01
    warmup: int = 0
    estimate_every: int = 32
    balance_every: int = 64
    packing: Packing = "auto"

    paper: ClassVar[Paper | None] = Paper(
        authors="Li and Hoefler",
        title="Near-Optimal Sparse Allreduce for Distributed Deep Learning",
        venue="PPoPP",
        year=2022,
        url="https://arxiv.org/abs/2201.07598",
    )
    traits: ClassVar[Traits] = Traits(
        traffic="16·k·(P−1)/P, at most 24·k·(P−1)/P; about 11 and 16 coded",
        staleness="0; unsent entries wait",
        synchronous=True,
        agree=True,
        packets_only=True,
    )

    def __post_init__(self) -> None:
        check_warmup(self.density, self.warmup)
        check_packing(self.packing)
        for key in ("estimate_every", "balance_every"):
            if getattr(self, key) < 1:
                raise InputError(f"{key} = {getattr(self, key)}: at least 1 is needed")

    def worker(self, w: Worker) -> None:
        """See `Method`."""
        numel = w.params.numel()
        memory = w.state.memory = torch.zeros_like(w.params)
        prepare(memory)
        first = num_warmed(self.density, 0, self.warmup, numel)
        prepare_coding(self.packing, first // w.size, memory)
        borders = even_regions(numel, w.size)
        before, local, overall = 0, 0.0, 0.0
        for step, batch in enumerate(w.batches()):
            k = num_warmed(self.density, step, self.warmup, numel)
            exact = k != before or step % self.estimate_every == 0
            before = k
            grad = w.gradient(batch)
            with w.phase("select"):
                if exact or memory.is_meta:
                    own = accumulate_and_select(memory, grad, batch.weight, k)
                    own.add_into(memory)  # it goes when it is known to be used
                    local = _smallest(own)
                else:
                    found = accumulate_above(memory, grad, batch.weight, local, 2 * k)
                    own, local = top(found, k), adjusted(local, len(found), k)
                w.comm.spend(selection_work(numel) if exact else scan_work(numel))
            with w.phase("merge"):
                if step % self.balance_every == 0:
                    borders = agree_regions(w.comm, own)
                threshold, form = None if exact else overall, form_for(self.packing, k // w.size)
                chosen, overall = oktopk_all_reduce(
                    w.comm, own, k, borders, threshold, work=merge_work, form=form
                )
                if k == numel:
                    local = overall = 0.0  # everything passes: nothing is to wait
                _both(own, chosen).zero_in(memory)
                w.comm.spend(scatter_work(len(chosen)))
                direction = add_sets([chosen], grad.zero_())  # the memory has what was in it
            w.apply(direction)


def _smallest(s: Sparse) -> float:
    return 0.0 if s.is_meta else float(s.value.abs().min())


def _both(own: Sparse, chosen: Sparse) -> Sparse:
    """The own entries whose indices are among the chosen."""
    if own.is_meta:
        return own
    hit = np.isin(own.index.numpy(), chosen.index.numpy(), assume_unique=True)
    return own.take(torch.from_numpy(hit))
