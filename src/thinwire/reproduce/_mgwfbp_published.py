"""MG-WFBP's measurements in figures: four networks, two precisions, on two clusters of V100s.

From the authors' own scripts (HKBU-HPML/MG-WFBP and the plotting script of its extended version).
Times are seconds of one iteration.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CASES", "NETWORKS", "SCHEDULES", "WORKERS", "Case"]

WORKERS = 16
"""Not said beside the figures; the other published start-ups are for 2 to 8 workers."""

NETWORKS: dict[str, dict[int, tuple[float, float]]] = {
    "10 GbE": {8: (5.2303e-4, 8.5707e-10), 16: (9.0810e-4, 7.3957e-10)},
    "56 Gbit/s InfiniBand": {8: (9.7537e-5, 3.0568e-10), 16: (2.3584e-4, 4.0595e-10)},
}
"""Start-up and seconds a byte of an all-reduce by number of workers, as the authors measured them
with messages of up to 2 MB."""

SCHEDULES = ("WFBP", "one message", "MG-WFBP")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One model with one precision on one network.

    Args:
        model: as in `thinwire.models`.
        title: as published.
        itemsize: bytes of a gradient's element.
        network: of `NETWORKS`.
        compute: seconds of forward and backward.
        seconds: of an iteration, by `SCHEDULES`.
    """

    model: str
    title: str
    itemsize: int
    network: str
    compute: float
    seconds: tuple[float, float, float]

    @property
    def precision(self) -> str:
        """In words."""
        return "FP32" if self.itemsize == 4 else "FP16"


_TEN, _FAST = NETWORKS

_ROWS = (
    ("resnet152", "ResNet-152", 4, 0.883118, (1.23344, 1.36015, 1.12611),
     (1.08207, 1.14350, 1.08926)),
    ("resnet152", "ResNet-152", 2, 0.388588, (0.75714, 0.63633, 0.62970),
     (0.53105, 0.51822, 0.48627)),
    ("inception-v4", "Inception-v4", 4, 0.610822, (0.94373, 0.89998, 0.78058),
     (0.76736, 0.74623, 0.66134)),
    ("inception-v4", "Inception-v4", 2, 0.279731, (0.59102, 0.47712, 0.42318),
     (0.43017, 0.37320, 0.36382)),
    ("densenet161", "DenseNet-161", 4, 0.477655, (0.83239, 0.68258, 0.62801),
     (0.60190, 0.59681, 0.52739)),
    ("densenet161", "DenseNet-161", 2, 0.253019, (0.61491, 0.39936, 0.36042),
     (0.40001, 0.32996, 0.32105)),
    ("densenet201", "DenseNet-201", 4, 0.360877, (0.76360, 0.51283, 0.45660),
     (0.51238, 0.43779, 0.40594)),
    ("densenet201", "DenseNet-201", 2, 0.215182, (0.61420, 0.40646, 0.36181),
     (0.39771, 0.35440, 0.33132)),
)  # fmt: skip

CASES = tuple(
    Case(model=model, title=title, itemsize=itemsize, network=network, compute=compute,
         seconds=seconds)
    for model, title, itemsize, compute, slow, fast in _ROWS
    for network, seconds in ((_TEN, slow), (_FAST, fast))
)  # fmt: skip
