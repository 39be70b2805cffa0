"""Sizes of well-known models: what `plan --model NAME` knows without running anything.

Parameters and multiply-accumulates (MACs) are counted, not quoted. The torchvision models are built
on meta tensors and counted by torch's FLOP counter (a test repeats it); the others follow from
their published layer lists. One MAC is two floating-point operations; training costs about three
forward passes (backward is two).
"""

from __future__ import annotations

from dataclasses import dataclass

from thinwire.errors import InputError, nearest

__all__ = ["MODELS", "Model", "find_model"]


@dataclass(frozen=True, kw_only=True)
class Model:
    """What a plan needs to know of a model.

    Args:
        name: as in `MODELS`.
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


_COUNTED = "torchvision model counted by torch's FLOP counter"
_LISTED = "layer list of the published model"
_IMAGENET = "image of 3×224×224"
_CIFAR = "image of 3×32×32"

# name, parameters, forward GMAC per sample, sample, source
_ROWS = (
    ("alexnet", 61_100_840, 0.71418848, _IMAGENET, _COUNTED),
    ("bert-base", 110_106_428, 7.05, "sequence of 64 tokens", _LISTED),
    ("bert-large", 336_226_108, 21.60, "sequence of 64 tokens", _LISTED),
    ("densenet121", 7_978_856, 2.834161664, _IMAGENET, _COUNTED),
    ("densenet161", 28_681_000, 7.727907072, _IMAGENET, _COUNTED),
    ("densenet201", 20_013_928, 4.291365888, _IMAGENET, _COUNTED),
    ("efficientnet-b0", 5_288_548, 0.385814752, _IMAGENET, _COUNTED),
    ("inception-v4", 42_679_816, 12.254, "image of 3×299×299", _LISTED),
    ("lstm-ptb", 66_034_000, 1.785, "sequence of 35 words", _LISTED),
    ("mobilenet-v2", 3_504_872, 0.300774272, _IMAGENET, _COUNTED),
    ("resnet18", 11_689_512, 1.814073344, _IMAGENET, _COUNTED),
    ("resnet20", 269_722, 0.0406, _CIFAR, _LISTED),
    ("resnet34", 21_797_672, 3.663761408, _IMAGENET, _COUNTED),
    ("resnet50", 25_557_032, 4.089184256, _IMAGENET, _COUNTED),
    ("resnet101", 44_549_160, 7.80140544, _IMAGENET, _COUNTED),
    ("resnet152", 60_192_808, 11.513626624, _IMAGENET, _COUNTED),
    ("vgg16", 138_357_544, 15.47026432, _IMAGENET, _COUNTED),
    ("vgg16-cifar", 14_728_266, 0.3132, _CIFAR, _LISTED),
    ("vit-b-16", 86_567_656, 17.563828224, _IMAGENET, _COUNTED),
)

MODELS: dict[str, Model] = {
    name: Model(name=name, num_params=params, macs=round(gmac * 1e9), sample=sample, source=source)
    for name, params, gmac, sample, source in _ROWS
}


def find_model(name: str) -> Model:
    """The model of that name; capitals and underscores do not matter.

    Raises:
        InputError: no such model; names the nearest.

    >>> find_model("ResNet50").num_params
    25557032
    """
    found = MODELS.get(name.strip().lower().replace("_", "-"))
    if found is None:
        raise InputError(
            f"model = {name!r} is not in the table; {nearest(name.lower(), MODELS)}. "
            "For any other model give params and step_time"
        )
    return found
