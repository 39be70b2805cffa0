"""What a simulated run came to, and what that is in seconds of a line, in money and in joules.

A step is the difference of two runs, `few` steps and `many`: see `thinwire.planner.simulate`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from thinwire.planner.rounds import Wire

if TYPE_CHECKING:
    from thinwire.cluster import Cluster, Node
    from thinwire.wire.virtual import World

__all__ = ["Totals", "joules_per_sample", "line_time", "price_per_sample", "totals_of"]


@dataclass
class Totals:
    """What a run came to."""

    elapsed: float = 0.0
    busy: dict[int, float] = field(default_factory=dict)
    sent: dict[int, float] = field(default_factory=dict)
    received: dict[int, float] = field(default_factory=dict)
    pairs: dict[tuple[int, int], float] = field(default_factory=dict)
    phases: list[dict[str, float]] = field(default_factory=list)
    spans: list[tuple[int, str, int, int, int, int]] = field(default_factory=list)


def totals_of(world: World, placement: list[int]) -> Totals:
    """What a world that has run came to; `placement` is the node of each worker."""
    ends = world.endpoints
    nodes = {end.node: end for end in ends}
    sent, received = dict.fromkeys(nodes, 0.0), dict.fromkeys(nodes, 0.0)
    pairs: dict[tuple[int, int], float] = {}
    for end in ends:
        for peer, meter in end.meter.peers.items():
            if peer >= 0 and meter.sent:
                pair = end.node, ends[peer].node
                pairs[pair] = pairs.get(pair, 0.0) + meter.sent
                sent[pair[0]] += meter.sent
                received[pair[1]] += meter.sent
    return Totals(
        elapsed=world.elapsed,
        busy={i: world.processors[i].busy_ns / 1e9 for i in nodes},
        sent=sent,
        received=received,
        pairs=pairs,
        phases=[end.meter.phases.seconds() for end in ends[: len(placement)]],
        spans=world.spans or [],
    )


def line_time(cluster: Cluster, few: Totals, many: Totals, steps: int) -> float:
    """Seconds per step for which the busiest line on anybody's path carries bytes."""
    wire, loads = Wire(cluster), {}
    for pair, total in many.pairs.items():
        nbytes = (total - few.pairs.get(pair, 0.0)) / steps
        for line, rate in wire.links(*pair):
            loads[line] = loads.get(line, 0.0) + nbytes / rate
    return max(loads.values(), default=0.0)


def price_per_sample(cluster: Cluster, few: Totals, many: Totals, samples: float) -> float | None:
    """Per sample: hours of the nodes in use, and bytes from one site to another."""
    nodes, sites = cluster.nodes, {site.name: site for site in cluster.sites}
    prices = [nodes[i].price for i in many.busy]
    if any(price is None for price in prices):
        return None
    total = (many.elapsed - few.elapsed) / 3600.0 * sum(price or 0.0 for price in prices)
    for (src, dst), nbytes in many.pairs.items():
        site = sites.get(nodes[src].site)
        if site is not None and site.traffic_price and nodes[dst].site != site.name:
            total += site.traffic_price * (nbytes - few.pairs.get((src, dst), 0.0)) / 1e9
    return total / samples


def joules_per_sample(cluster: Cluster, few: Totals, many: Totals, samples: float) -> float | None:
    """Per sample, of the nodes in use, their idle time included."""
    nodes = cluster.nodes
    if any(nodes[i].power_idle is None for i in many.busy):
        return None
    elapsed, total = many.elapsed - few.elapsed, 0.0
    for index, node in ((i, nodes[i]) for i in many.busy):
        busy = many.busy[index] - few.busy.get(index, 0.0)
        moved = (
            (many.sent[index] - few.sent.get(index, 0.0)) / node.egress,
            (many.received[index] - few.received.get(index, 0.0)) / node.ingress,
        )
        total += _draw(node, elapsed, busy, max(moved))
    return total / samples


def _draw(node: Node, elapsed: float, busy: float, network: float) -> float:
    assert node.power_idle is not None
    assert node.power_busy is not None
    joules = node.power_idle * (elapsed - busy) + node.power_busy * busy
    return joules + (node.power_network or 0.0) * network
