"""How far simulated steps have been from measured ones: docs/fidelity.md has the table."""

from __future__ import annotations

__all__ = ["KNOWN_ERROR"]

KNOWN_ERROR = (
    "From measured clusters, on shaped links of one machine, steps were predicted within 5 % "
    "(medians of three runs of 37 rows; the worst 18, 17 and 27 %): benchmarks/fidelity.py, "
    "docs/fidelity.md. A cluster that is described and not measured may be farther off."
)
"""A sentence that stands beside every simulated plan."""
