"""Sparse vectors: sums, the largest entries, and the collectives that carry them.

A `Sparse` is never written into: packets, ranks of a virtual cluster and results share its tensors,
so nothing is copied on the way. Entries travel as 4 bytes of index (8 above 2^31 elements) and 4 of
value (8 for float64), in separate buffers.

Legend: K entries kept, P all elements of the dense vector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import torch

from thinwire.collectives._moves import broadcast_packet, take
from thinwire.collectives._schedule import tree_children
from thinwire.collectives.gathers import all_gather_buffers
from thinwire.errors import InputError, NonFiniteError
from thinwire.wire.base import Comm, Tag, Work
from thinwire.wire.packet import Packet

__all__ = [
    "Form",
    "Plain",
    "Sparse",
    "all_gather_sparse",
    "gather_sets",
    "gtopk_all_reduce",
    "gtopk_all_reduce_conserving",
    "index_dtype",
    "keep_largest",
    "merge",
    "split_top",
    "sum_sparse",
    "top",
]


def index_dtype(numel: int) -> torch.dtype:
    """int32 where it holds every index, int64 from 2^31 + 1 elements on."""
    return torch.int32 if numel <= 2**31 else torch.int64


@dataclass(frozen=True, slots=True, eq=False)
class Sparse:
    """Some entries of a dense vector, in main memory (or meta); never write into its tensors.

    Args:
        index: K indices of `index_dtype(numel)`, rising strictly.
        value: K values, float32 or float64.
        numel: elements of the dense vector.
    """

    index: torch.Tensor
    value: torch.Tensor
    numel: int

    def __post_init__(self) -> None:
        index, value = self.index, self.value
        if index.dim() != 1 or index.shape != value.shape:
            raise InputError(
                f"index of shape {tuple(index.shape)}, value of shape {tuple(value.shape)}; "
                "both must be 1-D and equally long"
            )
        if index.dtype != index_dtype(self.numel):
            raise InputError(
                f"index of {index.dtype}; for {self.numel} elements it is {index_dtype(self.numel)}"
            )
        if value.dtype not in (torch.float32, torch.float64):
            raise InputError(f"value of {value.dtype}; valid: torch.float32, torch.float64")
        if index.device != value.device or value.device.type not in ("cpu", "meta"):
            raise InputError(
                f"index on {index.device}, value on {value.device}; both must be on cpu (or meta)"
            )

    def __len__(self) -> int:
        return self.index.shape[0]

    @property
    def is_meta(self) -> bool:
        """Whether it stands for its size only."""
        return self.value.is_meta

    def packet(self, step: int = 0, layer: int = -1) -> Packet:
        """The entries as two buffers."""
        return Packet((self.index, self.value), "sparse", step, layer)

    def take(self, mask: torch.Tensor) -> Sparse:
        """The entries where `mask` (K, bool) is set; of meta ones all, for want of values."""
        if self.is_meta:
            return self
        chosen = mask.numpy()  # whose indexing is several times as fast as torch's
        index, value = self.index.numpy()[chosen], self.value.numpy()[chosen]
        return Sparse(torch.from_numpy(index), torch.from_numpy(value), self.numel)

    def scaled(self, factor: float) -> Sparse:
        """Every value times `factor`."""
        return Sparse(self.index, self.value if self.is_meta else self.value * factor, self.numel)

    def add_into(self, dense: torch.Tensor) -> torch.Tensor:
        """Add the entries to a contiguous dense tensor of `numel` elements, in place."""
        flat = self._match(dense)
        if not self.is_meta and not flat.is_meta:
            value = self.value.to(device=flat.device, dtype=flat.dtype)
            flat.index_add_(0, self.index.to(flat.device), value)
        return dense

    def zero_in(self, dense: torch.Tensor) -> torch.Tensor:
        """Set a contiguous dense tensor to zero at these indices, in place."""
        flat = self._match(dense)
        if not self.is_meta and not flat.is_meta:
            flat.index_fill_(0, self.index.to(flat.device, torch.int64), 0)
        return dense

    def to_dense(self) -> torch.Tensor:
        """A new vector of `numel` elements, zero elsewhere."""
        zeros = torch.zeros(self.numel, dtype=self.value.dtype, device=self.value.device)
        return self.add_into(zeros)

    def _match(self, dense: torch.Tensor) -> torch.Tensor:
        if dense.numel() != self.numel:
            raise InputError(
                f"a sparse vector of {self.numel} elements meets a dense one of {dense.numel()}"
            )
        return dense.detach().view(-1)


# Sums and the largest entries.


def merge(a: Sparse, b: Sparse) -> Sparse:
    """The sum: values at equal indices are added, and stay even where they cancel to zero.

    Commutative to the bit. Of meta sets the result has as many entries as both together.
    """
    if a.numel != b.numel or a.value.dtype != b.value.dtype:
        raise InputError(
            f"cannot add sparse vectors of {a.numel} x {a.value.dtype} and "
            f"{b.numel} x {b.value.dtype}"
        )
    if a.is_meta or b.is_meta:
        return _meta(a, min(a.numel, len(a) + len(b)))
    index = np.concatenate((a.index.numpy(), b.index.numpy()))
    # A stable sort finds the two rising runs and merges them, which is linear.
    order = np.argsort(index, kind="stable")
    index = index[order]
    value = np.concatenate((a.value.numpy(), b.value.numpy()))[order]
    first = np.flatnonzero(index[1:] == index[:-1])
    if first.size:
        with np.errstate(over="ignore", invalid="ignore"):  # `top` refuses what comes of it
            value[first] += value[first + 1]
        keep = np.ones(index.size, bool)
        keep[first + 1] = False
        index, value = index[keep], value[keep]
    return Sparse(torch.from_numpy(index), torch.from_numpy(value), a.numel)


def sum_sparse(sets: Sequence[Sparse]) -> Sparse:
    """The sum of all, by pairs of neighbours in the order given: the same bits on every rank."""
    if not sets:
        raise InputError("sum_sparse needs at least one sparse vector")
    sums = list(sets)
    while len(sums) > 1:
        paired = [merge(a, b) for a, b in zip(sums[::2], sums[1::2], strict=False)]
        sums = paired + sums[2 * len(paired) :]
    return sums[0]


def keep_largest(magnitude: np.ndarray, k: int) -> np.ndarray:
    """Which k of the magnitudes are the largest; of equal ones those that come first.

    Args:
        magnitude: finite, >= 0, at least k of them.
        k: >= 1.
    """
    kth = np.partition(magnitude, magnitude.size - k)[magnitude.size - k]
    keep = magnitude > kth
    equal = np.flatnonzero(magnitude == kth)
    keep[equal[: k - np.count_nonzero(keep)]] = True
    return keep


def _kept(s: Sparse, k: int) -> np.ndarray:
    magnitude = np.abs(s.value.numpy())
    if not np.isfinite(magnitude.max()):
        raise NonFiniteError(
            "a sum of sparse values is NaN or infinite: the values sent were too large; lower the "
            "learning rate or clip the gradient"
        )
    return keep_largest(magnitude, k)


def top(s: Sparse, k: int) -> Sparse:
    """The k entries of largest magnitude, of equal ones the smaller index; all if there are fewer.

    Raises:
        NonFiniteError: a value is NaN or infinite.
    """
    if k < 1:
        raise InputError(f"k = {k!r}; it must be >= 1")
    if len(s) <= k:
        return s
    if s.is_meta:
        return _meta(s, k)
    return s.take(torch.from_numpy(_kept(s, k)))


def split_top(s: Sparse, k: int) -> tuple[Sparse, Sparse]:
    """`top(s, k)` and the entries that it leaves."""
    if k < 1:
        raise InputError(f"k = {k!r}; it must be >= 1")
    if len(s) <= k:
        return s, _none_of(s)
    if s.is_meta:
        return _meta(s, k), _meta(s, len(s) - k)
    kept = torch.from_numpy(_kept(s, k))
    return s.take(kept), s.take(~kept)


def _none_of(s: Sparse) -> Sparse:
    return Sparse(s.index[:0], s.value[:0], s.numel)


def _meta(like: Sparse, count: int) -> Sparse:
    index = torch.empty(count, dtype=like.index.dtype, device="meta")
    return Sparse(index, torch.empty(count, dtype=like.value.dtype, device="meta"), like.numel)


# Collectives.


class Form(Protocol):
    """How the entries of a set travel, equal on all ranks. The values are a packet's last buffer.
    What coding costs is charged to the communicator."""

    def packet(self, comm: Comm, s: Sparse) -> Packet:
        """What is sent of a set."""
        ...

    def entries(self, comm: Comm, packet: Packet, numel: int) -> Sparse:
        """The set of a packet."""
        ...

    def merged(self, comm: Comm, s: Sparse, packet: Packet) -> Sparse:
        """`merge` of a set and that of a packet, to the bit."""
        ...

    def within(self, start: int, stop: int) -> Self:
        """The form of sets whose entries all lie in start..stop-1, as both sides know."""
        ...


@dataclass(frozen=True)
class Plain:
    """A `Form`: 4 or 8 bytes of index and as many of value an entry, as they are."""

    def packet(self, comm: Comm, s: Sparse) -> Packet:
        """See `Form`."""
        return s.packet()

    def entries(self, comm: Comm, packet: Packet, numel: int) -> Sparse:
        """See `Form`."""
        index, value = packet.buffers
        return Sparse(index, value, numel)

    def merged(self, comm: Comm, s: Sparse, packet: Packet) -> Sparse:
        """See `Form`."""
        return merge(s, self.entries(comm, packet, s.numel))

    def within(self, start: int, stop: int) -> Self:
        """See `Form`."""
        return self


_PLAIN = Plain()


def all_gather_sparse(
    comm: Comm,
    s: Sparse,
    tag: Tag = "all_gather_sparse",
    meanwhile: Callable[[], object] | None = None,
    form: Form = _PLAIN,
) -> list[Sparse]:
    """Every worker's set at all of them, by rank; the sets may differ in size.

    By recursive doubling, as `all_gather_buffers`.

    Args:
        comm: this worker's endpoint.
        s: this worker's own set.
        tag: of the packets, equal on all ranks.
        meanwhile: as of `all_gather_buffers`.
        form: how entries travel, equal on all ranks.
    """
    return gather_sets(comm, s, tag, [form] * comm.size, meanwhile)


def gather_sets(
    comm: Comm,
    s: Sparse,
    tag: Tag,
    forms: Sequence[Form],
    meanwhile: Callable[[], object] | None = None,
) -> list[Sparse]:
    """`all_gather_sparse` with a form for each rank's set, by rank."""
    rank = comm.rank
    packet = forms[rank].packet(comm, s) if comm.size > 1 else s.packet()
    gathered = all_gather_buffers(comm, packet.buffers, "sparse", tag, meanwhile)
    return [
        s if r == rank else forms[r].entries(comm, Packet(buffers, "sparse"), s.numel)
        for r, buffers in enumerate(gathered)
    ]


def gtopk_all_reduce(
    comm: Comm,
    s: Sparse,
    k: int,
    tag: Tag = "gtopk",
    work: Callable[[int], Work] | None = None,
    form: Form = _PLAIN,
    meanwhile: Callable[[], object] | None = None,
) -> tuple[Sparse, torch.Tensor]:
    """gTop-k: sum the workers' sets up a binomial tree, keeping k entries at each merge.

    The result is not the exact top-k of the sum for P > 2, and loses gradient mass: a value merged
    away at an inner rank, whose index wins through another branch, is returned to nobody (see
    `gtopk_all_reduce_conserving`). The tree is that of the paper at powers of two; elsewhere a rank
    without a partner is idle for the round. The broadcast goes to the far half first.

    Args:
        comm: this worker's endpoint.
        s: this worker's own top k, at most k entries.
        k: >= 1, equal on all ranks.
        tag: of the packets, equal on all ranks.
        work: what merging that many entries is charged as; by default nothing.
        form: how entries travel.
        meanwhile: called once, while the first packets are on their way: for local work that the
            result needs and the exchange does not.

    Returns:
        The k entries of the global set, summed, not averaged, equal to the bit on all ranks; and
        which of this worker's own entries have their index among them (K, bool). The caller puts
        the others back: `s.take(~hit).add_into(memory)`.

    Reference: Shi et al., "A Distributed Synchronous SGD Algorithm with Global Top-k Sparsification
    for Low Bandwidth Networks", ICDCS 2019.
    """
    result = _tree(comm, s, k, tag, work, form, meanwhile, None)
    if s.is_meta or result.is_meta:
        return result, torch.empty(len(s), dtype=torch.bool, device="meta")
    hit = np.isin(s.index.numpy(), result.index.numpy(), assume_unique=True)
    return result, torch.from_numpy(hit)


def gtopk_all_reduce_conserving(
    comm: Comm,
    s: Sparse,
    k: int,
    tag: Tag = "gtopk",
    work: Callable[[int], Work] | None = None,
    form: Form = _PLAIN,
    meanwhile: Callable[[], object] | None = None,
) -> tuple[Sparse, Sparse]:
    """gTop-k without loss: each rank keeps what it truncates at its own merges.

    The workers' sets add up to the result plus everything dropped, to rounding. Nobody puts
    anything back besides: the caller adds the dropped entries to its own memory. They pile up on
    low ranks (rank 0 merges most), which is the price. Our variant, not the paper's.

    Args:
        comm: this worker's endpoint.
        s: this worker's own top k, at most k entries.
        k: >= 1, equal on all ranks.
        tag: of the packets, equal on all ranks.
        work: as of `gtopk_all_reduce`.
        form: as there.
        meanwhile: as there.

    Returns:
        The result, as of `gtopk_all_reduce`, and the entries that this rank truncated, summed.
    """
    dropped: list[Sparse] = []
    result = _tree(comm, s, k, tag, work, form, meanwhile, dropped)
    return result, sum_sparse(dropped or [_none_of(s)])


def _tree(
    comm: Comm,
    s: Sparse,
    k: int,
    tag: Tag,
    work: Callable[[int], Work] | None,
    form: Form,
    meanwhile: Callable[[], object] | None,
    dropped: list[Sparse] | None,
) -> Sparse:
    if k < 1 or len(s) > k:
        raise InputError(
            f"k = {k!r} with a set of {len(s)} entries; k must be >= 1 and no set larger"
        )
    rank, children = comm.rank, tree_children(comm.rank, comm.size)
    if children:
        _do(meanwhile)
    for child in children:
        packet = take(comm, child, tag)
        if work is not None:
            comm.spend(work(len(s) + packet.buffers[-1].numel()))
        s = _merge_top(comm, s, packet, k, form, dropped)
    if rank:
        comm.post(rank & (rank - 1), form.packet(comm, s), tag)
    if not children:
        _do(meanwhile)
    if comm.size == 1:
        return s
    packet = broadcast_packet(comm, None if rank else form.packet(comm, s), 0, tag)
    return form.entries(comm, packet, s.numel) if rank else s


def _do(action: Callable[[], object] | None) -> None:
    if action is not None:
        action()


def _merge_top(
    comm: Comm, a: Sparse, packet: Packet, k: int, form: Form, dropped: list[Sparse] | None
) -> Sparse:
    if a.is_meta and len(a) == k and dropped is None:
        form.entries(comm, packet, a.numel)  # for its cost alone: thousands of timing-only workers
        return a  # need no arithmetic on sizes that are known
    merged = form.merged(comm, a, packet)
    if dropped is None:
        return top(merged, k)
    kept, rest = split_top(merged, k)
    dropped.append(rest)
    return kept
