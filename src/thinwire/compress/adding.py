"""Sparse vectors into a dense one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from thinwire.collectives.sparse import Sparse
from thinwire.compress._native import kernels
from thinwire.errors import InputError

__all__ = ["add_sets"]


def add_sets(sets: Sequence[Sparse], dense: torch.Tensor) -> torch.Tensor:
    """Add them one after the other, in the order given: the same bits on every rank.

    Where only the dense sum is wanted this is the way: `sum_sparse` would sort the entries first.

    Args:
        sets: of `dense.numel()` elements each.
        dense: contiguous, changed in place.

    Returns:
        `dense`.

    Raises:
        InputError: a set of another size, or with an index outside the vector.
    """
    native = kernels() if dense.dtype == torch.float32 and dense.is_cpu else None
    flat = dense.detach().view(-1)
    for s in sets:
        plain = s.index.dtype == torch.int32 and s.value.dtype == torch.float32
        if native is None or not plain or s.is_meta or s.numel != flat.numel():
            s.add_into(dense)
            continue
        added = native.add_entries(flat.numpy(), s.index.numpy(), s.value.numpy())
        if added < len(s):
            raise InputError(
                f"entry {added} of a sparse vector has index {int(s.index[added])}; valid: "
                f"0..{s.numel - 1}"
            )
    return dense
