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
from thinwire.collectives.gathers import all_gather_buffers
from thinwire.collectives.oktopk import agree_regions, even_regions, oktopk_all_reduce
from thinwire.collectives.sparse import (
    Form,
    Plain,
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
    "Form",
    "Plain",
    "Sparse",
    "agree_regions",
    "all_gather",
    "all_gather_buffers",
    "all_gather_sparse",
    "all_reduce",
    "barrier",
    "broadcast",
    "choose_all_reduce",
    "even_regions",
    "gather",
    "gtopk_all_reduce",
    "gtopk_all_reduce_conserving",
    "merge",
    "oktopk_all_reduce",
    "reduce",
    "reduce_scatter",
    "split_top",
    "sum_sparse",
    "top",
]
