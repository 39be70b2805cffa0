"""Image data sets that the user has: Fashion-MNIST and CIFAR-10, read from a path.

Nothing is augmented: a method's effect on training is compared on the same samples, and published
accuracies that rest on crops and flips are some points higher.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from torch import nn

from thinwire.tasks.base import Split
from thinwire.tasks.classification import AbstractClassification
from thinwire.tasks.data import CIFAR10, FASHION_MNIST, Source, check_limit
from thinwire.tasks.models import ResNet20, cifar_cnn, fashion_cnn

__all__ = ["AbstractImages", "Cifar10", "Cifar10ResNet20", "FashionMnist"]


@dataclass(frozen=True, kw_only=True)
class AbstractImages(AbstractClassification):
    """Images of bytes and their classes from a `Source`; x is uint8 (n, channels, height, width).

    Args:
        data: file or folder; None looks where the environment variable THINWIRE_DATA points, then
            where a system package installs.
        train_limit: take only the first training samples, 1 or more.
        test_limit: likewise for the test samples.

    Raises:
        InputError: no data there; says what to install or where to point.
    """

    source: ClassVar[Source]
    data: Path | None = None
    train_limit: int | None = None
    test_limit: int | None = None

    def __post_init__(self) -> None:
        check_limit("train_limit", self.train_limit)
        check_limit("test_limit", self.test_limit)
        self.source.find(self.data)

    def train_data(self) -> Split:
        """As `Task.train_data`."""
        return self._train

    def test_data(self) -> Split:
        """As `Task.test_data`."""
        return self._test

    @cached_property
    def _train(self) -> Split:
        return self.source.read(self.source.find(self.data), "train", self.train_limit)

    @cached_property
    def _test(self) -> Split:
        return self.source.read(self.source.find(self.data), "test", self.test_limit)


@dataclass(frozen=True, kw_only=True)
class FashionMnist(AbstractImages):
    """Clothes, 28×28 grey, ten classes: 60,000 to train, 10,000 to test; a small CNN.

    Args: as `AbstractImages`. Install the Debian package dataset-fashion-mnist, or point `data` at
    the four IDX files.
    """

    name: ClassVar[str] = "fashion-mnist"
    source: ClassVar[Source] = FASHION_MNIST

    def model(self) -> nn.Module:
        """As `Task.model`."""
        return fashion_cnn()


@dataclass(frozen=True, kw_only=True)
class Cifar10(AbstractImages):
    """Things and animals, 32×32 colour, ten classes: 50,000 to train, 10,000 to test; a small CNN.

    Args: as `AbstractImages`. Point `data` at the folder of the binary version or at an .npz file
    of JPEG images.
    """

    name: ClassVar[str] = "cifar10"
    source: ClassVar[Source] = CIFAR10

    def model(self) -> nn.Module:
        """As `Task.model`."""
        return cifar_cnn()


@dataclass(frozen=True, kw_only=True)
class Cifar10ResNet20(AbstractImages):
    """The images of `Cifar10` by ResNet-20 with batch normalisation.

    Args: as `AbstractImages`.
    """

    name: ClassVar[str] = "cifar10-resnet20"
    source: ClassVar[Source] = CIFAR10

    def model(self) -> nn.Module:
        """As `Task.model`."""
        return ResNet20()
