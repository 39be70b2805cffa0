"""How far simulated steps have been from measured ones: docs/fidelity.md has the table."""

from __future__ import annotations

__all__ = ["KNOWN_ERROR"]

KNOWN_ERROR = (
    "From measured clusters, on shaped links of one machine, steps were predicted within 5 % "
    "(median of 37 rows; the worst 27 %, nearly all too fast): benchmarks/fidelity.py, "
    "docs/fidelity.md. A cluster that is described and not measured may be farther off."
)
"""A sentence that stands beside every simulated plan."""
