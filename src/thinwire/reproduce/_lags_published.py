"""LAGS in figures: 16 machines with one P102-100 each, 1 Gbit/s Ethernet.

Breakdowns, constants and bounds are from the authors' own scripts (HKBU-HPML/OMGS-SGD, which serves
LAGS and OMGS-SGD both, and their plotting script); the dense iterations agree with the gains of the
paper's table and were not found elsewhere. Times are seconds of an iteration.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GATHER_TEN", "MODELS", "REDUCE_TEN", "RING", "SELECT", "WORKERS", "Model"]

WORKERS = 16

SELECT = 2.18896957e-10
"""Seconds s in s·n·log2 n, for choosing from n elements."""

RING = (0.436e-3, 1 / 9e-9)
"""Latency and bytes per second between two machines, 1 Gbit/s."""

GATHER_TEN, REDUCE_TEN = (1.4e-4, 2.0e-10), (9.0810e-4, 7.3957e-10)
"""Start-up and seconds a byte on 10 GbE with 16 workers: of an all-gather by gathered bytes, of an
all-reduce by a worker's bytes."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """What was published of one model.

    Args:
        title: as published.
        table: its name in `thinwire.models`.
        density: share of the entries kept.
        forward: seconds.
        backward: seconds.
        select: seconds of choosing from the whole gradient.
        exchange: seconds that top-k of the whole model (SLGS) takes beside computing and choosing.
        layers: seconds of an iteration of LAGS.
        gather: start-up of an all-gather and seconds a gathered byte.
        dense: seconds of a dense iteration; None where it wasn't published.
        over_dense: printed gain of LAGS.
        over_whole: printed gain of LAGS.
        bound: printed bound of the gain of pipelining.
    """

    title: str
    table: str
    density: float
    forward: float
    backward: float
    select: float
    exchange: float
    layers: float
    gather: tuple[float, float]
    dense: float | None = None
    over_dense: float | None = None
    over_whole: float | None = None
    bound: float | None = None

    @property
    def whole(self) -> float:
        """Seconds of an iteration of top-k of the whole model (SLGS)."""
        return self.forward + self.backward + self.select + self.exchange


_SMALL, _LATER = (1.1e-2, 1.7e-8), (1.7e-3, 1.7e-8)
"""The scripts' line for 16 workers, and the later one for ImageNet's models."""

MODELS = (
    Model(title="VGG-16", table="vgg16-cifar", density=0.001, forward=0.021, backward=0.0313,
          select=0.0767, exchange=0.207, layers=0.021 + 0.0313 + 0.0737 + 0.205, gather=_SMALL),
    Model(title="ResNet-50", table="resnet50", density=0.001, forward=0.09, backward=0.12,
          select=0.1376, exchange=0.3185, layers=0.09 + 0.12 + 0.1321 + 0.165, gather=_LATER,
          dense=1.45, over_dense=2.86, over_whole=1.31, bound=1.52),
    Model(title="Inception-v4", table="inception-v4", density=0.001, forward=0.305,
          backward=0.524, select=0.2368, exchange=0.5357,
          layers=0.305 + 0.524 + 0.22 + 0.19409, gather=_LATER,
          dense=3.85, over_dense=3.08, over_whole=1.28, bound=1.29),
    Model(title="LSTM-PTB", table="lstm-ptb", density=0.004, forward=0.076, backward=0.13089,
          select=0.37548, exchange=0.437, layers=0.076 + 0.13089 + 0.33875 + 0.3705,
          gather=_SMALL, dense=7.80, over_dense=8.52, over_whole=1.11, bound=1.28),
)  # fmt: skip
