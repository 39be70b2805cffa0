from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest

from thinwire.cluster import PRESETS, cluster_from_toml, cluster_to_toml, load_cluster
from thinwire.errors import InputError


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_loads_and_is_described_as_listed(name: str):
    cluster = load_cluster(name)
    assert cluster.name == name
    assert cluster.description == PRESETS[name]
    assert cluster_from_toml(cluster_to_toml(cluster)) == cluster


def test_every_preset_file_is_listed():
    folder = Path(__file__).parents[2] / "src/thinwire/cluster/presets"
    assert sorted(path.stem for path in folder.glob("*.toml")) == list(PRESETS)


def test_office_has_two_slower_desks_one_of_them_changing():
    office = load_cluster("office")
    assert office.uniform() == (0.0003, 12.5e6)
    assert [node.slowdown for node in office.nodes] == [1.0] * 6 + [2.0, 1.6]
    assert [node.speed is not None for node in office.nodes] == [False] * 7 + [True]
    assert all(node.flops == 2e9 for node in office.nodes)


def test_gigabit_nodes_are_alike():
    gigabit = load_cluster("gigabit")
    assert gigabit.uniform() == (0.0001, 125e6)
    assert gigabit.relative_speeds() == (1.0,) * 8


def test_one_straggler_is_gigabit_with_one_node_four_times_slower():
    gigabit, straggler = load_cluster("gigabit"), load_cluster("one-straggler")
    assert straggler.uniform() == gigabit.uniform()
    assert straggler.nodes[:7] == gigabit.nodes[:7]
    assert straggler.relative_speeds() == (1.0,) * 7 + (0.25,)


def test_two_sites_share_their_lines():
    cluster = load_cluster("two-sites")
    assert cluster.latency(0, 3) == cluster.latency(7, 4) == 0.0001
    assert cluster.latency(0, 4) == cluster.latency(7, 3) == 0.015
    north, south = cluster.path_sites(1, 6)
    assert north is not None
    assert south is not None
    assert (north.uplink, south.downlink) == (6.25e6, 6.25e6)
    assert cluster.path_sites(0, 1) == (None, None)


def test_cities_have_the_published_bandwidths():
    cities = load_cluster("cities14")
    mbit = {pair: (link.rate or 0.0) * 8 / 1e6 for pair, link in cities.links.items()}
    assert len(mbit) == 14 * 13
    assert all(mbit[i, j] == mbit[j, i] for i, j in mbit)
    assert mbit[0, 13] == pytest.approx(0.1)
    assert mbit[7, 10] == pytest.approx(317.4)
    values = list(mbit.values())
    assert (min(values), statistics.median(values)) == pytest.approx((0.1, 1.7))
    assert statistics.fmean(values) == pytest.approx(36.68, abs=0.005)


def test_an_unknown_cluster_gets_the_nearest_preset():
    with pytest.raises(InputError, match="did you mean 'office'"):
        load_cluster("ofice")


def test_unreadable_files_are_named(tmp_path: Path):
    with pytest.raises(InputError, match=re.escape(str(tmp_path))):
        load_cluster(tmp_path)
    path = tmp_path / "c.toml"
    path.write_bytes(b"schema = 1\n# caf\xe9\n")
    with pytest.raises(InputError) as caught:
        load_cluster(path)
    assert str(caught.value).startswith(f"{path}:2: ")


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path):
    path = tmp_path / "c.toml"
    path.write_bytes(b"\xef\xbb\xbf" + cluster_to_toml(load_cluster("gigabit")).encode())
    assert load_cluster(path) == load_cluster("gigabit")
