"""How far simulated steps have been from measured ones: docs/fidelity.md has the table."""

from __future__ import annotations

__all__ = ["KNOWN_ERROR"]

KNOWN_ERROR = (
    "Not yet held against measured runs: benchmarks/fidelity.py does that, docs/fidelity.md says "
    "what the model leaves out."
)
"""A sentence that stands beside every simulated plan."""
