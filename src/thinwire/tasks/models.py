"""The models of the tasks, each a function that gives a fresh one under torch's global seed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["Normalize", "ResNet20", "cifar_cnn", "digits_cnn", "fashion_cnn"]


class Normalize(nn.Module):
    """Bytes 0..255 to floats, standardised per channel.

    It is the first layer of the image models, so that the images stay bytes in memory (CIFAR-10:
    154 MB in each process, not 614) and a saved model takes raw images.

    Args:
        mean: of each channel, in 0..1.
        std: likewise, above 0.
    """

    scale: torch.Tensor
    shift: torch.Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]):
        super().__init__()
        mean_C, std_C = torch.tensor(mean).view(-1, 1, 1), torch.tensor(std).view(-1, 1, 1)
        self.register_buffer("scale", 1 / (255 * std_C), persistent=False)
        self.register_buffer("shift", -mean_C / std_C, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """uint8 (samples, channels, height, width) to float of the same shape."""
        return x.to(self.scale.dtype) * self.scale + self.shift


def digits_cnn() -> nn.Module:
    """Two convolutions and a classifier for 1×8×8 floats: 20,122 parameters, 132,736 MACs.

    No normalisation layers, so that it has no state beside its parameters; He's initialisation lets
    it learn from the first step all the same. Its dense gradient (80 kB) takes a 100 Mbit/s link
    6 ms, computing it for 8 samples a core about 2 ms.
    """
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 48, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(192, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    return model


def fashion_cnn() -> nn.Module:
    """Two convolutions and a classifier for 1×28×28 bytes: 105,866 parameters, 1.1M MACs."""
    return nn.Sequential(
        Normalize([0.2860], [0.3530]),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1568, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


_CIFAR_MEAN, _CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def cifar_cnn() -> nn.Module:
    """Three convolutions and a classifier for 3×32×32 bytes: 122,570 parameters, 8.0M MACs."""
    return nn.Sequential(
        Normalize(_CIFAR_MEAN, _CIFAR_STD),
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


class ResNet20(nn.Module):
    """The residual network of 20 layers for CIFAR-10: 269,722 parameters, 40.6M MACs.

    Shortcuts are option A of the paper: where a stage halves the size and doubles the channels,
    every second pixel is taken and the new channels are zero, without parameters. Weights of the
    convolutions and the classifier start as He et al. (2015) draw them. Batch normalisation keeps
    running statistics beside the parameters: each worker has its own.

    Reference: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016,
    section 4.2.
    """

    def __init__(self) -> None:
        super().__init__()
        self.normalize = Normalize(_CIFAR_MEAN, _CIFAR_STD)
        self.conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(16)
        widths = [16] * 3 + [32] * 3 + [64] * 3
        self.blocks = nn.Sequential(
            *(_Block(a, b) for a, b in zip([16, *widths[:-1]], widths, strict=True))
        )
        self.classifier = nn.Linear(64, 10)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """uint8 (samples, 3, 32, 32) to scores (samples, 10)."""
        x = F.relu(self.bn(self.conv(self.normalize(x))))
        return self.classifier(self.blocks(x).mean(dim=(2, 3)))


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.stride, self.added = outputs // inputs, outputs - inputs
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=self.stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x
        if self.added:
            before = self.added // 2
            shortcut = x[:, :, :: self.stride, :: self.stride]
            shortcut = F.pad(shortcut, (0, 0, 0, 0, before, self.added - before))
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + shortcut)
