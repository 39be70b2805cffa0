"""Tuned training settings per task and method, so that every method is compared at its best.

All methods had the same tuning budget on each task: `benchmarks/tune.py` tries the same grid of
learning rates for each and takes the one with the earliest median time to the target. The figures
are in docs/benchmarks.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["DEFAULT_METHODS", "RECIPES", "TARGETS"]

DEFAULT_METHODS = (
    "alone",
    "ssgd",
    "ssgd:accumulate=8",
    "topk",
    "gtopk",
    "localsgd:pace=speed",
)
"""What `thinwire compare` compares when not told otherwise."""

RECIPES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "digits": {
        "*": {"batch": 8, "epochs": 5.2, "momentum": 0.0, "lr": 0.1},
        "alone": {"lr": 0.05},
        "ssgd": {"lr": 0.2},
        "ssgd accumulate=8": {"lr": 0.1},
        "dgc": {"lr": 0.05},
        "gtopk": {"lr": 0.2},
        "oktopk": {"lr": 0.2},
        "powersgd": {"lr": 0.2},
    },
}
"""Task, then method label or name ("*": every method), to training settings."""

TARGETS: Mapping[str, str] = {"digits": "0.95"}
"""The accuracy to which time is measured, by task."""
