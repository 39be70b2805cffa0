from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from thinwire.batches import SampleStream
from thinwire.cluster import Cluster, Link, Node, Site, load_cluster
from thinwire.errors import InputError
from thinwire.methods import SSGD, GTopK, LocalSGD, Method, TopK
from thinwire.planner import Settings, Workload
from thinwire.planner.fleet import Fleet, _window_max, grow
from thinwire.planner.rounds import ring, segmented_ring
from thinwire.planner.scale import scale
from thinwire.tasks.timing import Timing
from thinwire.wire import Comm
from thinwire.wire.virtual import World
from thinwire.worker import Plan, Replica, Worker

BATCH, FLOPS, STEPS = 4, 1e8, 5
SLOW = (1.0, 1.7, 1.0, 1.3, 1.0, 2.0, 1.1, 1.0)


def uneven(size: int, jitter: float = 0.0) -> Cluster:
    """Unlike machines on a uniform network."""
    nodes = tuple(
        Node(name=f"n{i}", flops=1e10, memory_rate=8e9, egress=12.5e6, ingress=12.5e6,
             slowdown=SLOW[i % 8], jitter=jitter)
        for i in range(size)
    )  # fmt: skip
    return Cluster(name="uneven", nodes=nodes, default_latency=0.0003)


def in_a_world(method: Method, cluster: Cluster, numel: int) -> float:
    """Virtual seconds of some steps, program by program."""
    size = cluster.size
    task = Timing(num_params=numel, flops_per_sample=FLOPS / 3)
    speeds = cluster.relative_speeds()
    plan = Plan(shares=(BATCH,) * size, steps=STEPS, speeds=speeds)

    def program(comm: Comm) -> None:
        replica = Replica(task, plan, comm, lambda kind, values: None)
        method.worker(Worker(comm, replica, SampleStream(task.num_train, 0)))

    world = World(cluster, link_model="queue")
    world.run(program)
    return world.elapsed


def at_once(name: str, cluster: Cluster, numel: int, settings: Settings, steps: int) -> float:
    """The same steps by the fleet."""
    job = Workload(name="job", num_params=numel, batch=BATCH, flops=FLOPS)
    found = next(
        scale(job, cluster, [cluster.size], methods=[name], settings=settings, steps=steps)
    )
    return found.step_time * steps


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("numel", [4096, 512 * 1024])
def test_uneven_workers_take_as_long_as_in_the_virtual_world(size: int, numel: int):
    cluster, settings = uneven(size), Settings(density=0.01)
    exact = in_a_world(GTopK(density=0.01), cluster, numel)
    assert at_once("gtopk", cluster, numel, settings, STEPS) == pytest.approx(exact, abs=1e-8)
    if numel == 4096:
        exact = in_a_world(SSGD(), cluster, numel)
        assert at_once("bsp", cluster, numel, settings, STEPS) == pytest.approx(exact, abs=1e-8)
    exact = in_a_world(TopK(density=0.01), cluster, numel)
    found = at_once("topk", cluster, numel, settings, STEPS)
    apart = 0.02 if (size, numel) == (8, 512 * 1024) else 1e-9  # messages meet at slow workers
    assert found == pytest.approx(exact, rel=apart)


@pytest.mark.parametrize(("numel", "kind"), [(256 * 1024, ring), (512 * 1024, segmented_ring)])
def test_a_ring_takes_as_long_as_in_the_virtual_world(numel: int, kind: Any):
    cluster = uneven(8)
    fleet = Fleet(cluster)
    legs = fleet.legs(kind(8, 4 * numel))
    compute = np.array([BATCH * FLOPS / node.rate for node in cluster.nodes])
    apply = fleet.seconds({"step": 20.0 * numel})
    for _ in range(STEPS):
        fleet.spend(compute)
        fleet.exchange(legs)
        fleet.spend(apply)
    exact = in_a_world(SSGD(), cluster, numel)
    assert fleet.ready.max() / 1e9 == pytest.approx(exact, abs=2e-7)


def test_local_steps_by_speed_take_as_long_as_in_the_virtual_world():
    cluster, settings = uneven(8), Settings(every=STEPS)
    exact = in_a_world(LocalSGD(every=STEPS, pace="speed"), cluster, 4096)
    assert at_once("localsgd", cluster, 4096, settings, STEPS) == pytest.approx(exact, abs=1e-7)


@pytest.mark.parametrize("kind", [ring, segmented_ring])
def test_a_ring_at_once_is_the_ring_round_by_round(kind: Any):
    cluster = uneven(7)
    job = Workload(name="job", num_params=7 * 64 * 1024, batch=BATCH, flops=FLOPS)
    fleets = [Fleet(cluster), Fleet(cluster)]
    for fleet, by_round in zip(fleets, (False, True), strict=True):
        legs = fleet.legs(kind(7, 4 * job.num_params))
        assert legs[0].is_steady_ring
        for _ in range(3):
            fleet.spend(np.array([0.01 * s for s in SLOW[:7]]))
            if by_round and legs[0].segments > 1:
                fleet._segmented(legs[0])
            elif by_round:
                for _ in range(legs[0].repeat):
                    fleet._round(legs[0])
            else:
                fleet.exchange(legs)
    assert fleets[0].ready.tolist() == fleets[1].ready.tolist()


def test_the_window_goes_round():
    values = np.array([5, 0, 0, 9, 0])
    for width in (1, 2, 3, 5, 8, 13):
        slow = [max(int(values[(i - j) % 5]) + 2 * j for j in range(width)) for i in range(5)]
        assert _window_max(values, width, 2, 1).tolist() == slow


@pytest.mark.slow
def test_ten_thousand_workers_with_jitter():
    job = Workload(name="job", num_params=25_000, batch=32, step_times=(0.1,))
    still, jittery = (
        next(scale(job, uneven(1, jitter), [10_000], methods=["gtopk"], steps=20))
        for jitter in (0.0, 0.1)
    )
    assert jittery.size == 10_000
    # The slowest of so many sets the pace: about 3.9 standard deviations away.
    assert still.step_time * 1.2 < jittery.step_time < still.step_time * 1.6
    assert still.low == pytest.approx(still.high)
    assert jittery.low < jittery.high


def test_one_worker_exchanges_nothing_and_loses_nothing():
    job = Workload(name="job", num_params=1000, batch=32, step_times=(0.1,))
    found = next(scale(job, uneven(1), [1], methods=["ssgd"]))
    assert (found.efficiency, found.waiting, found.bytes_per_step) == (pytest.approx(1.0), 0.0, 0.0)


def test_a_rack_grows_into_a_hall_of_racks():
    rack = Cluster(
        name="rack",
        nodes=tuple(dataclasses.replace(uneven(1).nodes[0], name=n, site="rack") for n in "ab"),
        sites=(Site(name="rack", uplink=1e6),),
        default_latency=0.001,
        links={(0, 1): Link(latency=0.0001)},
    )
    hall = grow(rack, 5)
    assert [n.site for n in hall.nodes] == ["rack", "rack", "rack-1", "rack-1", "rack-2"]
    assert [s.name for s in hall.sites] == ["rack", "rack-1", "rack-2"]
    assert set(hall.links) == {(0, 1), (2, 3)}
    assert grow(rack, 1).size == 1


def test_a_shared_uplink_slows_the_exchange_between_racks():
    job = Workload(name="job", num_params=1_000_000, batch=32, step_times=(0.1,))
    open_, shared = load_cluster("gigabit"), load_cluster("two-sites")
    times = [next(scale(job, c, [64], methods=["bsp"], steps=3)).step_time for c in (open_, shared)]
    assert times[1] > 5 * times[0]


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"methods": ["gtopkk"]}, "did you mean"),
        ({"steps": 0}, "steps = 0"),
        ({"sizes": [0]}, "nodes = 0"),
    ],
)
def test_what_cannot_be_scaled_is_named(given: dict, word: str):
    job = Workload(name="job", num_params=1000, batch=32, step_times=(0.1,))
    with pytest.raises(InputError, match=word):
        list(scale(job, uneven(2), **{"sizes": [2], **given}))
