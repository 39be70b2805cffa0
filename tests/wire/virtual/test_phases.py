"""A program's phases on the virtual cluster: exact, its own, and without a price."""

from __future__ import annotations

import torch

from thinwire.cluster import Cluster, Node
from thinwire.wire import Comm, Packet, Work
from thinwire.wire.virtual import World


def world(size: int = 2, **node: float) -> World:
    nodes = tuple(
        Node(name=f"n{i}", flops=1e9, memory_rate=1e9, egress=1e6, ingress=1e6, **node)
        for i in range(size)
    )
    return World(Cluster(name="test", nodes=nodes, default_latency=0.001), seed=3)


def spent(world: World, rank: int = 0) -> dict[str, int]:
    return {name: ns for name, ns in world.endpoints[rank].meter.phases.so_far().items() if ns}


def test_what_is_spent_in_a_block_is_the_phases_and_waits_are_apart():
    def program(comm: Comm) -> None:
        with comm.phase("compute"):
            comm.spend(Work(flops=3e6))
        with comm.phase("merge"):
            comm.spend(Work(memory_bytes=2e6))
            if comm.rank:
                comm.post(0, Packet((torch.zeros(250),)), "x")
            else:
                comm.wait(1, "x")
            comm.spend(Work(elapsed=0.004))
        comm.spend(Work(flops=1e6))

    found = world()
    found.run(program)
    here = spent(found)
    assert {k: here[k] for k in ("compute", "merge", "other")} == {
        "compute": 3_000_000,
        "merge": 6_000_000,
        "other": 1_000_000,
    }
    assert sum(here.values()) == found.clock.now
    assert here["wait"] == found.clock.now - 10_000_000
    assert "wait" not in spent(found, 1)


def test_parts_of_one_piece_of_time_add_up_on_an_uneven_node():
    def program(comm: Comm) -> None:
        for i in range(200):  # more than are remembered one by one
            with comm.phase(("compute", "select", "apply")[i % 3]):
                comm.spend(Work(flops=1e4 / 3, memory_bytes=7.7))

    found = world(1, slowdown=1.7, jitter=0.3)
    found.run(program)
    here = spent(found)
    assert list(here) == ["compute", "select", "apply"]
    assert sum(here.values()) == found.clock.now > 0
    assert abs(here["compute"] - here["select"]) <= here["compute"] / 67 + 1


def test_blocks_change_no_time():
    def program(comm: Comm, marked: bool) -> float:
        for _ in range(150):
            with comm.phase("compute" if marked else "other"):
                comm.spend(Work(flops=1 / 3e-5, memory_bytes=0.1))
            comm.spend(Work(elapsed=1e-7 / 3))
        return comm.now()

    times = [world(1, slowdown=1.3).run(lambda c, m=marked: program(c, m)) for marked in (0, 1)]
    assert times[0] == times[1]


def test_a_task_beside_the_program_counts_only_where_it_is_waited_for():
    def beside(comm: Comm) -> None:
        with comm.phase("merge"):
            comm.spend(Work(flops=5e6))

    def program(comm: Comm) -> None:
        task = comm.start(beside, "t")
        with comm.phase("select"):
            comm.spend(Work(flops=2e6))
            comm.now()
        with comm.phase("encode"):
            task.wait()

    found = world(1)
    found.run(program)
    assert spent(found) == {"select": 4_000_000, "wait": 3_000_000}  # they share the node
