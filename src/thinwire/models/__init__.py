"""Models as layer tables: parameters, operations, kept bytes, order of the gradients."""

from thinwire.models.describe import count_model, describe
from thinwire.models.published import PUBLISHED, Totals, published_table
from thinwire.models.table import LayerRow, ModelTable, TensorRow, load_table

__all__ = [
    "PUBLISHED",
    "LayerRow",
    "ModelTable",
    "TensorRow",
    "Totals",
    "count_model",
    "describe",
    "load_table",
    "published_table",
]
