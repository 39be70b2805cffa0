from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from thinwire.cluster import Cluster, Node
from thinwire.errors import InputError, WorkerFailedError
from thinwire.flat import Layer
from thinwire.models import LayerTimes, NodeTimes, TimedTensor, published_table
from thinwire.planner import Workload, predict
from thinwire.planner.simulate import Scene, simulate
from thinwire.planner.timed import Load, load_of_table, measured_paces

NUMEL, BATCH = 4_000_000, 8
RATE, LATENCY = 12.5e6, 1e-3
LOAD = Load(
    layers=(Layer("a", 0, 1_000_000), Layer("b", 1_000_000, NUMEL)),
    order=(1, 0),
    forward=(0.5, 0.5),
    backward=(0.5, 0.5),
)


def cluster_of(size: int, *slowdown: float, **node: Any) -> Cluster:
    """Machines on one switch, the last ones slower."""
    slow = (1.0,) * (size - len(slowdown)) + slowdown
    nodes = tuple(
        Node(name=f"n{i}", flops=1e10, memory_rate=8e9, egress=RATE, ingress=RATE,
             slowdown=slow[i], **node)
        for i in range(size)
    )  # fmt: skip
    return Cluster(name="test", nodes=nodes, default_latency=LATENCY)


def scene_of(cluster: Cluster, step: float = 1.5) -> Scene:
    """The two tensors, and a step of that many seconds on the fastest node."""
    job = Workload(name="job", num_params=NUMEL, batch=BATCH, step_times=(step,))
    return Scene.of(job, cluster, LOAD)


APPLY = 5 * 4 * NUMEL / 8e9


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_dense_step_takes_its_closed_form(size: int):
    found = simulate(scene_of(cluster_of(size)), "ssgd")
    job = Workload(name="job", num_params=NUMEL, batch=BATCH, step_times=(1.5,))
    closed = next(p for p in predict(job, cluster_of(size)) if p.method == "ssgd")
    assert found.step_time == pytest.approx(closed.bsp_step_time + APPLY, rel=0.02)
    assert found.bytes_per_step == pytest.approx(closed.bytes_per_step, rel=1e-3)
    assert sum(found.parts.values()) == pytest.approx(found.step_time, rel=1e-6)


def test_an_exchange_beside_backward_is_hidden_as_far_as_it_goes():
    cluster = cluster_of(2)
    at_step = simulate(scene_of(cluster, 9.0), "ssgd")
    beside = simulate(scene_of(cluster, 9.0), "wfbp")
    hidden = at_step.step_time - beside.step_time
    # The last tensor (a quarter of the bytes) comes with the end of backward.
    assert hidden == pytest.approx(0.75 * at_step.exposed, rel=0.02)
    assert beside.exposed == pytest.approx(0.25 * at_step.exposed, rel=0.05)


def test_an_update_that_may_wait_is_hidden_behind_the_next_forward_pass_too():
    """The first tensor's gradient comes last and is needed first: where the rest is hidden behind
    backward there is nothing to gain. Where it isn't, forward hides a part of it."""
    cluster, parts = cluster_of(2), {"partition": 400_000, "credit": 800_000}
    calm = [simulate(scene_of(cluster, 9.0), *what).step_time
            for what in (("wfbp", {}), ("bytescheduler", parts))]  # fmt: skip
    assert calm[1] == pytest.approx(calm[0], rel=1e-3)
    bsp, wfbp, late = (simulate(scene_of(cluster, 1.2), *what).step_time
                       for what in (("ssgd", {}), ("wfbp", {}), ("bytescheduler", parts))
                       )  # fmt: skip
    line = 4 * NUMEL / RATE  # what each sends
    assert line <= late < wfbp - 0.1 < bsp


def test_steps_that_methods_look_at_first_count_nowhere():
    scene = scene_of(cluster_of(4))
    merged = simulate(scene, "wfbp", {"groups": "merged"})
    assert merged.step_time <= simulate(scene, "wfbp").step_time * 1.01


def test_waiting_is_charged_to_the_slowest_node():
    found = simulate(scene_of(cluster_of(4, 3.0), 20.0), "gtopk", {"density": 0.001})
    assert found.limit == "the slowest node"
    assert found.waiting == pytest.approx(0.5, abs=0.05)  # three of four wait for 2/3 of the time


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("alone", {}),
        ("ssgd", {"accumulate": 4}),
        ("topk", {"density": 0.01}),
        ("lags", {"density": 0.01}),
        ("dgc", {"density": 0.01}),
        ("oktopk", {"density": 0.01}),
        ("powersgd", {"rank": 2}),
        ("qsgd", {}),
        ("localsgd", {"every": 4, "pace": "speed"}),
    ],
)
def test_every_method_runs_without_values(method: str, settings: dict[str, object]):
    found = simulate(scene_of(cluster_of(3, 1.5)), method, settings)
    assert math.isfinite(found.step_time)
    assert found.step_time >= 1.5
    assert (found.bytes_per_step > 0) == (method != "alone")
    assert 0 <= found.waiting < 1


def test_local_steps_average_once_in_a_period():
    scene = scene_of(cluster_of(4))
    often, seldom = (simulate(scene, "localsgd", {"every": n}) for n in (2, 8))
    assert often.bytes_per_step == pytest.approx(4 * seldom.bytes_per_step, rel=1e-6)


def test_joules_are_idle_busy_and_network_power_over_the_samples():
    power = {"power_idle": 10.0, "power_busy": 30.0, "power_network": 1.0}
    found = simulate(scene_of(cluster_of(2, **power)), "ssgd")
    busy = 1.5 + APPLY
    line = found.bytes_per_step / RATE
    joules = 2 * (30.0 * busy + 10.0 * (found.step_time - busy) + line)
    assert found.joules_per_sample == pytest.approx(joules / (2 * BATCH), rel=1e-3)
    assert simulate(scene_of(cluster_of(2)), "ssgd").joules_per_sample is None


def test_jitter_is_in_the_step_and_repeats():
    scene = scene_of(cluster_of(4, jitter=0.3))
    first, second = (simulate(scene, "ssgd") for _ in range(2))
    assert first == second
    assert first.step_time > simulate(scene_of(cluster_of(4)), "ssgd").step_time


def test_measured_layer_times_decide_when_gradients_leave():
    tensors = tuple(TimedTensor(layer.name, layer.numel) for layer in LOAD.layers)

    def node(early: float) -> NodeTimes:
        return NodeTimes(name="n0", forward=3.0, backward=6.0, step=0.0, needed=(0.0, 1.0),
                         ready=(6.0, early), count=3, spread=0.0)  # fmt: skip

    scene, found = scene_of(cluster_of(2)), []
    for early in (1.0, 5.9):
        nodes = tuple(dataclasses.replace(node(early), name=name) for name in ("n0", "n1"))
        times = LayerTimes(model="two", batch=BATCH, source="test", tensors=tensors, nodes=nodes)
        paces = tuple(measured_paces(LOAD, times, ["n0", "n1"], BATCH))
        own = dataclasses.replace(scene, paces=paces)
        assert own.seconds == pytest.approx([9.0, 9.0])
        found.append(simulate(own, "wfbp").exposed)
    assert found[0] < 0.5 * found[1]


def test_layer_times_of_another_model_are_refused():
    times = LayerTimes(model="other", batch=1, source="", tensors=(TimedTensor("x", 5),), nodes=())
    with pytest.raises(InputError, match="other"):
        measured_paces(LOAD, times, ["n0"], 1)


def test_a_table_becomes_a_load_of_all_its_parameters():
    table = published_table("resnet20")
    load = load_of_table(table)
    assert load.numel == table.num_params
    assert sorted(load.order) == list(range(len(load.layers)))
    assert sum(load.backward) == pytest.approx(1.0)


def test_what_the_check_raises_ends_the_simulation():
    def check() -> None:
        raise RuntimeError("enough")

    with pytest.raises((RuntimeError, WorkerFailedError), match="enough"):
        simulate(scene_of(cluster_of(2)), "ssgd", check=check)
