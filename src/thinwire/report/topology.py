"""The cluster drawn: sites, machines, their speed and their links, as plain HTML that reflows."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby

from thinwire.cluster import Cluster, Node, cluster_from_toml
from thinwire.errors import ThinwireError
from thinwire.units import format_compute, format_rate, format_time

__all__ = ["cluster_of", "slowness", "topology"]

_SLOWER = 1.05
_MANY = 24


def cluster_of(text: str) -> Cluster | None:
    """The cluster of a record's header; None if there is none or this version cannot read it."""
    if not text.strip():
        return None
    try:
        return cluster_from_toml(text, "the record's cluster")
    except ThinwireError:
        return None


def slowness(cluster: Cluster | None, nodes: Sequence[str]) -> list[float]:
    """Per worker, how many times longer it computes than the fastest node of the cluster."""
    if cluster is None:
        return [1.0] * len(nodes)
    speeds = cluster.relative_speeds()
    by_name = {node.name: 1 / speed for node, speed in zip(cluster.nodes, speeds, strict=True)}
    return [by_name.get(name, 1.0) for name in nodes]


def topology(cluster: Cluster) -> str:
    """Every site as a box with its machines hanging from its switch; like ones together if many."""
    sites = {site.name: site for site in cluster.sites}
    names = list(dict.fromkeys(node.site for node in cluster.nodes))
    slower = slowness(cluster, [node.name for node in cluster.nodes])
    boxes = []
    for name in names:
        members = [
            (node, slow)
            for node, slow in zip(cluster.nodes, slower, strict=True)
            if node.site == name
        ]
        shared = []
        if name and (site := sites.get(name)):
            if site.uplink:
                shared.append(f"shared uplink {format_rate(site.uplink)}")
            if site.downlink:
                shared.append(f"shared downlink {format_rate(site.downlink)}")
        title = name or ("network" if len(names) == 1 else "at no site")
        boxes.append(_site(title, shared, members))
    joined = '<div class="site-grid">' + "".join(boxes) + "</div>"
    return joined + f'<p class="soft">{escape(_network(cluster))}</p>' + _matrix(cluster)


def _site(title: str, shared: list[str], members: list[tuple[Node, float]]) -> str:
    if len(members) > _MANY:
        groups = [
            list(group) for _, group in groupby(members, key=lambda m: (_facts(*m), _traits(*m)))
        ]
    else:
        groups = [[member] for member in members]
    cards = "".join(_card(group) for group in groups)
    said = f' <span class="soft">{escape(", ".join(shared))}</span>' if shared else ""
    return (
        f'<div class="site"><div class="switch"><b>{escape(title)}</b>{said}</div>'
        f'<div class="nodes">{cards}</div></div>'
    )


def _card(group: list[tuple[Node, float]]) -> str:
    node, slow = group[0]
    name = node.name if len(group) == 1 else f"{len(group)} × {node.name} …"
    css = "node slow" if slow >= _SLOWER or node.speed is not None else "node"
    traits = "".join(f'<span class="badge">{escape(each)}</span>' for each in _traits(node, slow))
    facts = "".join(f"<span>{escape(each)}</span>" for each in _facts(node, slow))
    return (
        f'<div class="{css}"><b>{escape(name)}</b>'
        f'<span class="speed"><i style="width:{100 / slow:.0f}%"></i></span>{facts}{traits}</div>'
    )


def _facts(node: Node, slow: float) -> list[str]:
    rate = format_rate(node.egress)
    if node.ingress != node.egress:
        rate = f"{rate} out, {format_rate(node.ingress)} in"
    devices = f", {node.devices} devices" if node.devices > 1 else ""
    return [format_compute(node.rate) + devices, rate]


def _traits(node: Node, slow: float) -> list[str]:
    traits = []
    if slow >= _SLOWER:
        traits.append(f"{slow:.2g}× slower")
    if node.speed is not None:
        traits.append("changing speed")
    if node.egress_scale is not None or node.ingress_scale is not None:
        traits.append("changing link")
    return traits


def _network(cluster: Cluster) -> str:
    if not cluster.links:
        told = f"{format_time(cluster.default_latency)} one way between any two machines"
    else:
        rates = sorted(link.rate for link in cluster.links.values() if link.rate)
        delays = sorted(link.latency for link in cluster.links.values())
        told = f"{len(cluster.links)} links of their own"
        if rates:
            told += f", {_between(format_rate(rates[0]), format_rate(rates[-1]))}"
        told += f", {_between(format_time(delays[0]), format_time(delays[-1]))} one way"
    overhead = cluster.message_overhead
    extra = f"; {format_time(overhead)} of software per message" if overhead else ""
    return f"{told}{extra}. The bar shows a machine's speed against the fastest."


def _between(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _matrix(cluster: Cluster) -> str:
    """Pair rates as a table of shades, where pairs have rates of their own."""
    count = cluster.size
    rates = {pair: link.rate for pair, link in cluster.links.items() if link.rate}
    if not rates or count > _MANY:
        return ""
    top = max(rates.values())
    head = "".join(f"<th>{i}</th>" for i in range(count))
    rows = []
    for src in range(count):
        cells = []
        for dst in range(count):
            rate = rates.get((src, dst))
            if src == dst or rate is None:
                cells.append("<td></td>")
                continue
            shade = (rate / top) ** 0.5
            cells.append(
                f'<td style="--shade:{shade * 100:.0f}%" title="{escape(cluster.nodes[src].name)} '
                f'to {escape(cluster.nodes[dst].name)}: {format_rate(rate)}">'
                f"{rate * 8 / 1e6:.3g}</td>"
            )
        name = escape(cluster.nodes[src].name)
        rows.append(f"<tr><th>{src} {name}</th>{''.join(cells)}</tr>")
    return (
        '<div class="scroll"><table class="matrix"><caption>Mbit/s from row to column</caption>'
        f"<tr><th></th>{head}</tr>{''.join(rows)}</table></div>"
    )
