"""A `Cluster` as TOML that reads back equal, float by float."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from decimal import Context, Decimal, localcontext
from typing import Any

from thinwire.cluster._price import price_text
from thinwire.cluster.spec import Cluster, Link, Node
from thinwire.cluster.trace import Trace
from thinwire.units import Quantity, exact_text, parse_rate, parse_time

__all__ = ["cluster_to_toml"]

_QUANTITIES: dict[str, Quantity] = {
    "flops": "compute",
    "memory_rate": "byte_rate",
    "egress": "rate",
    "ingress": "rate",
    "power_idle": "power",
    "power_busy": "power",
    "power_network": "power",
}
_NODE_DEFAULTS = {
    f.name: f.default for f in dataclasses.fields(Node) if f.default is not dataclasses.MISSING
}


def cluster_to_toml(cluster: Cluster) -> str:
    """The cluster as schema 1: `cluster_from_toml` makes an equal one of it.

    Runs of like nodes named x-0, x-1 ... are written once with a count.
    """
    lines = [
        "schema = 1",
        f"name = {_quoted(cluster.name)}",
        f"description = {_quoted(cluster.description)}",
        f"latency = {_quantity(cluster.default_latency, 'time')}",
    ]
    if cluster.message_overhead:
        lines.append(f"message_overhead = {_quantity(cluster.message_overhead, 'time')}")
    if cluster.latency_jitter:
        lines.append(f"latency_jitter = {cluster.latency_jitter!r}")
    for site in cluster.sites:
        lines += ["", "[[sites]]", f"name = {_quoted(site.name)}"]
        for key in ("uplink", "downlink"):
            if (value := getattr(site, key)) is not None:
                lines.append(f"{key} = {_quantity(value, 'rate')}")
        if site.traffic_price is not None:
            lines.append(f"traffic_price = {_quoted(price_text(site.traffic_price, 'GB'))}")
    for name, count, node in _runs(cluster):
        lines += ["", "[[nodes]]", f"name = {_quoted(name)}"]
        lines += [f"count = {count}"] if count else []
        lines += _node_lines(node)
    return "\n".join([*lines, *_link_lines(cluster)]) + "\n"


def _quoted(text: str) -> str:
    # JSON's escapes are TOML's too, except that TOML wants DEL escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _quantity(value: float, quantity: Quantity) -> str:
    return _quoted(exact_text(value, quantity))


def _runs(cluster: Cluster) -> Iterator[tuple[str, int, Node]]:
    """Name, count (0: a node by itself) and a node of every entry to be written."""
    taken = {node.name for node in cluster.nodes} | {site.name for site in cluster.sites}
    i = 0
    while i < cluster.size:
        node = cluster.nodes[i]
        group = node.name.removesuffix("-0")
        count = 0
        if group != node.name and group == group.strip() != "" and group not in taken:
            while i + count < cluster.size and cluster.nodes[i + count] == dataclasses.replace(
                node, name=f"{group}-{count}"
            ):
                count += 1
        if count > 1:
            yield group, count, node
        else:
            yield node.name, 0, node
        i += max(count, 1)


def _node_lines(node: Node) -> Iterator[str]:
    for field in dataclasses.fields(Node):
        key, value = field.name, getattr(node, field.name)
        if key == "name" or value == {} or (key in _NODE_DEFAULTS and value == _NODE_DEFAULTS[key]):
            continue
        if isinstance(value, Trace):
            yield f"{key} = {_trace(value)}"
        elif isinstance(value, Mapping):
            rates = (f"{kind} = {_quantity(rate, 'byte_rate')}" for kind, rate in value.items())
            yield f"{key} = {{ {', '.join(rates)} }}"
        elif isinstance(value, Link):
            yield f"{key} = {{ {', '.join(_link_fields(value))} }}"
        elif key == "price":
            yield f"{key} = {_quoted(price_text(value, 'h'))}"
        elif key in _QUANTITIES:
            yield f"{key} = {_quantity(value, _QUANTITIES[key])}"
        elif isinstance(value, str):
            yield f"{key} = {_quoted(value)}"
        else:
            yield f"{key} = {value!r}"


def _trace(trace: Trace) -> str:
    parts = [f"times_s = {list(trace.times)!r}", f"values = {list(trace.values)!r}"]
    if trace.period is not None:
        parts.append(f"period = {_quantity(trace.period, 'time')}")
    return f"{{ {', '.join(parts)} }}"


def _link_fields(link: Link) -> list[str]:
    rate = [] if link.rate is None else [f"rate = {_quantity(link.rate, 'rate')}"]
    return [*rate, f"latency = {_quantity(link.latency, 'time')}"]


def _link_lines(cluster: Cluster) -> list[str]:
    """Matrices where every pair has a rate of its own, links otherwise."""
    links, n = cluster.links, cluster.size
    full = bool(links) and len(links) == n * (n - 1)
    if not full or any(link.rate is None for link in links.values()):
        return _link_tables(cluster)
    rates = _matrix(cluster, "rates", lambda link: link.rate or 0.0, parse_rate, ("Mbit/s", "B/s"))
    if all(link.latency == cluster.default_latency for link in links.values()):
        return rates
    return rates + _matrix(cluster, "latencies", lambda link: link.latency, parse_time, ("ms", "s"))


def _matrix(
    cluster: Cluster,
    key: str,
    value: Callable[[Link], float],
    parse: Callable[[str], float],
    units: tuple[str, str],
) -> list[str]:
    """Rows of numbers, in the second unit where the first would not be exact."""
    n = cluster.size
    numbers = [[value(cluster.links[i, j]) if i != j else 0.0 for j in range(n)] for i in range(n)]
    unit = units[1]
    scaled = [[_plain(Decimal(repr(float(x)))) for x in row] for row in numbers]
    with localcontext(Context(prec=60)):
        scale = Decimal(repr(parse(f"1 {units[0]}")))
        rows = [[_plain(Decimal(repr(float(x))) / scale) for x in row] for row in numbers]
    if all(
        parse(f"{float(cell)!r} {units[0]}") == x
        for row, cells in zip(numbers, rows, strict=True)
        for x, cell in zip(row, cells, strict=True)
    ):
        unit, scaled = units[0], rows
    body = [f"  [{', '.join(row)}]," for row in scaled]
    return ["", f"[{key}]", f"unit = {_quoted(unit)}", "matrix = [", *body, "]"]


def _plain(number: Decimal) -> str:
    return repr(float(number)) if number != number.to_integral_value() else f"{number:f}"


def _link_tables(cluster: Cluster) -> list[str]:
    """Links gathered: one table for all sources with like links to the same targets."""
    targets: dict[Link, dict[int, list[int]]] = {}
    for (src, dst), link in sorted(cluster.links.items()):
        targets.setdefault(link, {}).setdefault(src, []).append(dst)
    lines: list[str] = []
    for link, by_source in targets.items():
        sources: dict[tuple[int, ...], list[int]] = {}
        for src, found in by_source.items():
            sources.setdefault(tuple(found), []).append(src)
        for found, together in sources.items():
            names: list[Any] = [cluster.nodes[i].name for i in together]
            others: list[Any] = [cluster.nodes[i].name for i in found]
            lines += [
                "",
                "[[links]]",
                f"from = [{', '.join(map(_quoted, names))}]",
                f"to = [{', '.join(map(_quoted, others))}]",
                "both_ways = false",
                *_link_fields(link),
            ]
    return lines
