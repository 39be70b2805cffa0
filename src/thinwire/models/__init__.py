"""Models as layer tables: parameters, operations, kept bytes, order of the gradients."""

from thinwire.models.describe import count_model, describe
from thinwire.models.published import PUBLISHED, Totals, published_table
from thinwire.models.table import LayerRow, ModelTable, TensorRow, load_table
from thinwire.models.times import LayerTimes, NodeTimes, TimedTensor, load_layer_times

__all__ = [
    "PUBLISHED",
    "LayerRow",
    "LayerTimes",
    "ModelTable",
    "NodeTimes",
    "TensorRow",
    "TimedTensor",
    "Totals",
    "count_model",
    "describe",
    "load_layer_times",
    "load_table",
    "published_table",
]
