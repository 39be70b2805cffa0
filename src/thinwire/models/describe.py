"""Any model as a layer table: by name, as a torch module, or made by a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from thinwire.errors import InputError
from thinwire.models.published import PUBLISHED, published_table
from thinwire.models.table import ModelTable

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["count_model", "describe"]


def describe(
    model: str | nn.Module,
    *,
    batch: int = 32,
    sequence: int | None = None,
    image: int | None = None,
    inputs: Any = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
) -> ModelTable:
    """The layer table of a model: nothing is downloaded, computed or allocated.

    The published models (`PUBLISHED`) at their own sizes come from tables that are shipped; all
    else is counted by one forward and one backward pass in training mode on the meta device.

    Only products of matrices and convolutions count as operations, as in `FlopCounterMode`;
    attention as it is written out, causal or not. Where activations are recomputed (checkpointing),
    totals and `ready_flops` hold, but the layer rows don't tell whose backward it is.

    Args:
        model: a name in `PUBLISHED`; a torchvision classifier or segmenter; "module:function",
            which returns a torch module or a module and its inputs, and is given `batch` if it has
            a parameter of that name; or a torch module, which is left alone.
        batch: samples of a step, 1 or more; where inputs are given, how many samples they hold.
        sequence: length of token or vector sequences, 1 or more. Default: as published, or 64.
        image: height and width of images, 1 or more. Default: as published, or 224.
        inputs: a tensor, a tuple of positional arguments or a dict of named ones, on any device,
            where they don't follow from forward's `input_ids` or `pixel_values` or the first layer.
        loss: from the model's outputs to a scalar. Default: their sum, which costs nothing.

    Raises:
        InputError: an unknown name, sizes without effect, a model that does not run without data.

    >>> table = describe("resnet20", batch=128)
    >>> table.num_params, table.macs
    (269722, 40551040)
    """
    if isinstance(model, str):
        name = model.strip().lower().replace("_", "-")
        if name in PUBLISHED and inputs is loss is sequence is image is None:
            return published_table(name).at_batch(batch)
    return count_model(model, batch=batch, sequence=sequence, image=image, inputs=inputs, loss=loss)


def count_model(
    model: str | nn.Module,
    *,
    batch: int = 32,
    sequence: int | None = None,
    image: int | None = None,
    inputs: Any = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
) -> ModelTable:
    """As `describe`, but always counted, never read from a shipped table."""
    from thinwire.models._count import count
    from thinwire.models._subject import Sizes, subject_of

    subject = subject_of(model, Sizes(batch, sequence, image), inputs)
    try:
        counted = count(subject.model, subject.args, subject.kwargs, loss)
    except InputError as error:
        raise InputError(f"model {subject.name}: {error}") from error
    return ModelTable(
        name=subject.name,
        batch=subject.batch,
        sample=subject.sample,
        source=f"{subject.source}, counted on the meta device",
        layers=counted.layers,
        tensors=counted.tensors,
        notes=counted.notes,
    )
