"""What `plan --model NAME` knows of a model without running anything.

The figures of well-known models come with the library (`thinwire.models`), so that a plan loads no
torch; any other model is described on the spot. One multiply-accumulate (MAC) is two floating-point
operations; training is taken to cost three forward passes (backward is two), as the simulator
does.
"""

from __future__ import annotations

from dataclasses import dataclass

from thinwire.errors import InputError
from thinwire.models import PUBLISHED, describe

__all__ = ["MODELS", "Model", "find_model"]


@dataclass(frozen=True, kw_only=True)
class Model:
    """What a plan needs to know of a model.

    Args:
        name: as in `MODELS`, or as it was asked for.
        num_params: trainable parameters.
        macs: multiply-accumulates of one forward pass of one sample.
        sample: what one sample is.
        source: how the figures were obtained.
    """

    name: str
    num_params: int
    macs: int
    sample: str
    source: str

    @property
    def flops(self) -> float:
        """Floating-point operations to train on one sample: forward and backward."""
        return 6.0 * self.macs


MODELS: dict[str, Model] = {
    name: Model(
        name=name,
        num_params=totals.num_params,
        macs=totals.macs,
        sample=totals.sample,
        source=totals.source,
    )
    for name, totals in PUBLISHED.items()
}


def find_model(name: str) -> Model:
    """The model of that name; capitals and underscores do not matter.

    Args:
        name: a key of `MODELS`, another model of torchvision, or "module:function" that returns a
            torch module (see `thinwire.models.describe`). Only the first is found without torch.

    Raises:
        InputError: no such model, naming the nearest; or one that cannot be described.

    >>> find_model("ResNet50").num_params
    25557032
    """
    found = MODELS.get(name.strip().lower().replace("_", "-"))
    if found is not None:
        return found
    try:
        table = describe(name)
    except InputError as error:
        raise InputError(f"{error}. For any other model give params and step_time") from error
    return Model(
        name=table.name,
        num_params=table.num_params,
        macs=table.macs,
        sample=table.sample,
        source=table.source,
    )
