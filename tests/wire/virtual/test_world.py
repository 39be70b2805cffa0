"""The virtual cluster: the seam's promises, repeatability, endings, faults."""

from __future__ import annotations

import pytest
import torch

from thinwire.cluster import Cluster, Node
from thinwire.errors import (
    DeadlockError,
    InputError,
    NonFiniteError,
    PeerDiedError,
    PeerFinishedError,
    WorkerFailedError,
)
from thinwire.testing.check_comm import check_comm
from thinwire.wire import ANY, Comm, Crash, Delay, Drop, FaultPlan, Packet, Partition, Work
from thinwire.wire.virtual import World

RATE = 12.5e6
LATENCY = 0.0003


def cluster(size: int, **node: object) -> Cluster:
    settings: dict = {"flops": 1e10, "memory_rate": 8e9, "egress": RATE, "ingress": RATE, **node}
    nodes = tuple(Node(name=f"n{i}", **settings) for i in range(size))
    return Cluster(name="test", nodes=nodes, default_latency=LATENCY)


def sized(nbytes: int) -> Packet:
    """A packet that occupies `nbytes` without its header."""
    return Packet((torch.empty(nbytes, dtype=torch.uint8, device="meta"),))


def bare(size: int, **kwargs: object) -> World:
    return World(cluster(size), charge_headers=False, **kwargs)  # type: ignore[arg-type]


@pytest.mark.parametrize("link_model", ["fair", "queue"])
def test_the_virtual_comm_keeps_the_promises_of_the_seam(link_model):
    check_comm(lambda program, size: World(cluster(size), link_model=link_model).run(program), 3)
    check_comm(lambda program, size: World(cluster(size), link_model=link_model).run(program), 5)


@pytest.mark.parametrize("link_model", ["fair", "queue"])
def test_one_message_takes_latency_plus_size_over_rate(link_model):
    def program(comm: Comm) -> float:
        if comm.rank == 0:
            comm.post(1, sized(1_250_000), "x")
            return 0.0
        return comm.wait(0, "x").time

    assert bare(2, link_model=link_model).run(program)[1] == pytest.approx(0.1 + LATENCY, abs=1e-9)


def test_streams_of_different_pairs_share_a_link_fairly():
    def program(comm: Comm) -> float:
        if comm.rank == 0:
            comm.post(1, sized(1_250_000), "x")
            comm.post(2, sized(2_500_000), "x")
            return 0.0
        return comm.wait(0, "x").time

    _, first, second = bare(3).run(program)
    assert first == pytest.approx(0.2 + LATENCY, abs=1e-6)
    assert second == pytest.approx(0.3 + LATENCY, abs=1e-6)


def test_a_small_message_beside_a_big_one_is_not_held_up():
    def program(comm: Comm) -> float:
        if comm.rank == 0:
            comm.post(1, sized(5_000_000), "x")
            comm.post(2, sized(1_000), "x")
            return 0.0
        return comm.wait(0, "x").time

    assert bare(3).run(program)[2] < 0.001
    assert bare(3, link_model="queue").run(program)[2] > 0.4


def test_a_post_after_another_leaves_when_that_has_left():
    def program(comm: Comm) -> float:
        if comm.rank == 0:
            first = comm.post(1, sized(1_250_000), "x")
            comm.post(2, sized(1_250_000), "x", after=first)
            return 0.0
        return comm.wait(0, "x").time

    for link_model in ("fair", "queue"):
        _, first, second = bare(3, link_model=link_model).run(program)
        assert first == pytest.approx(0.1 + LATENCY, abs=1e-9)
        assert second == pytest.approx(0.2 + LATENCY, abs=1e-9)


def test_max_min_sharing_gives_what_one_stream_leaves_to_the_other():
    # 0 -> 1 is held to a quarter by node 1's ingress; 0 -> 2 gets the other three quarters.
    nodes = [
        Node(name=f"n{i}", flops=1e10, memory_rate=8e9, egress=RATE, ingress=ingress)
        for i, ingress in enumerate([RATE, RATE / 4, RATE])
    ]
    uneven = Cluster(name="uneven", nodes=tuple(nodes), default_latency=0.0)

    def program(comm: Comm) -> float:
        if comm.rank == 0:
            comm.post(1, sized(1_250_000), "x")
            comm.post(2, sized(937_500), "x")
            return 0.0
        return comm.wait(0, "x").time

    _, slow, fast = World(uneven, charge_headers=False).run(program)
    assert fast == pytest.approx(0.1, abs=1e-6)
    assert slow == pytest.approx(0.4, abs=1e-6)


def test_programs_on_one_node_share_its_processor():
    def program(comm: Comm) -> float:
        task = comm.start(lambda c: c.spend(Work(elapsed=1.0)), "beside")
        comm.spend(Work(elapsed=1.0))
        task.wait()
        return comm.now()

    assert World(cluster(1)).run(program) == [pytest.approx(2.0, abs=1e-6)]


def test_work_takes_as_long_as_rates_and_slowdown_say():
    def program(comm: Comm) -> float:
        comm.spend(Work(flops=1e10, memory_bytes=8e9, elapsed=0.5))
        return comm.now()

    assert World(cluster(1, slowdown=2.0)).run(program) == [pytest.approx(5.0, abs=1e-6)]


def test_two_runs_are_identical_in_every_number():
    def program(comm: Comm) -> list[tuple[int, float]]:
        seen = []
        for step in range(5):
            comm.spend(Work(flops=1e7 * (comm.rank + 1)))
            for other in range(comm.size):
                if other != comm.rank:
                    comm.post(other, sized(10_000 * (comm.rank + 1)), step)
            for _ in range(comm.size - 1):
                arrival = comm.wait(ANY, step)
                seen.append((arrival.src, arrival.time))
        return seen

    jittery = Cluster(
        name="jittery", nodes=cluster(5, jitter=0.3).nodes, default_latency=LATENCY,
        latency_jitter=0.2,
    )  # fmt: skip
    runs = [World(jittery, seed=3, trace=True) for _ in range(2)]
    first, second = [w.run(program) for w in runs]
    assert first == second
    assert runs[0].spans == runs[1].spans
    assert World(jittery, seed=4).run(program) != first


def test_a_cyclic_wait_is_reported_as_a_deadlock_naming_everyone():
    def program(comm: Comm) -> None:
        comm.step = 7
        comm.wait((comm.rank + 1) % comm.size, "ring")

    with pytest.raises(DeadlockError) as error:
        World(cluster(3)).run(program)
    for rank in range(3):
        line = f"rank {rank} waits for rank {(rank + 1) % 3} (tag 'ring', step 7)"
        assert line in str(error.value)


def test_an_exception_on_one_rank_names_rank_step_and_time():
    def program(comm: Comm) -> None:
        comm.spend(Work(elapsed=1.5))
        comm.step = 4
        if comm.rank == 2:
            raise KeyError("broken")
        comm.wait(2, "x")

    with pytest.raises(WorkerFailedError, match=r"rank 2, step 4, virtual time 1\.500000 s") as e:
        World(cluster(3)).run(program)
    assert e.value.rank == 2
    assert isinstance(e.value.__cause__, KeyError)


def test_waiting_for_the_finished_raises_and_a_late_message_still_counts():
    def program(comm: Comm) -> str:
        if comm.rank == 0:
            comm.post(1, sized(1_000_000), "last words")
            return "gone"
        comm.wait(0, "last words")
        with pytest.raises(PeerFinishedError, match="rank 0"):
            comm.wait(0, "more")
        return "done"

    assert bare(2).run(program) == ["gone", "done"]


def test_a_crash_fails_every_wait_under_strict_losses():
    noticed = []

    def program(comm: Comm) -> None:
        comm.step = 1
        if comm.rank == 1:
            comm.step = 2
        try:
            comm.wait(ANY, "never")
        except PeerDiedError as error:
            noticed.append((comm.rank, error.rank))
            raise

    faults = FaultPlan([Crash(rank=1, step=2)])
    with pytest.raises(PeerDiedError, match="rank 1 died at step 2"):
        World(cluster(3), faults=faults).run(program)
    assert sorted(noticed) == [(0, 1), (2, 1)]


def test_a_departure_is_an_arrival_under_elastic_losses():
    def program(comm: Comm) -> tuple[int, bool]:
        comm.step = 1
        if comm.rank == 1:
            comm.step = 2
        arrival = comm.wait(1 if comm.rank == 0 else ANY, "never")
        comm.post(1, sized(10), "to the gone")
        if comm.rank == 0:
            comm.post(2, sized(10), "still here")
        else:
            comm.wait(0, "still here")
        return arrival.src, arrival.departed

    faults = FaultPlan([Crash(rank=1, step=2)])
    results = World(cluster(3), faults=faults, losses="elastic").run(program)
    assert results == [(1, True), None, (1, True)]


def test_faults_delay_drop_and_cut_messages():
    def program(comm: Comm) -> float | None:
        if comm.rank == 0:
            comm.post(1, sized(0), "x")
            return None
        return comm.wait(0, "x").time

    late = FaultPlan([Delay(seconds=0.5, src=0), Delay(seconds=0.25, dst=1)])
    assert bare(2, faults=late).run(program)[1] == pytest.approx(0.75 + LATENCY)
    for lost in (Drop(probability=1.0), Partition(group=(0,))):
        with pytest.raises((PeerFinishedError, WorkerFailedError), match="rank 0"):
            bare(2, faults=FaultPlan([lost])).run(program)
    with pytest.raises(InputError, match=r"0\.\.1"):
        Drop(probability=2.0)


def test_servers_are_endpoints_beside_worker_zero():
    def worker(comm: Comm) -> float:
        comm.post(comm.size, Packet((torch.tensor([float(comm.rank)]),)), "up")
        packet = comm.wait(comm.size, "down").packet
        assert packet is not None
        return float(packet.buffers[0][0])

    def server(comm: Comm) -> int:
        total = 0.0
        for _ in range(comm.size):
            packet = comm.wait(ANY, "up").packet
            assert packet is not None
            total += float(packet.buffers[0][0])
        for rank in range(comm.size):
            comm.post(rank, Packet((torch.tensor([total]),)), "down")
        return comm.meter.local.sent

    world = World(cluster(3), num_servers=1)
    assert world.run(worker, server) == [3.0, 3.0, 3.0, 28]
    assert world.endpoints[3].meter.sent == 2 * 28


def test_grad_mode_of_one_program_does_not_leak_into_another():
    def program(comm: Comm) -> list[bool]:
        seen = []
        if comm.rank == 0:
            with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
                for _ in range(3):
                    comm.spend(Work(elapsed=1.0))
                    seen.append(torch.is_grad_enabled() or not torch.is_autocast_enabled("cpu"))
        else:
            for _ in range(3):
                comm.spend(Work(elapsed=0.9))
                seen.append(torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu"))
        return seen

    assert World(cluster(2)).run(program) == [[False] * 3, [True] * 3]
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(
    "wrong",
    [{"placement": []}, {"placement": [9]}, {"num_servers": 1, "server_nodes": []},
     {"link_model": "magic"}],
)  # fmt: skip
def test_a_world_refuses_what_it_cannot_build(wrong):
    with pytest.raises(InputError):
        World(cluster(2), **wrong)


@pytest.mark.parametrize("text", ["element 3 is nan", "rank 1, step 2, 0.500 s: the loss is nan"])
def test_a_number_that_is_not_finite_is_reported_with_rank_and_step_once(text):
    def program(comm):
        comm.step = 2
        if comm.rank == 1:
            raise NonFiniteError(text)
        comm.wait(1, "x")

    with pytest.raises(WorkerFailedError, match=r"^rank 1, step 2") as failed:
        World(cluster(2)).run(program)
    assert text in str(failed.value)
    assert str(failed.value).count("rank 1") == 1


def test_what_was_spent_has_passed_at_the_next_thing_that_others_can_see():
    second = Work(flops=1e9)  # the nodes do 1e9 a second
    seen = {}

    def program(comm):
        comm.spend(second)
        comm.spend(second)
        if comm.rank == 0:
            comm.post(1, Packet(()), "x")
            seen["posted"] = comm.now()
            comm.spend(second)
            task = comm.start(lambda c: c.now(), "task")
            seen["started"] = task.wait()
            comm.spend(second)
            seen["looked"] = comm.now()
            comm.spend(second)  # and then it ends
        else:
            seen["came"] = comm.wait(0, "x").time

    world = World(cluster(2, flops=1e9), charge_headers=False)
    world.run(program)
    assert seen == {
        "posted": 2.0,
        "started": 3.0,
        "looked": 4.0,
        "came": pytest.approx(2.0, abs=0.01),
    }
    assert world.elapsed == 5.0
    assert world.endpoints[0].meter.computed == pytest.approx(5.0)


def test_a_planned_crash_comes_after_the_time_spent_before_it():
    def program(comm):
        for step in (1, 2):
            comm.step = step
            comm.spend(Work(flops=1e9))

    world = World(cluster(1, flops=1e9), faults=FaultPlan([Crash(rank=0, step=2)]))
    with pytest.raises(PeerDiedError):
        world.run(program)
    assert world.elapsed >= 1.0
