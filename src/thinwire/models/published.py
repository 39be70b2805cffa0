"""Well-known models whose tables are shipped, so that neither torch nor torchvision is needed."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType

from thinwire.errors import InputError, nearest
from thinwire.models._totals import TOTALS
from thinwire.models.table import ModelTable

__all__ = ["PUBLISHED", "Totals", "published_table"]


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What a published model comes to.

    Args:
        num_params: trainable parameters.
        num_tensors: parameter tensors that they are in.
        macs: multiply-accumulates of the forward pass of one sample.
        sample: what one sample is.
        source: how the figures were obtained.
    """

    num_params: int
    num_tensors: int
    macs: int
    sample: str
    source: str


PUBLISHED = MappingProxyType(
    {
        name: Totals(
            num_params=num_params,
            num_tensors=num_tensors,
            macs=macs,
            sample=sample,
            source=source,
        )
        for name, num_params, num_tensors, macs, sample, source in TOTALS
    }
)
"""By name, at the sizes at which they were published."""


def published_table(name: str) -> ModelTable:
    """The shipped table of a model, at the batch at which it was counted.

    Raises:
        InputError: not a name in `PUBLISHED`.
    """
    if name not in PUBLISHED:
        raise InputError(f"model = {name!r}; {nearest(name, PUBLISHED)}")
    file = resources.files("thinwire.models").joinpath(f"tables/{name}.toml")
    return ModelTable.from_toml(file.read_text("utf-8"), source=f"table of {name}")
