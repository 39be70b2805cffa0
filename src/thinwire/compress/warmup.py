"""Density warm-up: many entries at first, then fewer and fewer."""

from __future__ import annotations

from thinwire.compress.topk import check_density, num_kept
from thinwire.errors import InputError

__all__ = ["STAGES", "check_warmup", "num_warmed", "warmed"]

STAGES = 4
"""Densities on the way, each for an equal part of the warm-up."""


def warmed(density: float, step: int, warmup: int) -> float:
    """The share of elements to keep at a step: density^(1/5), ^(2/5), … for an equal number of
    steps each, then the density itself. For 0.001 these are 25, 6.3, 1.6, 0.4 and 0.1 %.

    Args:
        density: what it ends at, above 0, at most 1.
        step: counted from 0.
        warmup: steps before the density is reached, >= 0.

    >>> [warmed(0.001, step, 8) for step in (0, 1, 2, 4, 7, 8)]
    [0.251189, 0.251189, 0.0630957, 0.0158489, 0.00398107, 0.001]

    Reference: Lin et al., "Deep Gradient Compression: Reducing the Communication Bandwidth for
    Distributed Training", ICLR 2018.
    """
    if step >= warmup:
        return density
    stage = step * STAGES // warmup
    # Six digits: a last bit in which two machines' powers differ must not become another k.
    return float(f"{density ** ((stage + 1) / (STAGES + 1)):.6g}")


def num_warmed(density: float, step: int, warmup: int, numel: int) -> int:
    """Entries to keep of `numel` at a step, counted from 0; at least one."""
    return num_kept(warmed(density, step, warmup), numel)


def check_warmup(density: float, warmup: int) -> None:
    """Reject what is not a density, or no number of steps.

    Raises:
        InputError: naming the setting.
    """
    check_density(density)
    if warmup < 0:
        raise InputError(f"warmup = {warmup!r}; a number of steps, at least 0")
