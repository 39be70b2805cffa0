"""The paths between nodes, gathered from matrices and links until each pair is known."""

from __future__ import annotations

import difflib

from thinwire.cluster.spec import Link, Node
from thinwire.errors import InputError, nearest

__all__ = ["Paths"]

_Pair = tuple[int, int]


class Paths:
    """Rates and latencies of pairs; a pair's attribute may be said once only.

    Args:
        nodes: the cluster's nodes.
        groups: indices by the name of a group or site.
    """

    def __init__(self, nodes: list[Node], groups: dict[str, list[int]]):
        self.nodes = nodes
        self._members = {node.name: [i] for i, node in enumerate(nodes)} | groups
        self._said: dict[str, dict[_Pair, tuple[float, str]]] = {"rate": {}, "latency": {}}

    def find(self, names: list[str]) -> list[int]:
        """Indices of the nodes that these names of nodes, groups or sites stand for."""
        for name in names:
            if name not in self._members:
                # A thousand names would hide the hint; the likely ones do.
                valid = list(self._members)
                if len(valid) > 40:
                    valid = difflib.get_close_matches(name, valid, n=5, cutoff=0.5) or valid[-5:]
                raise InputError(
                    f"no node, group or site is named {name!r}: {nearest(name, valid)}"
                )
        return [i for name in names for i in self._members[name]]

    def between(self, sources: list[int], targets: list[int], both_ways: bool) -> list[_Pair]:
        """Every pair from a source to a different target, once; and back where asked."""
        there = [(i, j) for i in sources for j in targets if i != j]
        back = [(j, i) for i, j in there] if both_ways else []
        return list(dict.fromkeys(there + back))

    def set(self, attribute: str, pair: _Pair, value: float, place: str) -> str:
        """Note a rate or latency; returns what is wrong with it, or nothing."""
        src, dst = (self.nodes[i].name for i in pair)
        said = self._said[attribute]
        if pair in said:
            return (
                f"the {attribute} from {src!r} to {dst!r} is given twice, first in {said[pair][1]}"
            )
        if attribute == "rate" and value == 0:
            return f"no route from {src!r} to {dst!r}: the rate is 0; every pair needs one"
        said[pair] = (value, place)
        return ""

    def links(self, default_latency: float) -> dict[_Pair, Link]:
        """What was said, by pair in rising order."""
        rates, latencies = self._said["rate"], self._said["latency"]
        return {
            pair: Link(
                rate=rates[pair][0] if pair in rates else None,
                latency=latencies[pair][0] if pair in latencies else default_latency,
            )
            for pair in sorted(rates.keys() | latencies.keys())
        }
