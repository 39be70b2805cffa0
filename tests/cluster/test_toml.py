from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from thinwire.cluster import (
    Cluster,
    Link,
    Node,
    Site,
    Trace,
    cluster_from_toml,
    cluster_to_toml,
    load_cluster,
)
from thinwire.errors import InputError

# Line 7 is the first of the node.
GOOD = """\
schema = 1
name = "c"
latency = "1 ms"
# one group, one node

[[nodes]]
name = "a"
count = 2
link = "100 Mbit/s"
flops = "10 GFLOP/s"
memory_rate = "8 GB/s"

[[nodes]]
name = "b"
egress = "10 Mbit/s"
ingress = "20 Mbit/s"
flops = "20 GFLOP/s"
memory_rate = "8 GB/s"
"""


def line(text: str, needle: str) -> int:
    return text[: text.index(needle)].count("\n") + 1


def test_groups_count_from_zero():
    cluster = cluster_from_toml(GOOD)
    assert [node.name for node in cluster.nodes] == ["a-0", "a-1", "b"]
    assert cluster.nodes[0].egress == cluster.nodes[0].ingress == 12.5e6
    assert (cluster.nodes[2].egress, cluster.nodes[2].ingress) == (1.25e6, 2.5e6)


def test_a_node_overrides_the_defaults_key_by_key():
    text = """schema = 1
name = "c"
latency = "1 ms"
[defaults]
link = "1 Mbit/s"
flops = "1 FLOP/s"
memory_rate = "1 B/s"
power_idle = "1 W"
power_busy = "2 W"
[[nodes]]
name = "a"
egress = "2 Mbit/s"
[[nodes]]
name = "b"
link = "3 Mbit/s"
power_busy = "5 W"
"""
    a, b = cluster_from_toml(text).nodes
    assert (a.egress, a.ingress, a.power_busy) == (2.5e5, 1.25e5, 2.0)
    assert (b.egress, b.ingress, b.power_busy) == (3.75e5, 3.75e5, 5.0)


def test_links_join_nodes_groups_and_sites():
    text = (
        GOOD.replace('name = "b"', 'name = "b"\nsite = "s"')
        + """
[[sites]]
name = "s"
uplink = "5 Mbit/s"

[[links]]
from = "a"
to = "s"
latency = "9 ms"

[[links]]
from = "a-0"
to = ["a-1", "b"]
rate = "1 MB/s"
both_ways = false
"""
    )
    cluster = cluster_from_toml(text)
    assert cluster.links == {
        (0, 1): Link(rate=1e6, latency=0.001),
        (0, 2): Link(rate=1e6, latency=0.009),
        (1, 2): Link(latency=0.009),
        (2, 0): Link(latency=0.009),
        (2, 1): Link(latency=0.009),
    }
    assert cluster.sites == (Site(name="s", uplink=625e3),)


MATRIX = "\n[rates]\nunit = 'Mbit/s'\nmatrix = [\n[0, 8, 16],\n[4, 0, 8],\n[2, 24, 0],\n]\n"


@pytest.mark.parametrize(
    ("symmetric", "expected"),
    [
        ("", {(0, 1): 1e6, (1, 0): 5e5, (2, 1): 3e6}),
        ("symmetric = 'min'", {(0, 1): 5e5, (1, 0): 5e5, (1, 2): 1e6}),
        ("symmetric = 'max'", {(0, 1): 1e6, (1, 0): 1e6, (1, 2): 3e6}),
        ("symmetric = 'mean'", {(0, 1): 7.5e5, (1, 0): 7.5e5, (1, 2): 2e6}),
    ],
)
def test_a_matrix_is_read_from_row_to_column(symmetric: str, expected: dict):
    cluster = cluster_from_toml(GOOD + MATRIX + symmetric)
    assert {pair: cluster.pair_rate(*pair) for pair in expected} == expected
    assert len(cluster.links) == 6


def test_rates_and_latencies_of_a_pair_may_come_from_different_places():
    text = GOOD + MATRIX + "[[links]]\nfrom = 'a'\nto = 'b'\nlatency = '7 ms'\n"
    assert cluster_from_toml(text).links[0, 2] == Link(rate=2e6, latency=0.007)


def test_files_are_found_beside_the_toml(tmp_path: Path):
    (tmp_path / "rates.csv").write_text("# measured\n0,8,16\n4,0,8\n\n2,24,0\n")
    (tmp_path / "busy.csv").write_text("time_s,value\n0,100\n5,50\n")
    path = tmp_path / "c.toml"
    path.write_text(
        GOOD
        + "speed = { file = 'busy.csv', scale = 0.01, period = '10 s' }\n"
        + "[rates]\nunit = 'Mbit/s'\nfile = 'rates.csv'\n"
    )
    cluster = load_cluster(path)
    assert cluster.links == cluster_from_toml(GOOD + MATRIX).links
    assert cluster.nodes[2].speed == Trace(times=(0.0, 5.0), values=(1.0, 0.5), period=10.0)


# What is replaced in GOOD, by what, where the error is (a text on its line), what it says.
MISTAKES = [
    ("100 Mbit/s", "100 mb/s", "100 mb/s", "bits or bytes"),
    ('"100 Mbit/s"', "100", "link = 100", "no unit"),
    ("100 Mbit/s", "-100 Mbit/s", "-100", "negative"),
    ("100 Mbit/s", "0 Mbit/s", "0 Mbit/s", "above 0"),
    ("10 GFLOP/s", "10 GFLOPs", "GFLOPs", "plural or a rate"),
    ('"10 GFLOP/s"', "nan", "nan", "no unit"),
    ("count", "cuont", "cuont", "did you mean 'count'"),
    ("count = 2", "count = 0", "count = 0", "1 to"),
    ("count = 2", "count = 2.5", "count = 2.5", "whole number"),
    ("count = 2", "slowdown = 0.5", "slowdown", "1 or more"),
    ("count = 2", "slowdown = inf", "slowdown", "must be finite"),
    ("count = 2", "jitter = nan", "jitter", "must be finite"),
    ("count = 2", "jitter = 'much'", "jitter", "without a unit"),
    ("count = 2", "egress = '1 Mbit/s'", "egress", "link, or egress and ingress"),
    ("count = 2", "site = 'here'", "site = 'here'", "unknown site, 'here'"),
    ("count = 2", "power_idle = '3 W'", "power_idle", "power_busy"),
    ("count = 2", "price = 2.5", "price", "such as '2.5 /h'"),
    ("count = 2", "price = '2.5 EUR/h'", "price", "without a currency"),
    ("count = 2", "price = '2.5 /GB'", "price", "/h, /hour, /day"),
    ("count = 2", "price = '-1 /h'", "price", "negative"),
    ("# one", "[[sites]]\nname = 's'\ntraffic_price = '1 /h' #", "traffic_price", "/GB, /TB"),
    ("count = 2", "inner = {rate = '1 GB/s', latency = '1 us'}", "inner", "devices = 1"),
    ("count = 2", "devices = 2\ninner = {rate = '1 GB/s'}", "inner", "inner has no latency"),
    ("count = 2", "devices = 2\ninner = {rat = '1 GB/s'}", "inner", "did you mean 'rate'"),
    ("count = 2", "speed = 0.5", "speed", "table of keys"),
    ("count = 2", "speed = {times_s = [0, 3], values = [1, 0]}", "speed", "never finish"),
    ("count = 2", "speed.values = [1, 1]\nspeed.times_s = [0, 0]", "speed.times_s", "must rise"),
    ("count = 2", "speed = {times_s = [\n0],values = [-1]}", "values", "values = -1.0"),
    ("count = 2", "speed = {times_s = [\n0],value = [1]}", "value =", "did you mean 'values'"),
    ("count = 2", "speed = {times_s = [0]}", "speed", "times_s and values"),
    ("count = 2", "speed = {times_s = 0, values = [1]}", "speed", "list of numbers"),
    ("count = 2", "speed = {file = 'x.csv'}", "speed", "cannot name another"),
    ('egress = "10 Mbit/s"\n', "", 'name = "b"', "no route to the others"),
    ('ingress = "20 Mbit/s"\n', "", 'name = "b"', "no route from the others"),
    ('flops = "20 GFLOP/s"\n', "", 'name = "b"', "has no flops"),
    ('name = "b"\n', "", "[[nodes]]\negress", "needs a name"),
    ('name = "b"', "name = ''", "name = ''", "not empty"),
    ('name = "b"', "name = 'a'", 'name = "a"', "also that of a node"),
    ('name = "b"', "name = 'a-1'", "name = 'a-1'", "used twice"),
    ("schema = 1", "schema = 2", "schema", "reads schema 1"),
    ("schema = 1", "", "", "schema is missing"),
    ("schema = 1", "schema = '1'", "schema", "whole number"),
    ('latency = "1 ms"', "", "", "latency is missing"),
    ("1 ms", "1 msec", "1 msec", "valid units: ns, us"),
    ('name = "c"', "", "", "name is missing"),
    ("# one", "latency_jitter = 2 #", "latency_jitter", "below 1"),
    ("# one", "descripton = '' #", "descripton", "did you mean 'description'"),
    ("# one", "message_overhead = 3 #", "message_overhead", "no unit"),
    ("# one", "links = 3 #", "links", "array of tables"),
    ("# one", "[defaults]\nname = 'x' #", "name = 'x'", "unknown key 'name' in defaults"),
    ("# one", "[defaults]\njitter = 3 #", "jitter", "below 1"),
    ("# one", "[[sites]]\nname = 's' #", "name = 's'", "'s' has no node"),
    ("# one", "[[sites]]\nname = 's'\nuplink = '0 B/s' #", "uplink", "above 0"),
    ("count = 2", "count = = 2", "count = = 2", "not valid TOML"),
    ("count = 2", "count = 2\ncount = 3", "count = 3", "not valid TOML"),
]


@pytest.mark.parametrize(("old", "new", "where", "said"), MISTAKES)
def test_a_mistake_is_named_with_file_and_line(old: str, new: str, where: str, said: str):
    text = GOOD.replace(old, new, 1)
    assert text != GOOD
    with pytest.raises(InputError) as caught:
        cluster_from_toml(text, source="c.toml")
    message = str(caught.value)
    assert said in message
    assert message.startswith(f"c.toml:{line(text, where)}: ")


# What is added to GOOD, where the error is, what it says.
LINK_MISTAKES = [
    ("[[links]]\nfrom = 'a'\nto = 'b'\n", "from", "says nothing"),
    ("[[links]]\nfrom = 'a'\nrate = '1 B/s'\n", "[[links]]", "needs to"),
    ("[[links]]\nfrom = 'a'\nto = 'B'\nrate = '1 B/s'\n", "to = ", "named 'B'"),
    ("[[links]]\nfrom = 'b'\nto = 'b'\nrate = '1 B/s'\n", "to = ", "no two different"),
    ("[[links]]\nfrom = 'a'\nto = []\nrate = '1 B/s'\n", "to = ", "name of a node"),
    (
        "[[links]]\nfrom = 'a'\nto = 'b'\nrate = '0 B/s'\n",
        "rate = '0",
        "no route from 'a-0' to 'b'",
    ),
    (
        "[[links]]\nfrom = 'a'\nto = 'b'\nrate = '1 B/s'\nboth_ways = 1",
        "both_ways",
        "true or false",
    ),
    (
        "[[links]]\nfrom = 'a'\nto = 'b'\nrate = '1 B/s'\n"
        "[[links]]\nfrom = 'b'\nto = 'a-1'\nrate = '2 B/s'\n",
        "rate = '2",
        "from 'b' to 'a-1' is given twice, first in c.toml:22",
    ),
    (MATRIX.replace("unit = 'Mbit/s'\n", ""), "[rates]", 'add unit = "Mbit/s"'),
    (MATRIX.replace("Mbit/s", "mbps"), "unit", "bits or bytes"),
    (MATRIX.replace("[2, 24, 0],\n", ""), "matrix", "has 2 rows: it needs 3"),
    (MATRIX.replace("[4, 0, 8]", "[4, 0]"), "[4, 0]", "row 1 (a-1) has 2 numbers"),
    (MATRIX.replace("24", "-24"), "[2, -24", "row 2, column 1 of rates"),
    (MATRIX.replace("24", "nan"), "[2, nan", "row 2, column 1 of rates"),
    (MATRIX.replace("24", "'x'"), "[2, 'x'", "must be a number"),
    (MATRIX.replace("24", "0"), "[2, 0", "no route from 'b' to 'a-1'"),
    (MATRIX + "symmetric = 'low'", "symmetric", "one of min, max, mean"),
    (MATRIX + "file = 'x'", "matrix", "either matrix"),
    ("[rates]\nunit = 'B/s'\nfile = 'x'", "file", "cannot name another"),
    ("[rates]\nunit = 'B/s'\nmatrix = 3", "matrix", "list of rows"),
]


@pytest.mark.parametrize(("added", "where", "said"), LINK_MISTAKES)
def test_a_mistake_in_the_network_is_named_with_file_and_line(added: str, where: str, said: str):
    text = GOOD + added
    with pytest.raises(InputError) as caught:
        cluster_from_toml(text, source="c.toml")
    message = str(caught.value)
    assert said in message
    assert message.startswith(f"c.toml:{GOOD.count(chr(10)) + line(added, where)}: ")


@pytest.mark.parametrize(
    ("rows", "line_number", "said"),
    [
        ("a,b,c\n0,1,2\n", 1, "no header"),
        ("0,1,2\n1,0,2\n1,1\n", 3, "row 2 (b) has 2 numbers"),
        ("0,1,2\n# note\n1,0,-2\n1,1,0\n", 3, "negative"),
    ],
)
def test_a_bad_matrix_file_is_named_with_its_line(
    tmp_path: Path, rows: str, line_number: int, said: str
):
    path = tmp_path / "rates.csv"
    path.write_text(rows)
    with pytest.raises(InputError) as caught:
        cluster_from_toml(GOOD + "[rates]\nunit = 'B/s'\nfile = 'rates.csv'\n", folder=tmp_path)
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{path}:{line_number}: ")


def test_a_file_that_is_not_there_is_named_at_its_key(tmp_path: Path):
    text = GOOD + "[rates]\nunit = 'B/s'\nfile = 'none.csv'\n"
    with pytest.raises(InputError, match=r"none\.csv") as caught:
        cluster_from_toml(text, source="c.toml", folder=tmp_path)
    assert str(caught.value).startswith(f"c.toml:{line(text, 'file')}: ")


def test_a_large_cluster_is_not_listed_whole_for_one_wrong_name():
    text = GOOD.replace("count = 2", "count = 1000") + "[[links]]\nto = 'a'\nrate = '1 B/s'\n"
    with pytest.raises(InputError, match="did you mean 'a-99") as caught:
        cluster_from_toml(text + "from = 'a_99'")
    assert len(str(caught.value)) < 200


def test_a_text_that_ends_too_early_is_named_at_its_end():
    with pytest.raises(InputError, match=r"^c\.toml:2: not valid TOML"):
        cluster_from_toml("schema = 1\nnodes = [", source="c.toml")


NODE = Node(name="n", flops=1e10, memory_rate=8e9, egress=12.5e6, ingress=12.5e6)


def odd(rng: random.Random) -> float:
    """A float whose digits no unit divides evenly."""
    return rng.choice([1e3, 1e-3, 1.0, 1e9]) * rng.uniform(0.1, 10)


def random_node(rng: random.Random, name: str, site: str) -> Node:
    fields: dict[str, Any] = {k: odd(rng) for k in ("flops", "memory_rate", "egress", "ingress")}
    if rng.random() < 0.5:
        fields |= {"devices": 3, "inner": Link(rate=odd(rng), latency=odd(rng))}
    if rng.random() < 0.5:
        fields |= {"slowdown": rng.uniform(1, 5), "jitter": rng.random()}
    if rng.random() < 0.5:
        times, values = (0.0, rng.random()), (rng.random(), 1 / 3)
        fields |= {"speed": Trace(times=times, values=values, period=1 + rng.random())}
        fields |= {"ingress_scale": Trace(times=times, values=values)}
    if rng.random() < 0.5:
        fields |= {"power_idle": odd(rng), "power_busy": 1e10 + odd(rng), "power_network": 0.0}
    if rng.random() < 0.5:
        fields |= {"price": odd(rng)}
    return Node(name=name, site=site, **fields)


@pytest.mark.parametrize("seed", range(30))
def test_every_cluster_survives_writing_and_reading(seed: int):
    rng = random.Random(seed)
    lines = {"uplink": odd(rng), "downlink": odd(rng), "traffic_price": odd(rng)}
    sites = [Site(name='s"\\\u00e9'), Site(name="t", **lines)]
    nodes = [random_node(rng, f"x-{i}", "t") for i in range(2)]
    like = random_node(rng, "y-0", sites[0].name)
    nodes += [replace(like, name=f"y-{i}") for i in range(3)]
    pairs = [(i, j) for i in range(5) for j in range(5) if i != j]
    kept = pairs if seed % 3 == 0 else rng.sample(pairs, seed % 7)
    rated = seed % 3 == 0 or seed % 2
    cluster = Cluster(
        name="odd",
        description='several\nlines, "quotes", \\ and \t and \x7f',
        nodes=tuple(nodes),
        sites=tuple(sites),
        default_latency=odd(rng),
        links={
            pair: Link(rate=odd(rng) if rated else None, latency=rng.choice([0.5, odd(rng)]))
            for pair in kept
        },
        message_overhead=rng.choice([0.0, odd(rng)]),
        latency_jitter=rng.choice([0.0, rng.random()]),
    )
    assert cluster_from_toml(cluster_to_toml(cluster)) == cluster


def test_like_nodes_are_written_once():
    nodes = tuple(replace(NODE, name=f"n-{i}") for i in range(1000))
    text = cluster_to_toml(Cluster(name="c", nodes=nodes, default_latency=0.0))
    assert "count = 1000" in text
    assert len(text) < 1000


def test_a_group_is_not_written_where_its_name_is_taken():
    nodes = (NODE, *(replace(NODE, name=f"n-{i}") for i in range(2)))
    cluster = Cluster(name="c", nodes=nodes, default_latency=0.0)
    assert cluster_from_toml(cluster_to_toml(cluster)) == cluster
