"""Situations with answers that are known."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from thinwire.cluster import Cluster, Node, cluster_from_toml
from thinwire.errors import InputError
from thinwire.flat import Layer
from thinwire.planner import Settings, Workload
from thinwire.planner.chosen import config_text, write_config
from thinwire.planner.refine import Refined, refine
from thinwire.planner.refined_table import refined_report
from thinwire.planner.simulate import Scene
from thinwire.planner.timed import Load
from thinwire.run.settings import MethodSpec, assign, read_settings

BATCH = 8


def cluster_of(
    size: int, rate: float, latency: float = 1e-4, slow: float = 1.0, **node: Any
) -> Cluster:
    """Machines on one switch, the last one slower."""
    nodes = tuple(
        Node(name=f"n{i}", flops=1e10, memory_rate=100e9, egress=rate, ingress=rate,
             slowdown=slow if i == size - 1 else 1.0, **node)
        for i in range(size)
    )  # fmt: skip
    return Cluster(name="test", nodes=nodes, default_latency=latency)


def ask(
    cluster: Cluster,
    *,
    numel: int = 2_000_000,
    step: float = 0.2,
    first: float = 0.5,
    target: str = "time",
    budget: float = 100.0,
) -> Refined:
    """A model of two tensors, the first of them a part of all parameters."""
    edge = int(first * numel)
    load = Load(
        layers=(
            Layer("a", 0, edge, (edge // 100, 100)),
            Layer("b", edge, numel, (numel - edge,)),
        ),
        order=(1, 0),
        forward=(0.1, 0.9),
        backward=(0.9, 0.1),
    )
    job = Workload(name="job", num_params=numel, batch=BATCH, step_times=(step,))
    scene = Scene.of(job, cluster, load)
    return refine(job, scene, Settings(density=0.001), target=target, budget=budget)


def test_with_endless_bandwidth_dense_is_fine():
    found = ask(cluster_of(4, 1e15, latency=0.0))
    assert not found.choice.candidate.lossy
    assert found.verdict.startswith("Dense is fine here")
    assert found.choice.simulated.limit == "compute"
    assert found.caveats == ()


def test_one_straggler_is_what_limits_a_dense_step():
    found = ask(cluster_of(4, 1e10, slow=4.0))
    assert found["wfbp groups=buckets"].simulated.limit == "the slowest node"
    assert found.choice.label == "localsgd every=8 pace=speed"
    assert "need more samples" in found.caveats[0]


@pytest.mark.slow
def test_messages_that_are_all_latency_are_called_so():
    found = ask(cluster_of(8, 1e9, latency=0.05), numel=1000, step=0.02)
    assert found["ssgd"].simulated.limit == "latency"
    assert found.choice.simulated.settings.keys() & {"every", "accumulate"} or (
        found.choice.label == "alone"
    )


def test_a_huge_embedding_on_a_thin_wire_is_not_sent_whole():
    found = ask(cluster_of(4, 12.5e6), numel=60_000_000, first=0.95)
    assert found["wfbp groups=buckets"].simulated.limit == "bandwidth"
    assert found.choice.candidate.lossy
    assert found.choice.simulated.settings.keys() <= {"density", "rank"}
    assert found.choice.simulated.bytes_per_step < 0.1 * found["ssgd"].simulated.bytes_per_step
    assert any(each.label == "ssgd accumulate=8" for each in found.skipped) or (
        found["ssgd accumulate=8"].cost > found.choice.cost
    )


def test_one_worker_has_nothing_to_exchange():
    found = ask(cluster_of(1, 12.5e6))
    assert [row.label for row in found.rows] == ["alone"]
    assert "nothing to exchange" in found.verdict


def test_a_slow_second_box_slows_down():
    found = ask(cluster_of(2, 1.25e6, slow=12.0))
    assert found.choice.label == "alone"
    assert found.verdict.startswith("Use one machine (n0)")
    dense = found["wfbp groups=buckets"].simulated
    assert dense.samples_per_second < 0.5 * found["alone"].simulated.samples_per_second


def test_machines_without_a_common_route_are_refused():
    text = """
        schema = 1
        name = "apart"
        latency = "1 ms"
        [defaults]
        link = "1 Gbit/s"
        memory_rate = "8 GB/s"
        flops = "1 TFLOP/s"
        [[nodes]]
        name = "a"
        [[nodes]]
        name = "b"
        [[links]]
        from = "a"
        to = "b"
        rate = "0 Mbit/s"
    """
    with pytest.raises(InputError, match="no route"):
        cluster_from_toml(text, "apart.toml")


def test_energy_needs_powers_and_ranks_by_joules():
    with pytest.raises(InputError, match="'n0' and 'n1' of cluster 'test' state no power"):
        ask(cluster_of(2, 12.5e6), target="energy")
    power = {"power_idle": 50.0, "power_busy": 100.0}
    found = ask(cluster_of(2, 12.5e6, **power), target="energy")
    assert [row.cost for row in found.rows] == sorted(row.cost for row in found.rows)
    assert found.rows[0].cost == found.rows[0].simulated.joules_per_sample


@pytest.mark.slow
def test_fewest_bytes_are_not_those_of_one_machine_that_is_slower():
    found = ask(cluster_of(4, 12.5e6), target="bytes")
    assert found.choice.label != "alone"
    assert found["alone"].cost == 0
    faster = [r for r in found.rows if r.simulated.samples_per_second
              > 1.1 * found["alone"].simulated.samples_per_second
              and not r.candidate.longer]  # fmt: skip
    assert found.choice.cost <= 1.1 * min(row.cost for row in faster)


def test_an_unknown_target_names_the_nearest():
    with pytest.raises(InputError, match="energy"):
        ask(cluster_of(2, 12.5e6), target="enrgy")


def test_what_the_budget_leaves_no_time_for_is_named():
    found = ask(cluster_of(4, 12.5e6), budget=0.0)
    assert {row.label for row in found.rows} == {"alone", "ssgd", "wfbp groups=buckets"}
    assert any("were over" in each.reason for each in found.skipped)


@pytest.mark.slow
@pytest.mark.parametrize("real", [True, False])
def test_the_written_file_sets_the_choice(tmp_path: Path, real: bool):
    found = ask(cluster_of(4, 12.5e6), numel=60_000_000)
    path = tmp_path / "plan.toml"
    write_config(found, 24, "mine.toml", path)
    chosen = found.choice.simulated
    done = assign([MethodSpec(name=chosen.method)], read_settings(path), {}, real=real)[0]
    assert {key: getattr(done.method, key) for key in chosen.settings} == chosen.settings
    assert done.train.batch == 24
    assert f"thinwire run mine.toml --method {chosen.method}" in path.read_text()
    with pytest.raises(InputError, match="is there already"):
        write_config(found, 24, "mine.toml", path)
    assert tomllib.loads(config_text(found, 24, "", "x"))["train"]["batch"] == 24


def test_the_report_names_choice_limit_and_error(capsys: pytest.CaptureFixture[str]):
    from rich.console import Console

    found = ask(cluster_of(4, 12.5e6))
    Console(width=80).print(refined_report(found, "off by a little"))
    told = capsys.readouterr().out
    assert "off by a little" in told
    assert found.verdict.split(":")[0] in told
    assert "…" not in told
