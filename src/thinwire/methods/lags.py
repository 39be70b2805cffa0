"""LAGS: sparsification with error feedback by layer, sent while backward goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import ClassVar

import torch

from thinwire import collectives
from thinwire.collectives import Sparse, all_gather_sparse
from thinwire.collectives.sparse import index_dtype
from thinwire.compress import accumulate_and_select, add_sets, num_kept, prepare
from thinwire.compress.coded import Packing, check_packing, form_for, prepare_coding
from thinwire.compress.cost import scatter_work, selection_work
from thinwire.compress.warmup import check_warmup, warmed
from thinwire.errors import InputError
from thinwire.flat import Layer
from thinwire.methods.base import Method, Paper, Traits
from thinwire.methods.sending import (
    Program,
    Sending,
    agree,
    all_reduce_layers,
    assumed_order,
    seen_order,
)
from thinwire.schedule import Groups, kept_of, layer_ratios
from thinwire.schedule.costs import fit_cost
from thinwire.wire.base import Comm, Work
from thinwire.worker import Batch, Worker

__all__ = ["LAGS"]

_LOOKS = 3
"""Steps that are measured before the densities are chosen."""

_WHOLE = 8
"""Elements of tensors sent whole that count as one entry when messages are filled."""

_ENTRY = 8
"""Bytes of an entry: the unit of a fit, whatever indices occupy on their way."""


@dataclass(frozen=True, kw_only=True)
class LAGS(Method):
    """Each tensor's largest accumulated gradient entries leave while backward goes on.

    Traffic per worker and step: k entries to P−1 others, the k of all tensors together, of 8 bytes,
    or of about 5.4 at density 0.001 where indices are coded, and small tensors whole by all-reduce,
    all of it beside the backward pass. No staleness of the
    parameters; an entry that isn't sent waits in the error memory. Three more vectors: the memory,
    the one that it becomes when all ranks have come through the step, and the sum. Nothing is lost:
    what was sent is used in full, what wasn't stays.

    Update rule, tensor by tensor in backward order: `a_r = e_r + w_r·g_r`; `s_r` = the k entries of
    a_r largest in magnitude; `e_r = a_r − s_r`; the exchange of `s_r` begins. After backward
    `x ← x − lr · Σ_r s_r`.

    With `adaptive`, k is the paper's: as many entries as can be chosen and gathered while the next
    gradient is being computed, and never fewer than `density` says. Three steps are measured for
    that, not overlapped, with more entries from one to the next, and rank 0's figures decide for
    all. A real run then follows its own clock and doesn't repeat bit for bit; the authors' own
    figures are of a fixed density.

    Departures from the paper: the learning rate is applied after the sum, as in the authors' code;
    a tensor that would send 1/P of its entries or more is sent whole, which is fewer bytes;
    neighbours share messages of `merge` entries, each tensor still chosen from by itself.

    Args:
        density: k / m of each tensor, in (0, 1]; with `adaptive` the least: 0.001 in the paper, and
            0.004 for an LSTM.
        warmup: steps over which the density falls to what it is, in four stages, 25, 6.3, 1.6 and
            0.4 % on the way to 0.1 %; 0 for none.
        adaptive: choose k by the ratio of communication to computation.
        dense_below: tensors of fewer elements are sent whole; 0 for none.
        merge: entries from which a message is closed, or eight times as many elements of tensors
            that are sent whole; 0: a message for each tensor. Fewer and larger messages cost less
            time of the processor, and the last one begins later.
        packing: "coded": indices travel near their entropy; "plain": in 4 bytes; "auto": coded in
            messages of 4,096 entries or more, below which coding takes longer than it saves: of few
            tensors at density 0.001. Where the code is no smaller, indices go as they are. The
            result is the same.
        delta_every: log δ of each tensor every so many steps, 0 for never: the squared error of the
            sum of selections over that of a random selection from the sum, which the convergence
            proof assumes to be at most 1. It takes an all-reduce of the whole memory.

    Example:
        >>> LAGS(density=0.001).adaptive
        False
    """

    density: float = 0.01
    warmup: int = 0
    adaptive: bool = False
    dense_below: int = 256
    merge: int = 1024
    packing: Packing = "auto"
    delta_every: int = 0

    paper: ClassVar[Paper | None] = Paper(
        authors="Shi, Tang, Wang, Zhao, Li and Chu",
        title="Layer-wise Adaptive Gradient Sparsification for Distributed Deep Learning with "
        "Convergence Guarantees",
        venue="ECAI",
        year=2020,
        url="https://arxiv.org/abs/1911.08727",
    )
    traits: ClassVar[Traits] = Traits(
        traffic="8·k·(P−1), about 5.4·k·(P−1) coded, + 8·(P−1)/P · what is sent whole, during "
        "backward",
        staleness="0; unsent entries wait",
        kind="overlapped",
        synchronous=True,
        agree=True,
        packets_only=True,
        resumable=True,
    )

    def __post_init__(self) -> None:
        check_warmup(self.density, self.warmup)
        check_packing(self.packing)
        for key in ("dense_below", "merge", "delta_every"):
            if getattr(self, key) < 0:
                raise InputError(f"{key} = {getattr(self, key)}: at least 0 is needed")

    def worker(self, w: Worker) -> None:
        """See `Method`."""
        found = w.remember("found", torch.full((2, len(w.layers)), -1, dtype=torch.int64))
        step = _Step(self, w)
        if int(found[0, 0]) < 0:
            self._learn(w, step, found)
        else:
            step.arrange(*found.tolist())
        for batch in w.batches():
            step.train(batch)

    def _learn(self, w: Worker, step: _Step, found: torch.Tensor) -> None:
        """Train on as many batches as it takes to know the order, and how much to send."""
        order = assumed_order(w)
        step.arrange(order, self._least(w, order))
        if w.size == 1 or not (self.merge or self.adaptive):
            return
        order = seen_order(w, step.train, torch.empty_like(found[0]))
        if order is None:
            return
        kept = self._least(w, order)
        if self.adaptive:
            looks = []
            for batch in w.batches(min(_LOOKS, w.plan.steps - w.steps)):
                density = self.density ** ((_LOOKS - len(looks)) / _LOOKS)
                looks.append(step.look(batch, order, density))
            if not looks:
                return
            kept = self._hidden(w, order, looks)
        step.arrange(*agree(w, [order, kept], found))

    def _least(self, w: Worker, order: Sequence[int]) -> list[int]:
        return [num_kept(self.density, w.layers[tensor].numel) for tensor in order]

    def _hidden(self, w: Worker, order: Sequence[int], looks: Sequence[_Look]) -> list[int]:
        """As many entries of each tensor as hide behind the gradient after it."""
        measured = [pair for look in looks for pair in look.gathered]
        least = self._least(w, order)
        if len({nbytes for nbytes, _ in measured}) < 2:  # all is sent whole
            return least
        cost = fit_cost(*zip(*measured, strict=True))
        numel = [w.layers[tensor].numel for tensor in order]
        budget = [median(gaps) for gaps in zip(*(look.gaps for look in looks), strict=True)]
        selecting = {n: s for look in looks for n, s in look.selected}
        ratios = layer_ratios(
            numel,
            budget,
            lambda n, ratio: cost(_ENTRY * kept_of(n, ratio)),
            lambda n: selecting.get(n, 0.0),
            1 / self.density,
        )
        kept = [kept_of(n, ratio) for n, ratio in zip(numel, ratios, strict=True)]
        return [max(k, few) for k, few in zip(kept, least, strict=True)]


@dataclass(frozen=True)
class _Look:
    """What one step has shown.

    Args:
        gaps: seconds between each gradient and the next, selecting left out; by place in the order.
        selected: elements of a tensor, and seconds of choosing from it.
        gathered: bytes of entries of one worker, and seconds until all had all workers'.
    """

    gaps: list[float]
    selected: list[tuple[int, float]]
    gathered: list[tuple[int, float]]


class _Step:
    """One step after the other, with the memory between them.

    Args:
        method: the settings.
        w: the worker.
    """

    def __init__(self, method: LAGS, w: Worker):
        self._method = method
        self._w = w
        self._memory = w.remember("memory", torch.zeros_like(w.params))
        self._after = torch.empty_like(self._memory)
        self._direction = torch.zeros_like(self._memory)
        self._own: dict[int, Sparse] = {}
        self._least: dict[int, int] = {}
        self._density = method.density
        self._kept: dict[int, int] = {}
        self._groups: Groups = ()
        prepare(self._part(self._memory, max(range(len(w.layers)), key=self._numel)))

    def _numel(self, tensor: int) -> int:
        return self._w.layers[tensor].numel

    def _part(self, flat_P: torch.Tensor, tensor: int) -> torch.Tensor:
        layer = self._w.layers[tensor]
        return flat_P[layer.start : layer.stop]

    def arrange(self, order: Sequence[int], kept: Sequence[int], merge: bool = True) -> None:
        """From now on send so many entries of each tensor, and more in the warm-up, in messages by
        this order."""
        self._least = dict(zip(order, kept, strict=True))
        self._density = self._method.density
        self._arrange(self._least, merge)

    def _warm(self) -> None:
        """As many entries as the step's density asks for, where that is more."""
        density = warmed(self._method.density, self._w.steps, self._method.warmup)
        if density != self._density:
            self._density = density
            kept = {
                tensor: max(least, num_kept(density, self._numel(tensor)))
                for tensor, least in self._least.items()
            }
            self._arrange(kept, merge=True)

    def _arrange(self, kept: dict[int, int], merge: bool) -> None:
        """Entries by tensor, in backward order."""
        self._kept = kept
        groups: list[tuple[int, ...]] = []
        open_: dict[bool, list[int]] = {True: [], False: []}
        for tensor in kept:
            group = open_[self._whole(tensor)]
            group.append(tensor)
            if not merge or self._filling(group) >= self._method.merge:
                groups.append(tuple(group))
                group.clear()
        groups += [tuple(group) for group in open_.values() if group]
        self._groups = tuple(groups)
        for group in self._groups:
            if not self._whole(group[0]):
                prepare_coding(self._method.packing, self._entries(group), self._memory)

    def _filling(self, group: Sequence[int]) -> int:
        """What counts of a message for `merge`."""
        if self._whole(group[0]):
            return sum(map(self._numel, group)) // _WHOLE
        return self._entries(group)

    def _whole(self, tensor: int) -> bool:
        numel = self._numel(tensor)
        few = self._kept[tensor] < numel and self._kept[tensor] * self._w.size < numel
        return numel < self._method.dense_below or not few

    def train(self, batch: Batch) -> list[int]:
        """Train on a batch; the order in which the gradients came."""
        order: list[int] = []

        def on_layer(tensor: int, gradient: torch.Tensor) -> None:
            order.append(tensor)
            self._take(tensor, gradient, batch.weight)
            sending.ready(tensor)

        self._warm()
        sending = Sending(self._w.comm, self._groups, self._message)
        self._clear()
        self._w.gradient(batch, on_layer=on_layer)
        sending.wait()
        self._apply()
        return order

    def _clear(self) -> None:
        """Make room for the sums of a step."""
        with self._w.phase("merge"):
            self._direction.zero_()
            self._w.comm.spend(Work(memory_bytes=float(self._direction.nbytes)))

    def _take(self, tensor: int, gradient: torch.Tensor, weight: float) -> None:
        """Add to the memory, and take out what is to be sent."""
        w = self._w
        with w.phase("select"):
            before, after = self._part(self._memory, tensor), self._part(self._after, tensor)
            if self._whole(tensor):
                torch.add(before, gradient, alpha=weight, out=self._part(self._direction, tensor))
                after.zero_()
                return
            after.copy_(before)
            w.comm.spend(_copying(after))
            self._own[tensor] = accumulate_and_select(after, gradient, weight, self._kept[tensor])
            w.comm.spend(selection_work(len(after)))

    def _message(self, number: int) -> Program:
        layers, group = self._w.layers, self._groups[number]
        if self._whole(group[0]):
            parts = [self._part(self._direction, tensor) for tensor in group]
            return all_reduce_layers([layers[tensor] for tensor in group], parts)
        tensors = sorted(group, key=lambda tensor: layers[tensor].start)
        own = _joined([layers[t] for t in tensors], [self._own.pop(t) for t in tensors],
                      self._memory.numel())  # fmt: skip
        form = form_for(self._method.packing, self._entries(group))
        form = form.within(layers[tensors[0]].start, layers[tensors[-1]].stop)

        def program(comm: Comm) -> None:
            sets = all_gather_sparse(comm, own, form=form)
            comm.spend(scatter_work(sum(map(len, sets))))
            add_sets(sets, self._direction)

        return program

    def _entries(self, group: Sequence[int]) -> int:
        """That a message brings from each worker."""
        return sum(self._kept[tensor] for tensor in group)

    def _apply(self) -> None:
        """All ranks have come through the step: what is left of the gradients becomes the memory,
        and the sums are applied."""
        w, every = self._w, self._method.delta_every
        if every and w.steps % every == 0:
            self._log_delta()
        with w.phase("merge"):
            self._memory.copy_(self._after)
            w.comm.spend(_copying(self._memory))
        w.apply(self._direction)

    def _log_delta(self) -> None:
        """Left over the whole sum in truth, over what a random selection would leave of it."""
        w = self._w
        left = w.all_reduce(self._after)
        if left.is_meta:
            return
        whole = left + self._direction
        found = {}
        for tensor, layer in enumerate(w.layers):
            if not self._whole(tensor):
                norm = float(self._part(whole, tensor).square().sum())
                random = (1 - self._kept[tensor] / layer.numel) * norm
                error = float(self._part(left, tensor).square().sum())
                found[f"delta {layer.name}"] = error / random if random else 0.0
        if found:
            w.log(**found, delta_max=max(found.values()))

    def look(self, batch: Batch, order: Sequence[int], density: float) -> _Look:
        """Train on a batch at that density by the clock: without overlap, each tensor by itself."""
        w, entered, left = self._w, {}, {}
        self.arrange(order, [num_kept(density, self._numel(t)) for t in order], merge=False)

        def on_layer(tensor: int, gradient: torch.Tensor) -> None:
            entered[tensor] = w.comm.now()
            self._take(tensor, gradient, batch.weight)
            left[tensor] = w.comm.now()

        self._clear()
        w.gradient(batch, on_layer=on_layer)
        selected = [t for t in order if not self._whole(t)]
        gathered = []
        with w.phase("merge"):
            collectives.barrier(w.comm)  # what the slowest takes longer is no cost of a message
            for number, (tensor,) in enumerate(self._groups):
                began = w.comm.now()
                self._message(number)(w.comm)
                if tensor in selected:
                    took = w.comm.now() - began
                    gathered.append((_ENTRY * self._kept[tensor], took))
        self._apply()
        return _Look(
            gaps=[max(0.0, entered[b] - left[a]) for a, b in pairwise(order)] + [0.0],
            selected=[(self._numel(t), left[t] - entered[t]) for t in selected],
            gathered=gathered,
        )


def _copying(x: torch.Tensor) -> Work:
    """A copy of a vector: it is read and another one is written."""
    return Work(memory_bytes=2.0 * x.nbytes)


def _joined(layers: Sequence[Layer], sets: Sequence[Sparse], numel: int) -> Sparse:
    """Entries of some layers, by rising place, as entries of the whole vector."""
    if sets[0].is_meta:
        empty = torch.empty(sum(map(len, sets)), device="meta")
        return Sparse(torch.empty_like(empty, dtype=index_dtype(numel)), empty, numel)
    index = [s.index.long() + layer.start for layer, s in zip(layers, sets, strict=True)]
    value = torch.cat([s.value for s in sets])
    return Sparse(torch.cat(index).to(index_dtype(numel)), value, numel)
