"""A probe of shaped hosts, in network namespaces: needs root."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from thinwire.cluster import load_cluster

spec = importlib.util.spec_from_file_location(
    "netns", Path(__file__).parents[2] / "benchmarks" / "netns.py"
)
assert spec is not None
assert spec.loader is not None
netns = importlib.util.module_from_spec(spec)
sys.modules["netns"] = netns
spec.loader.exec_module(netns)

PAYLOAD = 1448 / 1514
"""Of an Ethernet frame, which the shaper counts."""

PROGRAM = """
import sys
from pathlib import Path
from thinwire.run.probe import Files, Request, probe
from thinwire.run.probe.wires import WireLimits

out = Path(sys.argv[1])
request = Request(
    batch=1, threads=1, compute=0.05, kernels=0.05, wire=WireLimits(stream=0.5), crowd=1.5
)
sys.exit(probe(request, Files(cluster=out, layers=out.with_suffix(".layers"))))
"""


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.skipif(bool(netns.why_not()), reason=netns.why_not() or "possible")
def test_shaped_links_are_found_as_they_were_set(tmp_path):
    out = tmp_path / "lab.toml"
    with netns.Lab(3, "100mbit", {2: "50mbit"}) as lab:
        processes = lab.start(
            [sys.executable, "-c", PROGRAM, str(out)],
            env={"OMP_NUM_THREADS": "1", "THINWIRE_INTERFACE": "e0"},
            stdout=PIPE,
            stderr=PIPE,
        )
        ended = [process.communicate(timeout=150) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], ended
    cluster = load_cluster(out)
    for node, mbit in zip(cluster.nodes, (100, 100, 50), strict=True):
        expected = mbit * 125_000 * PAYLOAD
        assert node.egress == pytest.approx(expected, rel=0.05)
        assert node.ingress == pytest.approx(expected, rel=0.05)
    assert not cluster.sites
