"""A cluster's TOML (schema 1) into a `Cluster`; every complaint names the file and the line."""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import Any

from thinwire.cluster._fields import FieldError
from thinwire.cluster._lines import line_of, toml_lines
from thinwire.cluster._matrix import read_matrix
from thinwire.cluster._paths import Paths
from thinwire.cluster._price import parse_price, parse_traffic_price
from thinwire.cluster._table import Source, Table, number_of, text_of, whole_of
from thinwire.cluster.links import link_latency, link_rate
from thinwire.cluster.spec import Cluster, Link, Node, Site
from thinwire.cluster.trace import Trace
from thinwire.errors import InputError
from thinwire.passes import KERNELS
from thinwire.units import parse_compute, parse_power, parse_rate, parse_time

__all__ = ["SCHEMA", "cluster_from_toml", "syntax_line"]

SCHEMA = 1
_MAX_COUNT = 100_000


def _numbers(value: Any) -> tuple[float, ...]:
    if not isinstance(value, list):
        raise InputError(f"{value!r} must be a list of numbers")
    return tuple(map(number_of, value))


def _count(value: Any) -> int:
    if not 1 <= whole_of(value) <= _MAX_COUNT:
        raise InputError(f"{value!r} must be 1 to {_MAX_COUNT}")
    return value


_NODE_READERS: dict[str, Callable[[Any], Any]] = {
    "flops": parse_compute,
    "memory_rate": parse_rate,
    "egress": link_rate,
    "ingress": link_rate,
    "devices": whole_of,
    "slowdown": number_of,
    "jitter": number_of,
    "site": text_of,
    "power_idle": parse_power,
    "power_busy": parse_power,
    "power_network": parse_power,
    "price": parse_price,
}
_TRACES = ("speed", "egress_scale", "ingress_scale")
_DEFAULT_KEYS = (*_NODE_READERS, "kernel_rates", "link", "inner", *_TRACES)
_NODE_KEYS = ("name", "count", *_DEFAULT_KEYS)
_TOP_KEYS = (
    "schema",
    "name",
    "description",
    "latency",
    "message_overhead",
    "latency_jitter",
    "defaults",
    "nodes",
    "sites",
    "links",
    "rates",
    "latencies",
)
_NEEDED = {
    "flops": 'has no flops: add its effective rate in training, flops = "10 GFLOP/s"',
    "memory_rate": "has no memory_rate: add the rate of its memory-bound work, "
    'memory_rate = "8 GB/s"',
    "egress": 'has no route to the others: add link = "100 Mbit/s" (or egress and ingress)',
    "ingress": 'has no route from the others: add link = "100 Mbit/s" (or egress and ingress)',
}


def cluster_from_toml(
    text: str, source: str = "<text>", folder: str | os.PathLike[str] | None = None
) -> Cluster:
    """Read a cluster description.

    Args:
        text: TOML of schema 1, see docs/cluster.md.
        source: the name for messages, usually the file's.
        folder: where files that the text names are looked for; None: it may name none.

    Raises:
        InputError: anything wrong, as "source:line: what, and what is allowed".
    """
    text = text.removeprefix("\ufeff")
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{source}:{syntax_line(text, error)}: not valid TOML: {error}") from None
    place = Source(
        name=source,
        lines=toml_lines(text),
        folder=None if folder is None else FilePath(folder),
    )
    top = Table(place, (), values)
    schema = top.need("schema", whole_of, f"schema is missing: add schema = {SCHEMA} as first line")
    if schema != SCHEMA:
        top.fail("schema", f"schema = {schema}: this version of thinwire reads schema {SCHEMA}")
    top.only(_TOP_KEYS, "a cluster")
    return _cluster(top)


def syntax_line(text: str, error: tomllib.TOMLDecodeError) -> int:
    """Where a text stops being TOML."""
    found = re.search(r"at line (\d+)", str(error))
    return int(found[1]) if found else max(len(text.splitlines()), 1)


def _cluster(top: Table) -> Cluster:
    sites = tuple(map(_site, top.tables("sites")))
    nodes, tables, groups = _nodes(top)
    paths = Paths(nodes, groups | _members(sites, nodes))
    default_latency = top.need(
        "latency", link_latency, 'latency is missing: add the one-way latency, latency = "0.3 ms"'
    )
    for key in ("rates", "latencies"):
        if (matrix := top.table(key)) is not None:
            read_matrix(matrix, key, paths)
    for table in top.tables("links"):
        _link_entry(table, paths)
    try:
        return Cluster(
            name=top.need("name", text_of, 'name is missing: add name = "office"'),
            description=top.get("description", text_of, ""),
            nodes=tuple(nodes),
            sites=sites,
            default_latency=default_latency,
            links=paths.links(default_latency),
            message_overhead=top.get("message_overhead", parse_time, 0.0),
            latency_jitter=top.get("latency_jitter", number_of, 0.0),
        )
    except FieldError as error:
        match error.path:
            case ("nodes", int(index), str(key)):
                tables[index].fail(key, error)
            case path:
                top.source.fail(path, error)


def _members(sites: tuple[Site, ...], nodes: list[Node]) -> dict[str, list[int]]:
    members: dict[str, list[int]] = {site.name: [] for site in sites}
    for i, node in enumerate(nodes):
        if node.site in members:
            members[node.site].append(i)
    return members


def _site(table: Table) -> Site:
    table.only(("name", "uplink", "downlink", "traffic_price"), "a site")
    return table.build(
        Site,
        {},
        name=table.need("name", text_of, "a site needs a name"),
        uplink=table.get("uplink", parse_rate, None),
        downlink=table.get("downlink", parse_rate, None),
        traffic_price=table.get("traffic_price", parse_traffic_price, None),
    )


def _nodes(top: Table) -> tuple[list[Node], list[Table], dict[str, list[int]]]:
    """The nodes, the table each came from, and the indices in each group (`count`)."""
    defaults = top.table("defaults")
    if defaults is not None:
        defaults.only(_DEFAULT_KEYS, "defaults")
        _expand_link(defaults)
    nodes: list[Node] = []
    tables: list[Table] = []
    groups: dict[str, list[int]] = {}
    for table in top.tables("nodes"):
        table.only(_NODE_KEYS, "a node")
        _expand_link(table)
        if defaults is not None:
            table.items = {**defaults.items, **table.items}
        name = table.need("name", text_of, "a node needs a name")
        if "count" not in table.items:
            nodes.append(_node(table, name))
            tables.append(table)
            continue
        if name in groups:
            table.fail("name", f"the group {name!r} is there twice")
        count = table.get("count", _count, 1)
        first = _node(table, f"{name}-0")
        groups[name] = list(range(len(nodes), len(nodes) + count))
        nodes += (dataclasses.replace(first, name=f"{name}-{i}") for i in range(count))
        tables += [table] * count
    _check_groups(top, nodes, tables, groups)
    return nodes, tables, groups


def _check_groups(
    top: Table, nodes: list[Node], tables: list[Table], groups: dict[str, list[int]]
) -> None:
    taken = {node.name for node in nodes}
    taken.update(str(site.items["name"][0]) for site in top.tables("sites"))
    for name, indices in groups.items():
        if name in taken:
            tables[indices[0]].fail(
                "name", f"the name {name!r} of a group is also that of a node or site"
            )


def _expand_link(table: Table) -> None:
    """Turn `link` into egress and ingress, remembering where it was written."""
    if "link" not in table.items:
        return
    for key in ("egress", "ingress"):
        if key in table.items:
            table.fail(key, f"{key} beside link, which sets both: give link, or egress and ingress")
    table.get("link", link_rate, 0.0)
    link = table.items.pop("link")
    table.items.update(egress=link, ingress=link)


def _node(table: Table, name: str) -> Node:
    for key, hint in _NEEDED.items():
        if key not in table.items:
            table.fail("name", f"node {name!r} {hint}")
    fields = {
        key: table.get(key, read, None) for key, read in _NODE_READERS.items() if key in table.items
    }
    for key in _TRACES:
        if (trace := table.table(key)) is not None:
            fields[key] = _trace(trace)
    if (kernels := table.table("kernel_rates")) is not None:
        kernels.only(tuple(KERNELS), "kernel_rates")
        fields["kernel_rates"] = {key: kernels.get(key, parse_rate, 0.0) for key in kernels.items}
    if (inner := table.table("inner")) is not None:
        fields["inner"] = _inner(inner)
    return table.build(Node, {}, name=name, **fields)


def _inner(table: Table) -> Link:
    table.only(("rate", "latency"), "inner")
    return table.build(
        Link,
        {},
        rate=table.get("rate", parse_rate, None),
        latency=table.need("latency", parse_time, 'inner has no latency: add latency = "5 us"'),
    )


def _trace(table: Table) -> Trace:
    period = table.get("period", parse_time, None)
    if "file" in table.items:
        table.only(("file", "scale", "period"), "a trace from a file")
        name = table.need("file", text_of, "")
        scale = table.get("scale", number_of, 1.0)
        path = table.source.file(table.place("file"), name)
        return table.build(Trace.from_csv, {}, path=path, scale=scale, period=period)
    table.only(("times_s", "values", "period", "file"), "a trace")
    return table.build(
        Trace,
        {"times": "times_s"},
        times=table.need("times_s", _numbers, "a trace needs times_s and values, or file"),
        values=table.need("values", _numbers, "a trace needs times_s and values, or file"),
        period=period,
    )


_ENDS = "the name of a node, group or site, or a list of them"


def _link_entry(table: Table, paths: Paths) -> None:
    table.only(("from", "to", "rate", "latency", "both_ways"), "a link")
    if "rate" not in table.items and "latency" not in table.items:
        table.fail("from", "a link needs a rate or a latency: without either it says nothing")
    sources, targets = (
        table.need(key, lambda value: paths.find(_names(value)), f"a link needs {key}: {_ENDS}")
        for key in ("from", "to")
    )
    both = table.get("both_ways", _flag, True)
    pairs = paths.between(sources, targets, both)
    if not pairs:
        table.fail("to", "the link joins no two different nodes")
    for key, read in (("rate", link_rate), ("latency", link_latency)):
        if key in table.items:
            value = table.get(key, read, 0.0)
            line = line_of(table.source.lines, table.place(key))
            for pair in pairs:
                if problem := paths.set(key, pair, value, f"{table.source.name}:{line}"):
                    table.fail(key, problem)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{value!r} must be true or false")
    return value


def _names(value: Any) -> list[str]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise InputError(f"{value!r} must be {_ENDS}")
    return names
