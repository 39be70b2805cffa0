"""Links by name: what they stand for, and where they may be written."""

from __future__ import annotations

import pytest

from thinwire.cluster import LINKS, cluster_from_toml, cluster_to_toml, link_latency, link_rate
from thinwire.errors import InputError

TEXT = """
schema = 1
name = "two"
latency = "1gbe-tcp"

[[nodes]]
name = "old"
link = "1gbe-tcp"
flops = "10 GFLOP/s"
memory_rate = "8 GB/s"

[[nodes]]
name = "new"
egress = "rdma-100g"
ingress = "100 Mbit/s"
flops = "10 GFLOP/s"
memory_rate = "8 GB/s"

[[links]]
from = "old"
to = "new"
rate = "10gbe-tcp"
latency = "10gbe-tcp"
"""


def test_names_stand_for_rates_and_latencies_in_a_cluster_file():
    cluster = cluster_from_toml(TEXT)
    old, new = cluster.nodes
    assert old.egress == old.ingress == pytest.approx(111.1e6, rel=1e-3)
    assert (new.egress, new.ingress) == (12.5e9, 12.5e6)
    assert cluster.default_latency == 0.436e-3
    assert cluster.links[0, 1] == cluster.links[1, 0]
    assert (cluster.links[0, 1].rate, cluster.links[0, 1].latency) == (1.25e9, 45.25e-6)
    assert cluster_from_toml(cluster_to_toml(cluster)) == cluster


@pytest.mark.parametrize("name", LINKS)
def test_each_link_says_where_its_numbers_come_from_and_what_is_not_known(name: str):
    link = LINKS[name]
    assert link.rate == link_rate(name)
    assert len(link.source) > 20
    # A number that was published names who did; the rest is a standard's.
    published = "published" in (link.rate_is, link.latency_is)
    assert published == ("Shi et al." in link.source)
    assert (link.rate_is == "nominal") == ("line rate" in link.source)
    if link.latency is None:
        assert link.latency_is == "unknown"
        with pytest.raises(InputError, match=rf"latency of '{name}' is not known.*thinwire probe"):
            link_latency(name)
    else:
        assert link_latency(name) == link.latency


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ('latency = "1gbe-tcp"', 'latency = "ipoib-100g"', r"two:4: latency: .*is not known"),
        ('link = "1gbe-tcp"', 'link = "1gbe"', r"two:8: link: rate '1gbe'.*by name: 1gbe-tcp, "),
        ('rate = "10gbe-tcp"', 'rate = "fast"', r"two:22: rate: rate 'fast'.*by name: 1gbe-tcp"),
    ],
)
def test_a_name_that_stands_for_nothing_is_refused_where_it_is_written(right, wrong, message):
    with pytest.raises(InputError, match=message):
        cluster_from_toml(TEXT.replace(right, wrong), source="two")
