"""Inception-v4, from the paper's figures: 42,679,816 parameters, 12.3G MACs for 3×299×299.

Reference: Szegedy, Ioffe, Vanhoucke, Alemi, "Inception-v4, Inception-ResNet and the Impact of
Residual Connections on Learning", AAAI 2017, figures 3 to 9.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import nn

__all__ = ["inception_v4"]


def inception_v4(num_classes: int = 1000) -> nn.Module:
    """The network for images (samples, 3, 299, 299); gives scores (samples, num_classes)."""
    return nn.Sequential(
        OrderedDict(
            stem=_stem(),
            blocks_a=nn.Sequential(*(_block_a() for _ in range(4))),
            reduction_a=_reduction_a(),
            blocks_b=nn.Sequential(*(_block_b() for _ in range(7))),
            reduction_b=_reduction_b(),
            blocks_c=nn.Sequential(*(_block_c() for _ in range(3))),
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            dropout=nn.Dropout(0.2),
            classifier=nn.Linear(1536, num_classes),
        )
    )


class _Branches(nn.Module):
    """The same input through several branches, their channels side by side."""

    def __init__(self, *branches: nn.Module):
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def _conv(
    inputs: int, outputs: int, size: int | tuple[int, int], stride: int = 1, *, same: bool = True
) -> nn.Module:
    """Convolution without bias, batch normalisation, ReLU; `same` keeps height and width."""
    height, width = (size, size) if isinstance(size, int) else size
    padding = (height // 2, width // 2) if same else 0
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, (height, width), stride, padding, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def _chain(inputs: int, *convs: tuple[int, int | tuple[int, int]]) -> nn.Module:
    """Convolutions of stride 1 one after another, each (outputs, size)."""
    widths = [inputs, *(outputs for outputs, _ in convs)]
    return nn.Sequential(
        *(_conv(a, b, size) for a, (b, size) in zip(widths, convs, strict=False)),
    )


def _halving(chain: nn.Module, inputs: int, outputs: int) -> nn.Module:
    """A chain, and a 3×3 convolution of stride 2 without padding."""
    return nn.Sequential(chain, _conv(inputs, outputs, 3, 2, same=False))


def _shrinking_pool() -> nn.Module:
    return nn.MaxPool2d(3, stride=2)


def _pooled(inputs: int, outputs: int) -> nn.Module:
    """A 3×3 average that leaves the padding out, then a 1×1 convolution."""
    return nn.Sequential(
        nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False), _conv(inputs, outputs, 1)
    )


def _stem() -> nn.Module:
    unpadded = {"same": False}
    return nn.Sequential(
        _conv(3, 32, 3, 2, **unpadded),
        _conv(32, 32, 3, **unpadded),
        _conv(32, 64, 3),
        _Branches(_shrinking_pool(), _conv(64, 96, 3, 2, **unpadded)),
        _Branches(
            nn.Sequential(_chain(160, (64, 1)), _conv(64, 96, 3, **unpadded)),
            nn.Sequential(
                _chain(160, (64, 1), (64, (7, 1)), (64, (1, 7))), _conv(64, 96, 3, **unpadded)
            ),
        ),
        _Branches(_conv(192, 192, 3, 2, **unpadded), _shrinking_pool()),
    )


def _block_a() -> nn.Module:
    return _Branches(
        _chain(384, (96, 1)),
        _chain(384, (64, 1), (96, 3)),
        _chain(384, (64, 1), (96, 3), (96, 3)),
        _pooled(384, 96),
    )


def _reduction_a() -> nn.Module:
    return _Branches(
        _conv(384, 384, 3, 2, same=False),
        _halving(_chain(384, (192, 1), (224, 3)), 224, 256),
        _shrinking_pool(),
    )


def _block_b() -> nn.Module:
    row, column = (1, 7), (7, 1)
    return _Branches(
        _chain(1024, (384, 1)),
        _chain(1024, (192, 1), (224, row), (256, column)),
        _chain(1024, (192, 1), (192, column), (224, row), (224, column), (256, row)),
        _pooled(1024, 128),
    )


def _reduction_b() -> nn.Module:
    return _Branches(
        _halving(_chain(1024, (192, 1)), 192, 192),
        _halving(_chain(1024, (256, 1), (256, (1, 7)), (320, (7, 1))), 320, 320),
        _shrinking_pool(),
    )


def _forked(inputs: int, before: Sequence[tuple[int, int | tuple[int, int]]]) -> nn.Module:
    """A chain that ends in a 1×3 and a 3×1 convolution side by side, 256 channels each."""
    last = before[-1][0]
    fork = _Branches(_conv(last, 256, (1, 3)), _conv(last, 256, (3, 1)))
    return nn.Sequential(_chain(inputs, *before), fork)


def _block_c() -> nn.Module:
    return _Branches(
        _chain(1536, (256, 1)),
        _forked(1536, [(384, 1)]),
        _forked(1536, [(384, 1), (448, (1, 3)), (512, (3, 1))]),
        _pooled(1536, 256),
    )
