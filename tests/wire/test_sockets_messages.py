"""What arrives, in which order, and how it is counted. Programs run in processes of their own."""

import os
import signal
import warnings
from collections import deque

import pytest
import torch

from thinwire.errors import (
    DeadlineError,
    DeadlockError,
    InputError,
    PeerFinishedError,
    ThinwireError,
    WaitInBackwardError,
    WorkerFailedError,
)
from thinwire.testing.processes import run_processes
from thinwire.wire import ANY, Delay, Drop, FaultPlan, Packet, Work
from thinwire.wire.sockets import connect

pytestmark = pytest.mark.distributed


def packet(*values):
    return Packet((torch.tensor(values, dtype=torch.float32),))


def values(arrival):
    return arrival.packet.buffers[0].tolist()


def ordered(rank, size):
    with connect(deadline=20) as comm:
        if rank == 0:
            for i in range(50):
                comm.post(1, packet(i), "a" if i % 2 else ("b", 1))
            return None
        odd = [values(comm.wait(0, "a"))[0] for _ in range(25)]
        even = [values(comm.wait(ANY, ("b", 1)))[0] for _ in range(25)]
        return odd, even


def test_packets_of_one_tag_arrive_in_the_order_of_posting():
    _, (odd, even) = run_processes(ordered, 2)
    assert odd == list(range(1, 50, 2))
    assert even == list(range(0, 50, 2))


def exchanged_sizes(rank, size):
    warnings.simplefilter("error")
    with connect(deadline=20) as comm:
        results = []
        for count in (0, 1, 4_000, 40_000, 3_000_000):
            mine = torch.arange(count, dtype=torch.int32) + rank
            small = torch.full((3,), rank, dtype=torch.bfloat16)
            comm.post(1 - rank, Packet((small, mine, torch.empty(0)), "gradient", 9, 4), count)
            came = comm.wait(1 - rank, count).packet
            came.buffers[1].add_(0)  # what has arrived may be written
            results.append(
                torch.equal(came.buffers[1], mine - rank + 1 - rank)
                and came.buffers[0].tolist() == [1 - rank] * 3
                and (came.kind, came.step, came.layer) == ("gradient", 9, 4)
            )
        meter = comm.meter.peers[1 - rank]
        return results, meter.sent, meter.received, meter.messages_sent, meter.messages_received


def test_buffers_of_any_size_arrive_whole_and_are_counted_to_the_byte():
    expected = sum(40 + 6 + 4 * n for n in (0, 1, 4_000, 40_000, 3_000_000))
    for outcome in run_processes(exchanged_sizes, 2):
        assert outcome == ([True] * 5, expected, expected, 5, 5)


def crossing(rank, size):
    with connect(deadline=30) as comm:
        big = Packet((torch.full((2_000_000,), float(rank)),))
        for peer in range(size):
            if peer != rank:
                comm.post(peer, big)
        return sorted(values(comm.wait())[-1] for _ in range(size - 1))


def test_everybody_may_post_large_packets_before_anybody_waits():
    assert run_processes(crossing, 4)[2] == [0.0, 1.0, 3.0]


def chained(rank, size):
    faults = FaultPlan([Delay(seconds=1.0, src=0, dst=1)])
    with connect(deadline=20, faults=faults) as comm:
        if rank == 0:
            comm.wait(2, "ready")
            first = comm.post(1, packet(1))
            second = comm.post(2, packet(2), after=first)
            comm.post(1, packet(3), after=second)
            comm.post(2, packet(4))
        elif rank == 1:
            return [values(comm.wait(0))[0] for _ in range(2)]
        else:
            comm.post(0, packet(), "ready")
            with pytest.raises(DeadlineError):
                comm.wait(0, deadline=0.3)
            return [values(comm.wait(0))[0] for _ in range(2)]


def test_a_packet_leaves_only_after_the_one_it_names_and_is_not_overtaken():
    assert run_processes(chained, 3)[1:] == [[1.0, 3.0], [2.0, 4.0]]


def chain_of_thousand(rank, size):
    faults = FaultPlan([Delay(seconds=0.2, src=0, end=0.1)])
    with connect(deadline=30, faults=faults) as comm:
        if rank:
            return [values(comm.wait(0))[0] for _ in range(1000 // (size - 1))][-1]
        last = None
        for i in range(1000):
            last = comm.post(1 + i % (size - 1), packet(i), after=last)


def test_a_long_chain_of_packets_is_no_recursion():
    assert run_processes(chain_of_thousand, 3)[1:] == [998.0, 999.0]


def tasks_in_differing_order(rank, size):
    def program(comm):
        comm.post(1 - rank, packet(rank))
        return values(comm.wait(1 - rank))[0]

    with connect(deadline=20) as comm:
        keys = ["x", "y"] if rank else ["y", "x"]
        tasks = {key: comm.start(program, key) for key in keys}
        with pytest.raises(InputError, match="a task 'x' is still running"):
            comm.start(program, "x")
        outcomes = [tasks[key].wait() for key in sorted(tasks)]
        return outcomes, torch.is_grad_enabled(), all(t.done for t in tasks.values())


def test_tasks_started_in_differing_order_do_not_deadlock():
    first, program = run_processes(tasks_in_differing_order, 2)
    assert first == ([1.0, 1.0], True, True)
    assert program == ([0.0, 0.0], True, True)


def nested_tasks(rank, size):
    def inner(comm):
        comm.post(1 - rank, packet(rank), "t")
        return values(comm.wait(1 - rank, "t"))[0]

    def outer(comm):
        grad = torch.is_grad_enabled()
        task = comm.start(inner, "inner")
        comm.post(1 - rank, packet(10 + rank), "t")
        return values(comm.wait(1 - rank, "t"))[0], task.wait(), grad

    with connect(deadline=20) as comm:
        task = comm.start(outer, "outer")
        comm.post(1 - rank, packet(20 + rank), "t")
        return values(comm.wait(1 - rank, "t"))[0], task.wait()


def test_tags_of_tasks_are_apart_and_gradients_are_off_in_them():
    assert run_processes(nested_tasks, 2)[0] == (21.0, (11.0, 1.0, False))


def failing_task(rank, size):
    with connect(deadline=20) as comm:
        if rank == 0:

            def program(_):
                raise ValueError("in the task")

            comm.start(program, "t")
        comm.wait(1 - rank)


def test_a_task_that_fails_unseen_fails_the_run():
    here, there = run_processes(failing_task, 2)
    assert isinstance(here, WorkerFailedError)
    assert "ValueError: in the task" in str(here)
    assert "ValueError: in the task" in str(there)


def many_tasks(rank, size):
    def program(comm):
        comm.post(1 - rank, packet(rank), "t")
        return values(comm.wait(1 - rank, "t"))[0]

    with connect(deadline=20) as comm:
        kept = []
        for i in range(20):
            tasks = [comm.start(program, f"{i % 3}, {name}") for name in "ab"]
            assert [task.wait() for task in tasks] == [1 - rank] * 2
            kept.append(len(comm._run.tasks))
        unasked = comm.start(program, "unasked")
    return kept, unasked.done, len(comm._run.tasks)


def test_tasks_that_have_ended_well_are_not_kept():
    assert run_processes(many_tasks, 2)[0] == ([0] * 20, True, 0)


def served(rank, size):
    def server(comm):
        total, alive = 0.0, size
        while alive:
            arrival = comm.wait(ANY, "up")
            if arrival.departed:
                alive -= 1
                continue
            total += values(arrival)[0]
            comm.post(arrival.src, packet(total), "down")
        return total, comm.meter.local.messages_received, comm.meter.messages_sent

    with connect(deadline=20, num_servers=1, losses="elastic") as comm:
        task = comm.serve(server) if rank == 0 else None
        seen = 0.0
        for _ in range(10):
            comm.post(size, packet(1), "up")
            seen = values(comm.wait(size, "down"))[0]
        local = comm.meter.local.messages_sent
    return seen, local, task.wait() if task else None


def test_a_server_beside_rank_0_serves_all_until_they_have_left():
    outcomes = run_processes(served, 3)
    assert max(seen for seen, _, _ in outcomes) == 30.0
    assert outcomes[0][1:] == (10, (30.0, 10, 20))
    assert outcomes[1][1:] == (0, None)


def refused(rank, size):
    messages = []

    def attempt(kind, action):
        with pytest.raises(kind) as caught:
            action()
        messages.append(str(caught.value))

    with connect(deadline=20) as comm:
        attempt(InputError, lambda: comm.post(2, packet(1)))
        attempt(InputError, lambda: comm.post(rank, packet(1)))
        attempt(InputError, lambda: comm.wait(7))
        attempt(InputError, lambda: comm.serve(lambda c: None))
        attempt(InputError, lambda: comm.post(1 - rank, Packet((torch.empty(3, device="meta"),))))
        weight = torch.ones(1, requires_grad=True)
        loss = weight * 2
        loss.register_hook(lambda g: comm.wait(1 - rank))
        attempt(WaitInBackwardError, loss.backward)
    attempt(InputError, lambda: comm.post(1 - rank, packet(1)))
    return messages


def test_what_cannot_be_posted_or_awaited_is_refused_with_the_reason():
    messages = run_processes(refused, 2)[0]
    expected = [
        "post to 2; valid: 0..1",
        "post to 0; valid: 0..1, not itself",
        "wait for 7; valid: 0..1",
        "serve(0)",
        "meta tensors",
        "inside backward",
        "has been closed",
    ]
    for message, part in zip(messages, expected, strict=True):
        assert part in message


def hooks_post(rank, size):
    with connect(deadline=20, spend=lambda work: work.elapsed) as comm:
        weight = torch.ones(3, requires_grad=True)

        def hook(gradient):
            comm.spend(Work(elapsed=0.01))
            comm.post(1 - rank, Packet.of(gradient), "g")
            comm.start(lambda c: c.post(1 - rank, packet(5)), "task")

        weight.register_hook(hook)
        charged_in_hook = comm.meter.computed
        (weight * (rank + 2)).sum().backward()
        gradient = values(comm.wait(1 - rank, "g"))
        return gradient, charged_in_hook, round(comm.meter.computed, 3)


def test_hooks_may_post_start_and_spend():
    assert run_processes(hooks_post, 2)[0] == ([3.0, 3.0, 3.0], 0.0, 0.01)


def lossy(rank, size):
    faults = FaultPlan([Drop(probability=1.0, src=0, dst=1)])
    with connect(deadline=20, faults=faults) as comm:
        if rank == 0:
            comm.post(1, packet(0), "x")
            return values(comm.wait(1, "x"))
        with pytest.raises(
            DeadlineError, match=r"rank 1 waited 0.2 s for rank 0 \(tag 'x', step 0"
        ):
            comm.wait(0, "x", 0.2)
        comm.post(0, packet(1), "x")


def test_an_injected_loss_loses_the_message():
    assert run_processes(lossy, 2) == [[1.0], None]


def flooding(rank, size):
    with connect(deadline=20, max_queued=1 << 20) as comm:
        if rank == 1:
            comm.post(0, packet(os.getpid()), "pid")
            with pytest.raises(PeerFinishedError):
                comm.wait(0, "done")
            return None
        pid = int(values(comm.wait(1, "pid"))[0])
        os.kill(pid, signal.SIGSTOP)
        block = Packet((torch.zeros(1 << 20),))
        try:
            for _ in range(20):  # the kernels between the two hold a few of these
                comm.post(1, block)
        except ThinwireError as error:
            return str(error)
        finally:
            os.kill(pid, signal.SIGCONT)
        return ""


def test_posting_without_end_is_refused_and_not_queued():
    assert "has posted 0.0 GiB to rank 1" in run_processes(flooding, 2)[0]


def test_alone_without_an_environment(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with connect(num_servers=1) as comm:
        task = comm.serve(lambda c: values(c.wait(0, "x"))[0])
        comm.post(1, packet(4), "x")
        assert task.wait() == 4.0
        assert (comm.rank, comm.size, comm.meter.sent, comm.meter.local.sent) == (0, 1, 0, 28)
    with connect() as comm, pytest.raises(DeadlockError, match="alone"):
        comm.wait()


def test_a_packet_that_comes_while_another_is_taken_is_not_lost():
    """The wait finds one in the box; before it has left, the other thread hands it the next."""
    with connect(num_servers=1, warn_after=0.05) as comm:
        comm.serve(lambda server: server.wait(0, "stop"))
        station, key = comm._station, comm._run.encode((None, "x"))
        endpoint, counter = comm._endpoint, comm.meter.peers[1]
        take, calls = station.take, []

        def take_while_more_comes(*args):
            if args[2] == key:  # the server waits, too
                calls.append(args)
            if args[2] == key and len(calls) == 2:  # the first look was before the wait began
                endpoint.boxes[key] = deque([(1, Packet((torch.ones(1),)), 0.0)])
                found = take(*args)
                station._arrive(endpoint, 1, key, Packet((torch.ones(2),)), counter)
                return found
            return take(*args)

        station.take = take_while_more_comes
        first = comm.wait(1, "x", deadline=10).packet
        station.take = take
        second = comm.wait(1, "x", deadline=10).packet
        comm.post(1, Packet(()), "stop")
    assert [first.buffers[0].numel(), second.buffers[0].numel()] == [1, 2]


def test_a_packet_that_comes_between_two_looks_is_found():
    with connect(num_servers=1, warn_after=0.05) as comm:
        comm.serve(lambda server: server.wait(0, "stop"))
        station, key = comm._station, comm._run.encode((None, "x"))
        endpoint, counter = comm._endpoint, comm.meter.peers[1]
        drive = comm._loop.drive

        def drive_then_deliver(waiter, until):
            drive(waiter, until)
            station.gone[1] = "finished"  # nothing more can come
            lock = comm._loop.lock

            class Late:
                def __enter__(self):
                    lock.acquire()
                    comm._loop.lock = lock
                    station._arrive(endpoint, 1, key, Packet((torch.ones(3),)), counter)

                def __exit__(self, *_):
                    lock.release()

            comm._loop.lock = Late()

        comm._loop.drive = drive_then_deliver
        came = comm.wait(1, "x", deadline=10).packet
        del comm._loop.drive
        del station.gone[1]
        comm.post(1, Packet(()), "stop")
    assert came.buffers[0].numel() == 3
