"""Collectives, written once on post and wait; what they cost; torch's own where faster."""

from thinwire.collectives.dense import (
    all_gather,
    all_reduce,
    barrier,
    broadcast,
    choose_all_reduce,
    gather,
    reduce,
    reduce_scatter,
)
from thinwire.collectives.sparse import (
    Sparse,
    all_gather_sparse,
    gtopk_all_reduce,
    gtopk_all_reduce_conserving,
    merge,
    split_top,
    sum_sparse,
    top,
)

__all__ = [
    "Sparse",
    "all_gather",
    "all_gather_sparse",
    "all_reduce",
    "barrier",
    "broadcast",
    "choose_all_reduce",
    "gather",
    "gtopk_all_reduce",
    "gtopk_all_reduce_conserving",
    "merge",
    "reduce",
    "reduce_scatter",
    "split_top",
    "sum_sparse",
    "top",
]
