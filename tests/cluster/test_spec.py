from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from thinwire.cluster import Cluster, Link, Node, Site, Trace
from thinwire.errors import InputError

NODE = Node(name="a", flops=1e10, memory_rate=8e9, egress=12.5e6, ingress=12.5e6)


def cluster_of(*nodes: Node, **fields: Any) -> Cluster:
    return Cluster(**({"name": "c", "nodes": nodes, "default_latency": 0.001} | fields))


def like(n: int, **fields: Any) -> tuple[Node, ...]:
    return tuple(replace(NODE, name=f"n{i}", **fields) for i in range(n))


def test_a_node_is_as_fast_as_its_devices_over_its_slowdown():
    assert replace(NODE, devices=4, slowdown=2.0).rate == 2e10


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", " a"),
        ("name", "a\nb"),
        ("flops", 0.0),
        ("flops", -1.0),
        ("memory_rate", math.nan),
        ("egress", math.inf),
        ("ingress", "100 Mbit/s"),
        ("devices", 0),
        ("devices", 1.5),
        ("slowdown", 0.5),
        ("jitter", 1.0),
        ("jitter", -0.1),
        ("power_network", 3.0),
        ("power_idle", 3.0),
        ("inner", Link(latency=1e-6)),
        ("speed", Trace(times=(0.0,), values=(0.0,))),
        ("egress_scale", Trace(times=(0.0, 1.0), values=(1.0, 0.0))),
    ],
)
def test_a_node_refuses_a_field_out_of_range_and_names_it(field: str, value: Any):
    with pytest.raises(InputError, match=field):
        replace(NODE, **{field: value})


def test_power_while_computing_is_at_least_that_while_idle():
    assert replace(NODE, power_idle=10.0, power_busy=10.0, power_network=0.0).power_busy == 10.0
    with pytest.raises(InputError, match=r"power_busy = 5\.0"):
        replace(NODE, power_idle=10.0, power_busy=5.0)


def test_links_and_sites_refuse_what_would_carry_nothing():
    for wrong in (0.0, -1.0, math.nan):
        with pytest.raises(InputError, match="rate"):
            Link(rate=wrong, latency=0.0)
        with pytest.raises(InputError, match="uplink"):
            Site(name="s", uplink=wrong)
    with pytest.raises(InputError, match="latency"):
        Link(latency=-1.0)


def test_latency_is_the_links_own_or_the_default_with_overhead():
    cluster = cluster_of(
        *like(3), links={(0, 1): Link(latency=0.5)}, default_latency=0.25, message_overhead=0.125
    )
    assert cluster.latency(0, 1) == 0.625
    assert cluster.latency(1, 0) == 0.375
    assert cluster.latency(2, 2) == 0.0


def test_pair_rate_is_directed():
    cluster = cluster_of(*like(2), links={(0, 1): Link(rate=5.0, latency=0.0)})
    assert cluster.pair_rate(0, 1) == 5.0
    assert cluster.pair_rate(1, 0) is None


def test_only_traffic_between_sites_passes_their_lines():
    north, south = Site(name="north", uplink=1e6), Site(name="south")
    nodes = (
        replace(NODE, name="a", site="north"),
        replace(NODE, name="b", site="north"),
        replace(NODE, name="c", site="south"),
        replace(NODE, name="d"),
        replace(NODE, name="e"),
    )
    cluster = cluster_of(*nodes, sites=(north, south))
    assert cluster.path_sites(0, 1) == (None, None)
    assert cluster.path_sites(0, 2) == (north, south)
    assert cluster.path_sites(2, 0) == (south, north)
    assert cluster.path_sites(0, 3) == (north, None)
    assert cluster.path_sites(3, 4) == (None, None)


def test_speeds_are_relative_to_the_fastest_node_the_first_of_equals():
    nodes = (replace(NODE, slowdown=2.0), *like(2), replace(NODE, name="z", slowdown=4.0))
    cluster = cluster_of(*nodes)
    assert cluster.fastest() == 1
    assert cluster.relative_speeds() == (0.5, 1.0, 1.0, 0.25)


def full(n: int, **fields: Any) -> dict[tuple[int, int], Link]:
    return {(i, j): Link(**fields) for i in range(n) for j in range(n) if i != j}


def test_a_network_of_like_lines_is_uniform_whatever_the_nodes_compute():
    cluster = cluster_of(*like(2), replace(NODE, slowdown=3.0), message_overhead=0.5)
    assert cluster.uniform() == (0.501, 12.5e6)
    assert cluster_of(NODE).uniform() == (0.001, 12.5e6)
    assert cluster_of(*like(3), links=full(3, latency=0.002)).uniform() == (0.002, 12.5e6)
    wide = full(3, latency=0.001, rate=1e9)
    assert cluster_of(*like(3), links=wide).uniform() == (0.001, 12.5e6)
    site = Site(name="s", uplink=1.0)
    assert cluster_of(*like(3, site="s"), sites=(site,)).uniform() == (0.001, 12.5e6)


@pytest.mark.parametrize(
    "cluster",
    [
        cluster_of(*like(2), replace(NODE, egress=1e6)),
        cluster_of(*like(2), replace(NODE, ingress=1e6)),
        cluster_of(*like(3, egress=1e7)),
        cluster_of(*like(3), links={(0, 1): Link(latency=0.002)}),
        cluster_of(*like(3), links={(0, 1): Link(latency=0.001, rate=1e6)}),
        cluster_of(*like(3), links=full(3, latency=0.001, rate=1e6)),
        cluster_of(*like(3), latency_jitter=0.1),
        cluster_of(*like(2), replace(NODE, egress_scale=Trace(times=(0.0,), values=(0.5,)))),
        cluster_of(*like(2, site="s"), NODE, sites=(Site(name="s", downlink=1.0),)),
    ],
)
def test_an_uneven_or_shared_network_is_not_uniform(cluster: Cluster):
    assert cluster.uniform() is None


def test_a_selection_keeps_what_joins_the_selected():
    sites = (Site(name="s", uplink=1.0), Site(name="t", uplink=2.0))
    nodes = tuple(replace(n, site=s) for n, s in zip(like(3), ("s", "t", "t"), strict=True))
    links = {(0, 1): Link(latency=1.0), (1, 2): Link(latency=2.0), (2, 1): Link(latency=3.0)}
    part = cluster_of(*nodes, sites=sites, links=links).select([2, 1])
    assert [node.name for node in part.nodes] == ["n2", "n1"]
    assert part.links == {(1, 0): Link(latency=2.0), (0, 1): Link(latency=3.0)}
    assert part.sites == (sites[1],)


@pytest.mark.parametrize("indices", [[], [0, 0], [3], [-1]])
def test_a_selection_of_wrong_nodes_is_refused(indices: list[int]):
    with pytest.raises(InputError, match="cannot be selected"):
        cluster_of(*like(3)).select(indices)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"nodes": ()}, "at least one node"),
        ({"nodes": (NODE, NODE)}, "'a' is used twice"),
        ({"nodes": (replace(NODE, site="s"),)}, "no sites"),
        ({"sites": (Site(name="s"),)}, "'s' has no node"),
        (
            {"nodes": (replace(NODE, site="sit"),), "sites": (Site(name="site"),)},
            "did you mean 'site'",
        ),
        ({"links": {(0, 0): Link(latency=0.0)}}, r"link \(0, 0\)"),
        ({"links": {(0, 5): Link(latency=0.0)}}, r"link \(0, 5\).*0 to 0"),
        ({"default_latency": -1.0}, "default_latency = -1.0"),
        ({"latency_jitter": 1.0}, "latency_jitter = 1.0"),
        ({"message_overhead": math.nan}, "message_overhead = nan"),
    ],
)
def test_a_cluster_that_makes_no_sense_is_refused(fields: dict[str, Any], said: str):
    with pytest.raises(InputError, match=said):
        cluster_of(NODE, **fields)
