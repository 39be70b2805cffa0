"""A program of a process of its own, seen from the clock server as one of its fibres.

Here the processes are threads, each with its line: what is said on the lines is the same.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from thinwire import collectives
from thinwire.cluster import Cluster, Node
from thinwire.errors import (
    DeadlineError,
    DeadlockError,
    InputError,
    PeerDiedError,
    PeerFinishedError,
    RendezvousError,
    ThinwireError,
    WorkerFailedError,
)
from thinwire.testing.check_comm import all_checks, check_comm
from thinwire.wire import ANY, Comm, Packet, Work
from thinwire.wire.virtual import World
from thinwire.wire.virtual.clock_server import ClockServer
from thinwire.wire.virtual.remote import RemoteComm, Session


def cluster(size: int, jitter: float = 0.05) -> Cluster:
    nodes = tuple(
        Node(name=f"n{i}", flops=(3.1 + i) * 1e9, memory_rate=8e9, egress=1e7, ingress=1e7,
             jitter=jitter, kernel_rates={"select": 3e9})
        for i in range(size)
    )  # fmt: skip
    return Cluster(name="test", nodes=nodes, default_latency=0.0003)


@dataclass
class Ranks:
    """Threads that each play a worker's process, and what came of them."""

    size: int
    program: Callable[[Session], Any]
    how: Callable[[int], str] = lambda rank: ""
    options: dict[str, Any] = field(default_factory=dict)
    results: dict[int, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)

    def run(self) -> ClockServer:
        """Serve them to their ends; raises what the server raises."""
        pairs = [socket.socketpair() for _ in range(self.size)]
        threads = [
            threading.Thread(target=self._play, args=(theirs, rank), daemon=True)
            for rank, (_, theirs) in enumerate(pairs)
        ]
        server = ClockServer(
            cluster(self.size),
            [ours for ours, _ in pairs],
            ended=self.how,
            warn=self.warnings.append,
            trace=True,
            max_spans=10_000,
            **self.options,
        )
        for thread in threads:
            thread.start()
        try:
            server.run()
        finally:
            self.release.set()
            for thread in threads:
                thread.join(20)
        return server

    def _play(self, sock: socket.socket, rank: int) -> None:
        session = Session(sock, rank, self.size)
        try:
            self.results[rank] = self.program(session)
        except Exception as error:
            self.results[rank] = error
        finally:
            sock.close()


def met(program: Callable[[RemoteComm], Any], num_servers: int = 0) -> Callable[[Session], Any]:
    """A program of a comm as one of a session."""

    def run(session: Session) -> Any:
        with session.meet(num_servers, {}, {}) as comm:
            return program(comm)

    return run


def in_order(ranks: Ranks) -> list[Any]:
    return [ranks.results[rank] for rank in range(ranks.size)]


def test_the_remote_comm_keeps_the_promises_of_the_seam():
    def run(program: Callable[[Comm], Any], size: int) -> list[Any]:
        ranks = Ranks(size, met(program))
        try:
            ranks.run()
        except WorkerFailedError:
            raise next(r for r in ranks.results.values() if isinstance(r, Exception)) from None
        return in_order(ranks)

    check_comm(run, 3)
    check_comm(run, 5)


def mixed(comm: Comm) -> Any:
    """Computes, exchanges, has tasks, looks at the clock."""
    torch.manual_seed(comm.rank)
    total = torch.randn(500, generator=torch.Generator().manual_seed(comm.rank))
    times = []
    for step in range(4):
        comm.step = step
        comm.spend(Work(flops=1e6 * (1 + comm.rank)))
        comm.spend(Work(memory_bytes=5e5))
        comm.spend(Work(memory_bytes=3e5, kind="select"))
        task = comm.start(lambda c, x=total: collectives.all_reduce(c, x.clone()), f"t{step}")
        comm.spend(Work(flops=2e6))
        total = collectives.all_reduce(comm, total) / comm.size + task.wait() / 100
        times.append(comm.now())
    peer = (comm.rank + 1) % comm.size
    comm.post(peer, Packet.of(total), "last")
    return times, float(total.sum()), comm.wait(ANY, "last").src, comm.meter.sent


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_remote_world_has_the_times_bits_and_bytes_of_a_world_of_fibres(size: int):
    world = World(cluster(size))
    expected = world.run(mixed)
    ranks = Ranks(size, met(mixed))
    server = ranks.run()
    assert in_order(ranks) == expected
    assert server.elapsed == world.elapsed
    assert [m.sent for m in server.meters] == [e.meter.sent for e in world.endpoints]


def test_the_whole_suite_takes_the_time_that_it_takes_in_a_world_of_fibres():
    world = World(cluster(3))
    world.run(all_checks)
    assert Ranks(3, met(all_checks)).run().elapsed == world.elapsed


def test_announced_work_is_one_piece_with_what_is_spent_right_after():
    def pieces(comm: RemoteComm) -> float:
        for _ in range(3):
            comm.announce(Work(flops=1234567.0))
            comm.announce(Work(flops=2345678.0))
            comm.spend(Work(memory_bytes=98765.0))
            collectives.barrier(comm)
        return comm.now()

    def whole(comm: Comm) -> float:
        for _ in range(3):
            comm.spend(Work(flops=1234567.0 + 2345678.0, memory_bytes=98765.0))
            collectives.barrier(comm)
        return comm.now()

    ranks = Ranks(3, met(pieces))
    ranks.run()
    assert in_order(ranks) == World(cluster(3)).run(whole)


def test_two_ranks_compute_at_the_same_real_time():
    """Each waits, in its own code, until the other has come as far."""
    both = threading.Barrier(2, timeout=15)

    def program(comm: RemoteComm) -> int:
        for _ in range(3):
            comm.announce(Work(flops=1e9))
            both.wait()  # no deadlock: the other has been let go, too
            collectives.barrier(comm)
        return 3

    ranks = Ranks(2, met(program))
    ranks.run()
    assert in_order(ranks) == [3, 3]


def test_a_server_lives_in_the_process_of_rank_0():
    def server(comm: Comm) -> int:
        seen = 0
        for _ in range(2 * comm.size):
            arrival = comm.wait(ANY, "up")
            comm.spend(Work(flops=1e6))
            comm.post(arrival.src, Packet.of(torch.tensor([float(seen)])), "down")
            seen += 1
        return seen

    def program(comm: RemoteComm) -> Any:
        task = comm.serve(server) if comm.rank == 0 else None
        found = []
        for _ in range(2):
            comm.announce(Work(flops=1e7))
            comm.post(comm.size, Packet.of(torch.ones(1)), "up")
            packet = comm.wait(comm.size, "down").packet
            assert packet is not None
            found.append(float(packet.buffers[0]))
        return found, None if task is None else task.wait(), comm.now()

    first, second = (Ranks(3, met(program, num_servers=1)) for _ in range(2))
    server_side = first.run()
    second.run()
    assert first.results == second.results
    assert sorted(n for found, _, _ in first.results.values() for n in found) == [0, 1, 2, 3, 4, 5]
    assert first.results[0][1] == 6
    assert server_side.meters[3].messages_sent == 4  # to the two that are on other nodes


def test_meetings_of_one_run_keep_their_messages_apart():
    def program(session: Session) -> list[float]:
        found = []
        first, second = session.meet(0, {}, {}), session.meet(0, {}, {})
        peer = 1 - session.rank
        for comm, value in ((second, 2.0), (first, 1.0)):
            comm.post(peer, Packet.of(torch.tensor([value])), "x")
        for comm in (first, second):
            packet = comm.wait(peer, "x").packet
            assert packet is not None
            found.append(float(packet.buffers[0]))
        second.__exit__(None, None, None)
        first.__exit__(None, None, None)
        return found

    ranks = Ranks(2, program)
    ranks.run()
    assert in_order(ranks) == [[1.0, 2.0]] * 2


def test_what_ranks_share_costs_neither_time_nor_bytes():
    def program(comm: RemoteComm) -> Any:
        comm.announce(Work(flops=1e9 if comm.rank == 1 else 1.0))
        frames = Packet.of(torch.arange(3)).frames() if comm.rank == 0 else ()
        shared = comm.share("name", {"rank": comm.rank}, frames)
        got = Packet.from_frames(shared.frames).buffers[0].tolist() if comm.rank else [0, 1, 2]
        return shared.values, got, comm.now()

    ranks = Ranks(3, met(program))
    server = ranks.run()
    slowest = server.spans[-1][3] / 1e9
    for values, got, now in in_order(ranks):
        assert values == [{"rank": 0}, {"rank": 1}, {"rank": 2}]
        assert got == [0, 1, 2]
        assert now == slowest
    assert [m.sent for m in server.meters] == [0, 0, 0]


# What goes wrong.


def failing(program: Callable[[Session], Any], size: int = 3, **more: Any) -> tuple[Ranks, Any]:
    """Run ranks that cannot end well; the error the server raised."""
    ranks = Ranks(size, program, **more)
    with pytest.raises(ThinwireError) as raised:
        ranks.run()
    return ranks, raised.value


def test_a_rank_that_raises_is_named_by_all_others():
    def program(comm: RemoteComm) -> None:
        comm.step = 7
        if comm.rank == 1:
            raise ValueError("a bad batch")
        comm.wait(1, "never")

    ranks, error = failing(met(program))
    assert isinstance(error, WorkerFailedError)
    assert error.rank == 1
    for rank in (0, 2):
        assert isinstance(ranks.results[rank], PeerDiedError)
        assert str(ranks.results[rank]) == "rank 1 failed at step 7: ValueError: a bad batch"


def test_a_rank_that_is_killed_is_named_while_another_is_busy():
    let_go = threading.Event()

    def program(session: Session) -> None:
        comm = session.meet(0, {}, {})
        if session.rank == 1:
            session.flush()
            return  # hangs up without a goodbye
        if session.rank == 0:
            let_go.wait(10)
        comm.wait(1, "never")

    def how(rank: int) -> str:
        let_go.set()
        return "was killed by SIGKILL" if rank == 1 else ""

    ranks, error = failing(program, how=how)
    assert str(error) == "rank 1 was killed by SIGKILL"
    assert all(isinstance(ranks.results[rank], PeerDiedError) for rank in (0, 2))


def test_a_rank_that_leaves_its_meeting_open_is_named():
    def program(session: Session) -> None:
        comm = session.meet(0, {}, {})
        if session.rank:
            comm.wait(0, "never")

    _, error = failing(program)
    assert str(error) == "rank 0 ended without tw.finish()"


def test_a_cyclic_wait_is_a_deadlock_that_names_everyone():
    ranks, error = failing(met(lambda comm: comm.wait((comm.rank + 1) % 3, "x")))
    assert isinstance(error, DeadlockError)
    for rank in range(3):
        assert f"rank {rank} waits for rank {(rank + 1) % 3} (tag 'x'" in str(error)
        assert isinstance(ranks.results[rank], DeadlockError)


def test_waiting_for_one_who_has_finished_is_an_error_to_be_caught():
    def program(comm: RemoteComm) -> str:
        if comm.rank:
            return ""
        with pytest.raises(PeerFinishedError, match="rank 2"):
            comm.wait(2, "x")
        return "caught"

    ranks = Ranks(3, met(program))
    ranks.run()
    assert ranks.results[0] == "caught"


def test_settings_that_differ_are_named_by_all():
    def program(session: Session) -> None:
        session.meet(0, {"method": "gtopk" if session.rank == 2 else "ssgd"}, {})

    ranks, error = failing(program)
    assert isinstance(error, RendezvousError)
    assert "the ranks differ in method" in str(error)
    assert "'gtopk' on rank 2" in str(error)
    assert all(isinstance(r, RendezvousError) for r in ranks.results.values())


def test_a_rank_that_never_comes_is_named():
    _, error = failing(lambda s: None if s.rank == 1 else s.meet(0, {}, {}))
    assert isinstance(error, InputError)
    assert "rank 1 ended without tw.distribute()" in str(error)


def test_a_script_without_distribute_is_told_so():
    _, error = failing(lambda session: None)
    assert "ended without tw.distribute(): there is nothing to simulate" in str(error)


@pytest.mark.slow
def test_a_rank_lost_in_its_own_code_is_warned_of_and_then_ends_the_run():
    def program(comm: RemoteComm) -> None:
        if comm.rank == 1:
            ranks.release.wait(20)

    ranks = Ranks(2, met(program), options={"warn_after": 0.05, "deadline": 0.6})
    with pytest.raises(DeadlineError, match="rank 1 has been busy with its own code"):
        ranks.run()
    assert "rank 1 has been busy with its own code" in ranks.warnings[0]


def test_a_barrier_before_the_first_meeting_is_kept():
    order: list[str] = []

    def program(session: Session) -> None:
        if session.rank == 0:
            order.append("before")
        session.barrier()
        order.append("after")
        session.meet(0, {}, {}).__exit__(None, None, None)

    Ranks(3, program).run()
    assert order == ["before", *["after"] * 3]


def test_requests_from_another_thread_are_refused():
    def program(comm: RemoteComm) -> str:
        found: list[Exception] = []

        def other() -> None:
            try:
                comm.wait(1 - comm.rank, "x", 1.0)
            except Exception as error:
                found.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return str(found[0])

    ranks = Ranks(2, met(program))
    ranks.run()
    assert "only the script's main thread" in ranks.results[0]


def test_large_packets_both_ways_do_not_lock_up():
    """More than the lines hold, from everyone to everyone, before anyone waits."""

    def program(comm: RemoteComm) -> float:
        others = [r for r in range(comm.size) if r != comm.rank]
        task = comm.start(lambda inner: exchange(inner, others), "beside")
        return exchange(comm, others) + task.wait()

    def exchange(comm: Comm, others: list[int]) -> float:
        for rank in others:
            comm.post(rank, Packet((torch.full((500_000,), 1.0 + comm.rank),)), "large")
        found = [comm.wait(rank, "large").packet for rank in others]
        return sum(float(p.buffers[0][-1]) for p in found if p is not None)

    ranks = Ranks(3, met(program))
    ranks.run()
    assert in_order(ranks) == [10.0, 8.0, 6.0]
