"""Codecs: smaller packets for the same vector."""

from thinwire.compress.adding import add_sets
from thinwire.compress.base import Codec, Traits
from thinwire.compress.cast import Cast, StochasticCast, cast, stochastic_cast
from thinwire.compress.feedback import Feedback, FeedbackState, feedback
from thinwire.compress.fused import accumulate_above, accumulate_and_select, prepare
from thinwire.compress.indices import decode_indices, encode_indices
from thinwire.compress.packed import Packed, packed
from thinwire.compress.per_layer import PerLayer, per_layer
from thinwire.compress.qsgd import QSGD, qsgd
from thinwire.compress.randk import RandK, randk
from thinwire.compress.sampled import SampledThreshold, sampled_threshold
from thinwire.compress.sign import Sign, sign
from thinwire.compress.threshold import Threshold, threshold
from thinwire.compress.topk import TopK, num_kept, select_top, topk
from thinwire.compress.warmup import warmed

__all__ = [
    "QSGD",
    "Cast",
    "Codec",
    "Feedback",
    "FeedbackState",
    "Packed",
    "PerLayer",
    "RandK",
    "SampledThreshold",
    "Sign",
    "StochasticCast",
    "Threshold",
    "TopK",
    "Traits",
    "accumulate_above",
    "accumulate_and_select",
    "add_sets",
    "cast",
    "decode_indices",
    "encode_indices",
    "feedback",
    "num_kept",
    "packed",
    "per_layer",
    "prepare",
    "qsgd",
    "randk",
    "sampled_threshold",
    "select_top",
    "sign",
    "stochastic_cast",
    "threshold",
    "topk",
    "warmed",
]
