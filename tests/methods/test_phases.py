"""Each method of the table says where its time goes."""

from __future__ import annotations

import pytest

from thinwire.cluster import Cluster, Node
from thinwire.methods import METHODS
from thinwire.report import End
from thinwire.run.experiment import Job, run_virtual
from thinwire.run.settings import TrainSettings
from thinwire.testing.toys import Moons

PREPARES = {
    "alone": set(),
    "asgd": set(),
    "bytescheduler": set(),
    "dgc": {"select", "merge"},
    "gtopk": {"select", "merge"},
    "lags": {"select", "merge"},  # its vectors; the merging of sets is its tasks'
    "localsgd": set(),
    "oktopk": {"select", "merge"},
    "powersgd": {"encode"},
    "qsgd": {"encode", "merge"},
    "ssgd": set(),
    "topk": {"select", "merge"},
    "wfbp": set(),
}
"""What the virtual node is charged with besides gradients and updates; rank 0's."""


def run(name: str) -> End:
    nodes = tuple(
        Node(name=f"n{i}", flops=1e7, memory_rate=8e9, egress=1e7, ingress=1e7, slowdown=s)
        for i, s in enumerate((1.0, 1.0, 2.0))
    )
    job = Job(
        run="0",
        label=name,
        name=name,
        method=METHODS[name](),
        cluster=Cluster(name="test", nodes=nodes, default_latency=0.0003),
        train=TrainSettings(batch=4, epochs=1, momentum=0.0),
    )
    return run_virtual(job, Moons(), lambda line: None)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_the_phases_of_a_method_are_named_and_add_up_to_its_time(name):
    end = run(name)
    assert len(end.phases) == len(end.sent)
    for phases in end.phases:
        assert "other" not in phases
        assert sum(phases.values()) <= end.time + 1e-9
    whole = max(sum(phases.values()) for phases in end.phases)
    assert whole == pytest.approx(end.time, abs=1e-9)
    updates = set() if name == "asgd" else {"apply"}  # the server's
    waits = set() if name == "alone" else {"wait"}
    assert set(end.phases[0]) == {"compute"} | PREPARES[name] | updates | waits


def test_waiting_and_computing_are_what_the_meters_say():
    end = run("gtopk")
    for phases, waited, computed in zip(end.phases, end.waited, end.computed, strict=True):
        assert phases["wait"] == pytest.approx(waited, abs=1e-9)
        rest = sum(took for name, took in phases.items() if name != "wait")
        assert rest == pytest.approx(computed, abs=1e-9)
