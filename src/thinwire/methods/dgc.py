"""Deep Gradient Compression: top-k that keeps momentum right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import torch

from thinwire.collectives import Form, Sparse, all_gather_sparse
from thinwire.collectives.sparse import index_dtype
from thinwire.compress import accumulate_and_select, add_sets, num_kept, prepare
from thinwire.compress.coded import Packing, check_packing, form_for, prepare_coding
from thinwire.compress.cost import momentum_work, scatter_work, selection_work
from thinwire.compress.sampled import select_sampled
from thinwire.compress.values import finite_flat
from thinwire.compress.warmup import check_warmup, num_warmed, warmed
from thinwire.errors import InputError
from thinwire.flat import Layer
from thinwire.methods.base import Method, Paper, Traits
from thinwire.methods.fit import check_optimizer
from thinwire.seeds import seed_for
from thinwire.worker import Worker

__all__ = ["DGC"]


@dataclass(frozen=True, kw_only=True)
class DGC(Method):
    """Top-k sparsification whose error memory accumulates velocities instead of gradients.

    Traffic per worker and step: k entries to P−1 others, of 8 bytes, or of about 5.4 at density
    0.001 where indices are coded, and small layers whole by all-reduce. No staleness of the
    parameters; an unsent entry waits, with its momentum. Two more vectors: velocity and error
    memory; the first takes the place of the optimizer's momentum.

    **Momentum is the method's own**, applied on each worker before selection: the optimizer must be
    SGD without (`train.momentum = 0`), and another setting is refused.

    Update rule: `u_r ← μ·u_r + w_r·g_r`; `v_r ← v_r + u_r`; `s_r` = the k entries of v_r largest in
    magnitude; `v_r = u_r = 0` there (momentum factor masking); `x ← x − lr · Σ_r s_r`. Small layers
    send all of u_r, which is plain momentum. At density 1 the masking leaves no momentum at all.

    Departures from the paper: the warm-up is counted in steps, for an epoch is unknown in a loop of
    one's own; the selection is exact by default, being as fast on a CPU; weight decay is the
    optimizer's, on the sum.

    Args:
        density: k / m, in (0, 1]; k = max(1, floor(density·m)) of each layer, or of the model.
        momentum: μ, 0 <= μ < 1.
        warmup: steps over which the density falls to what it is, in four stages, 25, 6.3, 1.6 and
            0.4 % on the way to 0.1 %; 0 for none. The paper has four epochs.
        clip: norm to which w_r·g_r is cut, times √w_r: for equal workers the limit of the sum over
            √P, as for gradients that differ by chance. None for no limit.
        scope: "layer": each layer sends its own k largest; "model": the largest of all.
        dense_below: layers of fewer elements are sent whole; 0 for none.
        select: "exact", or "sampled": by the threshold of a sample, k ± 50 %.
        packing: "coded": indices travel near their entropy; "plain": in 4 bytes; "auto": coded in
            sets of 4,096 entries or more, below which coding takes longer than it saves. Where the
            code is no smaller, indices go as they are. The result is the same.

    Example:
        >>> DGC(density=0.001, warmup=400).momentum
        0.9
    """

    density: float = 0.01
    momentum: float = 0.9
    warmup: int = 0
    clip: float | None = None
    scope: Literal["layer", "model"] = "layer"
    dense_below: int = 256
    select: Literal["exact", "sampled"] = "exact"
    packing: Packing = "auto"

    paper: ClassVar[Paper | None] = Paper(
        authors="Lin, Han, Mao, Wang and Dally",
        title="Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed "
        "Training",
        venue="ICLR",
        year=2018,
        url="https://arxiv.org/abs/1712.01887",
    )
    traits: ClassVar[Traits] = Traits(
        traffic="8·k·(P−1), about 5.4·k·(P−1) coded, + 8·(P−1)/P · what is sent whole",
        staleness="0; unsent entries wait",
        synchronous=True,
        agree=True,
        momentum="method",
    )

    def __post_init__(self) -> None:
        check_warmup(self.density, self.warmup)
        check_packing(self.packing)
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum = {self.momentum}: 0 <= momentum < 1 is needed")
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise InputError(f"clip = {self.clip}: a finite norm above 0 is needed, or none")
        if self.dense_below < 0:
            raise InputError(f"dense_below = {self.dense_below}: at least 0 is needed")
        for key, valid in (("scope", ("layer", "model")), ("select", ("exact", "sampled"))):
            if getattr(self, key) not in valid:
                raise InputError(f"{key} = {getattr(self, key)!r}; valid: {', '.join(valid)}")

    def worker(self, w: Worker) -> None:
        """See `Method`."""
        check_optimizer(self, w.plan.optimizer.name, w.plan.optimizer.momentum)
        places = _Places.of(w.layers, self.dense_below)
        numel = places.num_sparse
        velocity = w.state.velocity = torch.zeros_like(w.params)
        memory = w.state.memory = torch.zeros_like(w.params[:numel])
        if numel:
            prepare(memory)
            prepare_coding(self.packing, num_warmed(self.density, 0, self.warmup, numel), memory)
        for step, batch in enumerate(w.batches()):
            gradient = w.gradient(batch)
            with w.phase("select"):
                velocity.mul_(self.momentum)
                places.add(velocity, gradient, self._scale(gradient, batch.weight))
                w.comm.spend(momentum_work(velocity.numel()))
                own = None
                if numel:
                    own = self._select(w, step, velocity[:numel], memory, places.sizes)
            with w.phase("merge"):
                k = num_warmed(self.density, step, self.warmup, numel) if numel else 0
                form = form_for(self.packing, k)
                direction = _sum(w, own, velocity, gradient, places, form)
            w.apply(direction)

    def _scale(self, grad: torch.Tensor, weight: float) -> float:
        """What the gradient is multiplied with: its weight, less where it is clipped."""
        if self.clip is None or grad.is_meta:
            return weight
        norm = weight * float(torch.linalg.vector_norm(grad))
        return weight * min(1.0, self.clip * math.sqrt(weight) / norm) if norm else weight

    def _select(
        self,
        w: Worker,
        step: int,
        velocity: torch.Tensor,
        memory: torch.Tensor,
        sizes: Sequence[int],
    ) -> Sparse:
        """Add the velocity to the memory and take out of both what is sent."""
        density, numel = warmed(self.density, step, self.warmup), memory.numel()
        start, index, value = 0, [], []
        for i, size in enumerate(sizes if self.scope == "layer" else (numel,)):
            u, v = velocity[start : start + size], memory[start : start + size]
            k = num_kept(density, size)
            if self.select == "exact" or v.is_meta:
                kept = accumulate_and_select(v, u, 1.0, k)
            else:
                seed = seed_for(w.plan.seed, "dgc", w.rank, step, i)
                found = select_sampled(finite_flat(v.add_(u)), k, 0.01, 0.5, seed).index
                kept = Sparse(found, v[found.to(v.device)].cpu(), size)
                kept.zero_in(v)
            kept.zero_in(u)
            index.append((kept.index.long() + start).to(index_dtype(numel)))
            value.append(kept.value)
            start += size
        w.comm.spend(selection_work(numel))
        return Sparse(torch.cat(index), torch.cat(value), numel)


def _sum(
    w: Worker,
    own: Sparse | None,
    velocity: torch.Tensor,
    gradient: torch.Tensor,
    places: _Places,
    form: Form,
) -> torch.Tensor:
    """What all have selected, and all of what is sent whole, in the place of the gradient."""
    if own is not None:
        sets = all_gather_sparse(w.comm, own, meanwhile=gradient.zero_, form=form)
        w.comm.spend(scatter_work(sum(map(len, sets))))
        add_sets([places.in_model(s) for s in sets], gradient)
    whole = velocity[places.num_sparse :]
    if whole.numel():
        places.put_whole(w.all_reduce(whole), gradient)
    return gradient


@dataclass(frozen=True)
class _Places:
    """The layers with those that are sent whole at the end.

    Args:
        order: the layers that are selected from, then the others.
        sizes: of the layers that are selected from.
        moved: whether the order is another than the model's.
    """

    order: Sequence[Layer]
    sizes: Sequence[int]
    moved: bool = field(default=False)

    @staticmethod
    def of(layers: Sequence[Layer], dense_below: int) -> _Places:
        large = [layer for layer in layers if layer.numel >= dense_below]
        small = [layer for layer in layers if layer.numel < dense_below]
        order = [*large, *small]
        return _Places(order, [layer.numel for layer in large], order != list(layers))

    @property
    def num_sparse(self) -> int:
        """Elements that are selected from."""
        return sum(self.sizes)

    def add(self, packed: torch.Tensor, flat: torch.Tensor, scale: float) -> None:
        """Add a vector in the model's order to one in this order."""
        if not self.moved:
            packed.add_(flat, alpha=scale)
            return
        start = 0
        for layer in self.order:
            packed[start : start + layer.numel].add_(flat[layer.start : layer.stop], alpha=scale)
            start += layer.numel

    def in_model(self, s: Sparse) -> Sparse:
        """Entries of the layers that are selected from, as entries of the model."""
        numel = sum(layer.numel for layer in self.order)
        if not self.moved or s.is_meta:
            return Sparse(s.index, s.value, numel)
        starts = np.cumsum([0, *self.sizes[:-1]])
        moves = np.array([layer.start for layer in self.order[: len(starts)]]) - starts
        index = s.index.numpy()
        index = index + moves[np.searchsorted(starts, index, side="right") - 1]
        return Sparse(torch.from_numpy(index).to(index_dtype(numel)), s.value, numel)

    def put_whole(self, whole: torch.Tensor, flat: torch.Tensor) -> None:
        """Write the layers that are sent whole to their places in the model."""
        start = 0
        for layer in self.order[len(self.sizes) :]:
            flat[layer.start : layer.stop] = whole[start : start + layer.numel]
            start += layer.numel
