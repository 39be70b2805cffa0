"""Codecs: smaller packets for the same vector."""

from thinwire.compress.base import Codec, Traits
from thinwire.compress.feedback import Feedback, FeedbackState, feedback
from thinwire.compress.topk import TopK, num_kept, select_top, topk

__all__ = [
    "Codec",
    "Feedback",
    "FeedbackState",
    "TopK",
    "Traits",
    "feedback",
    "num_kept",
    "select_top",
    "topk",
]
