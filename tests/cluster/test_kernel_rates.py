"""A machine that does some memory-bound work at rates of its own is charged so everywhere."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from thinwire.cluster import Cluster, Node, cluster_from_toml, cluster_to_toml
from thinwire.cluster._fields import FieldError
from thinwire.compress import cost
from thinwire.errors import InputError
from thinwire.passes import KERNELS, selection_bytes
from thinwire.planner import make_workload, predict
from thinwire.wire import Comm, Work
from thinwire.wire.virtual import World

TEXT = """schema = 1
name = "one"
latency = "1 ms"
[[nodes]]
name = "n"
flops = "1 GFLOP/s"
memory_rate = "8 GB/s"
link = "1 Gbit/s"
kernel_rates = { select = "2 GB/s", merge = "16 GB/s" }
"""


def machines(count: int, **rates: float) -> Cluster:
    node = Node(name="n", flops=1e12, memory_rate=8e9, egress=1e8, ingress=1e8, kernel_rates=rates)
    nodes = tuple(dataclasses.replace(node, name=f"n{i}") for i in range(count))
    return Cluster(name="c", nodes=nodes, default_latency=0.0)


def test_the_rates_are_read_and_written_back():
    cluster = cluster_from_toml(TEXT)
    assert cluster.nodes[0].kernel_rates == {"select": 2e9, "merge": 16e9}
    assert cluster_from_toml(cluster_to_toml(cluster)) == cluster


def test_defaults_may_hold_them():
    moved = TEXT.replace('[[nodes]]\nname = "n"', "[defaults]") + '[[nodes]]\nname = "n"\n'
    assert cluster_from_toml(moved) == cluster_from_toml(TEXT)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("select =", "selct =", "did you mean 'select'"),
        ("2 GB/s", "2", "has no unit"),
        ("2 GB/s", "0 GB/s", "select = 0.0: must be finite, above 0"),
        ('{ select = "2 GB/s", merge = "16 GB/s" }', "3", "must be a table"),
    ],
)
def test_a_mistake_is_named_with_its_line(old, new, says):
    with pytest.raises(InputError) as caught:
        cluster_from_toml(TEXT.replace(old, new), source="c.toml")
    assert str(caught.value).startswith("c.toml:9: ")
    assert says in str(caught.value)


def test_a_kind_that_nobody_knows_is_refused_in_code_too():
    with pytest.raises(FieldError, match="did you mean 'merge'"):
        machines(1, mrege=1e9)


def test_the_virtual_clock_charges_each_kind_at_its_own_rate():
    def program(comm: Comm) -> tuple[float, float, float]:
        times = []
        for work in (
            cost.selection_work(10_000_000),
            cost.merge_work(1000),
            Work(memory_bytes=8e6),
        ):
            began = comm.now()
            comm.spend(work)
            times.append(comm.now() - began)
        return times[0], times[1], times[2]

    plain = World(machines(1)).run(program)[0]
    (select, merge, other) = World(machines(1, select=2e9, merge=16e9)).run(program)[0]
    assert select == pytest.approx(4 * plain[0], rel=1e-6)
    assert merge == pytest.approx(plain[1] / 2, rel=1e-3)
    assert other == plain[2] == pytest.approx(1e-3, rel=1e-6)


def test_the_plan_charges_them_alike():
    job = make_workload(params=10_000_000, batch=10, step_time=0.1)

    def overhead(cluster: Cluster) -> float:
        found = {p.method: p for p in predict(job, cluster)}
        return found["topk"].overhead

    slower = overhead(machines(4, select=2e9)) - overhead(machines(4))
    assert slower == pytest.approx(selection_bytes(10_000_000) * (1 / 2e9 - 1 / 8e9))


def test_every_charged_kind_is_known():
    made: dict[str, Work] = {
        name: make(*([1000, 2] if name == "factor_work" else [1000]))
        for name, make in vars(cost).items()
        if name.endswith("_work") and callable(make)
    }
    kinds: list[Any] = [work.kind for work in made.values()]
    assert sorted([*kinds, "step"]) == sorted(KERNELS)
