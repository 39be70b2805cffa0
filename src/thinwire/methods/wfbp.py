"""Wait-free backpropagation: each part of the gradient leaves as soon as it is complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import ClassVar, Literal

import torch

from thinwire import collectives
from thinwire.collectives import traffic
from thinwire.errors import InputError
from thinwire.methods.base import Method, Paper, Traits
from thinwire.methods.sending import (
    Program,
    Sending,
    agree,
    all_reduce_layers,
    assumed_order,
    seen_order,
)
from thinwire.schedule import DDP_LIMIT, Groups, buckets, merged, optimal, per_tensor, whole
from thinwire.schedule.costs import Cost, fit_cost
from thinwire.worker import Batch, Worker

__all__ = ["WFBP"]

_LOOKS = 3
"""Steps that are measured before messages are chosen by time."""


@dataclass(frozen=True, kw_only=True)
class WFBP(Method):
    """S-SGD whose messages travel beside the backward pass instead of after it.

    Exact: the same as one process with the union of the batches. As many bytes as `ssgd`:
    2·m·(P−1)/P values a worker and step, in more messages. No staleness, no memory beyond the
    gradient. It hides at most the smaller of the backward pass and the exchange. Waits for the
    slowest worker.

    Update rule: when the last gradient of a message is complete, its sum over the workers begins,
    `s = Σ_r w_r·g_r`; after backward all sums are waited for, and `x ← x − lr · s`.

    Which tensors travel together is `groups`. "merged" is MG-WFBP's rule and "optimal" the best
    grouping by the same model, a channel on which a message of n bytes takes a + b·n. Their first
    steps look at the order and the times of the gradients (per tensor, in three of them one after
    the other and not overlapped), and rank 0's figures decide for all. So a real run follows its
    own clock: sums of another grouping may differ in the last bits, except where P is a power of
    two, for then "merged" and "optimal" add in an order that doesn't depend on the grouping. All
    others repeat bit for bit.

    Departures from the papers: messages share the network instead of queueing for one channel,
    unless `at_once` says so; start-ups then overlap, and there is less for merging to save.

    Args:
        groups: "tensor": a message for each parameter tensor; "buckets": of `bucket_bytes`, in the
            order of the first backward pass; "merged" and "optimal": by measured times; "one": all
            at the end, which is plain S-SGD.
        bucket_bytes: of "buckets", at least 1.
        at_once: messages under way at a time; 0 for as many as are complete.

    Example:
        >>> WFBP(groups="buckets", bucket_bytes=2**20).at_once
        0
    """

    groups: Literal["tensor", "buckets", "merged", "optimal", "one"] = "tensor"
    bucket_bytes: int = DDP_LIMIT
    at_once: int = 0

    paper: ClassVar[Paper | None] = Paper(
        authors="Zhang, Zheng, Xu, Dai, Ho, Liang, Hu, Wei, Xie and Xing",
        title="Poseidon: An Efficient Communication Architecture for Distributed Deep Learning on "
        "GPU Clusters",
        venue="USENIX ATC",
        year=2017,
        url="https://arxiv.org/abs/1706.03292",
    )
    traits: ClassVar[Traits] = Traits(
        traffic="8·m·(P−1)/P, during backward",
        staleness="0",
        kind="overlapped",
        synchronous=True,
        agree=True,
        packets_only=True,
        resumable=True,
    )

    def __post_init__(self) -> None:
        valid = ("tensor", "buckets", "merged", "optimal", "one")
        if self.groups not in valid:
            raise InputError(f"groups = {self.groups!r}; valid: {', '.join(valid)}")
        if self.bucket_bytes < 1:
            raise InputError(f"bucket_bytes = {self.bucket_bytes}: at least 1 is needed")
        if self.bucket_bytes != DDP_LIMIT and self.groups != "buckets":
            raise InputError(
                f"bucket_bytes = {self.bucket_bytes} has no effect with groups = {self.groups!r}; "
                "it is of groups = 'buckets'"
            )
        if self.at_once < 0:
            raise InputError(f"at_once = {self.at_once}: at least 0 is needed; 0 is no limit")
        if self.at_once and self.groups == "one":
            raise InputError(
                f"at_once = {self.at_once} has no effect with groups = 'one'; allowed: 0"
            )

    def sent_bytes(self, numel: int, size: int, steps: int) -> Sequence[int] | None:
        """See `Method`: known without the model's tensors where there is one message."""
        if self.groups != "one":
            return None
        return [steps * n for n in traffic.all_reduce(size, numel)]

    def worker(self, w: Worker) -> None:
        """See `Method`."""
        found = w.remember("messages", torch.full((2, len(w.layers)), -1, dtype=torch.int64))
        groups = self._learn(w, found) if int(found[0, 0]) < 0 else _groups(found)
        for batch in w.batches():
            self._step(w, batch, groups)

    def _step(self, w: Worker, batch: Batch, groups: Groups) -> list[int]:
        """Train on a batch; the order in which the gradients came."""
        order: list[int] = []
        parts: dict[int, torch.Tensor] = {}

        def message(number: int) -> Program:
            group = groups[number]
            layers = [w.layers[tensor] for tensor in group]
            return all_reduce_layers(layers, [parts[t] for t in group], self._algorithm(w.size))

        def on_layer(tensor: int, gradient: torch.Tensor) -> None:
            order.append(tensor)
            with w.phase("encode"):
                parts[tensor] = _weighted(gradient, batch, w.size)
                sending.ready(tensor)

        sending = Sending(w.comm, groups, message, self.at_once)
        direction = w.gradient(batch, on_layer=on_layer)
        sending.wait()
        w.apply(direction)
        return order

    def _algorithm(self, size: int) -> str:
        """Of a message's sum: one whose order of additions doesn't depend on the other messages,
        where messages depend on measured times and it sends no more than others."""
        measured = self.groups in ("merged", "optimal")
        return "halving_doubling" if measured and size & (size - 1) == 0 else "auto"

    # Which messages.

    def _learn(self, w: Worker, found: torch.Tensor) -> Groups:
        """Train on as many batches as it takes to know which messages there are to be."""
        order = assumed_order(w)
        if self.groups == "one":
            return whole(order)
        groups = per_tensor(order)
        if w.size == 1 or (self.groups == "tensor" and not self.at_once):
            return groups
        first = self._buckets(w, order) if self.groups == "buckets" else groups
        order = seen_order(w, lambda batch: self._step(w, batch, first), torch.empty_like(found[0]))
        if order is None:
            return first
        if self.groups == "buckets":
            groups = self._buckets(w, order)
        elif self.groups == "tensor":
            groups = per_tensor(order)
        else:
            looks = [
                _look(w, batch, order, self._algorithm(w.size))
                for batch in w.batches(min(_LOOKS, w.plan.steps - w.steps))
            ]
            if not looks:
                return groups
            groups = self._timed(w, order, looks)
        numbers = [number for number, group in enumerate(groups) for _ in group]
        agree(w, [order, numbers], found)
        return _groups(found)

    def _buckets(self, w: Worker, order: Sequence[int]) -> Groups:
        nbytes = [w.layers[t].numel * w.params.itemsize for t in order]
        return buckets(order, nbytes, self.bucket_bytes)

    def _timed(self, w: Worker, order: Sequence[int], looks: Sequence[_Look]) -> Groups:
        """By the medians of what was measured."""
        nbytes = [w.layers[t].numel * w.params.itemsize for t in order]
        ready, before = [], 0.0
        for times in zip(*(look.ready for look in looks), strict=True):
            before = max(before, median(times))
            ready.append(before)
        seconds = [min(times) for times in zip(*(look.seconds for look in looks), strict=True)]
        cost = _cost(nbytes, seconds)
        if self.groups == "merged":
            return merged(order, ready, nbytes, cost.startup, cost.per_byte)
        return optimal(order, ready, nbytes, cost)


def _groups(found: torch.Tensor) -> Groups:
    """From tensors in backward order, and the message of each."""
    order, numbers = found.tolist()
    groups: list[list[int]] = [[] for _ in range(numbers[-1] + 1)]
    for tensor, number in zip(order, numbers, strict=True):
        groups[number].append(tensor)
    return tuple(map(tuple, groups))


@dataclass(frozen=True)
class _Look:
    """What one step has shown, by place in the order: seconds from the first gradient until each is
    complete, and of the exchange of each."""

    ready: list[float]
    seconds: list[float]


def _look(w: Worker, batch: Batch, order: Sequence[int], algorithm: str) -> _Look:
    """Train on a batch without overlap, by the clock."""
    ready: dict[int, float] = {}
    parts: dict[int, torch.Tensor] = {}

    def on_layer(tensor: int, gradient: torch.Tensor) -> None:
        ready[tensor] = w.comm.now()
        parts[tensor] = _weighted(gradient, batch, w.size)

    direction = w.gradient(batch, on_layer=on_layer)
    seconds = []
    with w.phase("merge"):
        collectives.barrier(w.comm)  # what the slowest takes longer is no cost of a message
        for tensor in order:
            began = w.comm.now()
            collectives.all_reduce(w.comm, parts[tensor], algorithm)
            seconds.append(w.comm.now() - began)
    w.apply(direction)
    first = ready[order[0]]
    return _Look([ready[tensor] - first for tensor in order], seconds)


def _cost(nbytes: Sequence[int], seconds: Sequence[float]) -> Cost:
    """The line through what the messages took; through one size, all of it is start-up."""
    if len(set(nbytes)) < 2:
        return Cost(startup=min(seconds))
    return fit_cost(nbytes, seconds)


def _weighted(gradient: torch.Tensor, batch: Batch, size: int) -> torch.Tensor:
    """This worker's part of the sum, in the place of the gradient."""
    return gradient if size == 1 else gradient.mul_(batch.weight)
