"""VGG-16 for CIFAR-10, with batch normalisation: 14,728,266 parameters, 313M MACs for 3×32×32.

The thirteen convolutions of configuration D; five poolings leave one pixel, so that one classifier
of 512 inputs takes the place of the three fully connected layers.

Reference: Simonyan, Zisserman, "Very Deep Convolutional Networks for Large-Scale Image
Recognition", ICLR 2015, table 1.
"""

from __future__ import annotations

from torch import nn

__all__ = ["vgg16_cifar"]

_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # channels, convolutions


def vgg16_cifar(num_classes: int = 10) -> nn.Module:
    """The network for images (samples, 3, 32, 32); gives scores (samples, num_classes)."""
    layers: list[nn.Module] = []
    channels = 3
    for width, depth in _STAGES:
        for _ in range(depth):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width)]
            layers.append(nn.ReLU(inplace=True))
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, num_classes))
