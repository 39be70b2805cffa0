"""Who is named when a process dies, fails, stalls or leaves."""

import logging
import math
import os
import signal
import threading
import time

import pytest
import torch

from thinwire.errors import DeadlineError, PeerDiedError, PeerFinishedError
from thinwire.testing.processes import Ended, run_processes
from thinwire.wire import ANY, Crash, FaultPlan, Packet
from thinwire.wire.sockets import connect

pytestmark = pytest.mark.distributed

# A wait that ends by its deadline raises another error than one that is told of a death: the
# deadlines below are the times within which a loss must be named.


def packet(*values):
    return Packet((torch.tensor(values, dtype=torch.float32),))


def values(arrival):
    return arrival.packet.buffers[0].tolist()


def killed(rank, size):
    with connect() as comm:
        if rank == size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        comm.wait((rank + 1) % (size - 1), "never", 5.0)


def test_a_killed_process_is_named_by_all_also_while_they_wait_for_others():
    *survivors, victim = run_processes(killed, 4)
    assert victim == Ended(-signal.SIGKILL)
    for error in survivors:
        assert isinstance(error, PeerDiedError)
        assert error.rank == 3
        assert "rank 3 (pid " in str(error)
        assert "tag 'never'" in str(error)


def killed_with_a_child(rank, size):
    with connect() as comm:
        if rank == 1:
            child = os.fork()
            if child == 0:
                threading.Event().wait(30)  # as a data loader's worker would live on
                os._exit(0)
            comm.post(0, packet(child), "child")
            comm.wait(0, "go")
            os.kill(os.getpid(), signal.SIGKILL)
        child = int(values(comm.wait(1, "child"))[0])
        comm.post(1, packet(), "go")
        try:
            comm.wait(1, "never", 5.0)
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_forked_child_does_not_hide_the_death_of_its_parent():
    survivor, _ = run_processes(killed_with_a_child, 2)
    assert isinstance(survivor, PeerDiedError)


def failing(rank, size):
    with connect() as comm:
        comm.step = 12
        if rank == 2:
            raise ValueError("a bad batch")
        comm.wait((rank + 1) % 2, "never", 5.0)


def test_an_exception_on_one_rank_is_told_to_all_in_its_own_words():
    *others, culprit = run_processes(failing, 3)
    assert isinstance(culprit, ValueError)
    for error in others:
        assert isinstance(error, PeerDiedError)
        assert error.rank == 2
        assert "failed at step 12: ValueError: a bad batch" in str(error)


def late_to_notice(rank, size):
    with connect() as comm:
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 1:
            threading.Event().wait(3.0)  # computes until the other survivor is gone, too
        comm.wait(1 - rank, "never", 5.0)


@pytest.mark.slow
def test_a_survivor_that_notices_late_names_the_first_that_died():
    for error in run_processes(late_to_notice, 3)[:2]:
        assert isinstance(error, PeerDiedError)
        assert error.rank == 2


def crashing(rank, size):
    with connect(faults=FaultPlan([Crash(rank=1, step=3)])) as comm:
        for step in range(5):
            comm.step = step
            comm.post(1 - rank, packet(step))
            comm.wait(1 - rank, deadline=5.0)


def test_a_planned_crash_looks_like_a_death():
    survivor, _ = run_processes(crashing, 2)
    assert isinstance(survivor, PeerDiedError)
    assert survivor.rank == 1
    assert "step 3" in str(survivor)


def task_of_a_survivor(rank, size):
    with connect() as comm:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        task = comm.start(lambda c: c.wait(1, "never", 5.0), "t")
        task.wait()


def test_a_death_also_ends_the_waits_of_tasks():
    survivor, _ = run_processes(task_of_a_survivor, 2)
    assert isinstance(survivor, PeerDiedError)


def leaving(rank, size):
    with connect() as comm:
        if rank == 1:
            comm.post(0, packet(7), "last")
            return None
        with pytest.raises(PeerFinishedError, match=r"waits for rank 1 \(tag 'x', step 0\)"):
            comm.wait(1, "x", 5.0)
        if rank == 0:
            # What was posted before the goodbye is still there after it.
            last = values(comm.wait(1, "last"))
            with pytest.raises(PeerFinishedError, match="every other endpoint"):
                comm.wait(ANY, "x", 20.0)
            return last
        return "done"


def test_a_goodbye_is_no_death():
    assert run_processes(leaving, 3) == [[7.0], None, "done"]


def elastic(rank, size):
    with connect(losses="elastic") as comm:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 2:
            comm.wait(0, "go", 20.0)
            return None
        first = comm.wait(ANY, "x", 5.0)
        again = comm.wait(1, "y", 5.0)
        comm.post(1, packet(1))  # dropped
        comm.post(2, packet(), "go")
        second = comm.wait(ANY, "x", 20.0)
        return (
            [(a.src, a.departed) for a in (first, again, second)],
            comm.meter.peers[1].messages_sent,
        )


def test_a_departure_is_an_arrival_where_losses_are_elastic():
    stayed, _, left = run_processes(elastic, 3)
    assert stayed == ([(1, True), (1, True), (2, True)], 0)
    assert left is None


def missed_deadline(rank, size):
    with connect(warn_after=0.2) as comm:
        comm.step = 4
        if rank == 0:
            with pytest.raises(DeadlineError) as caught:
                comm.wait(1, ("grad", 2), 0.5)
            comm.post(1, packet(1))
            comm.post(2, packet(1))
            return str(caught.value)
        comm.post((rank % 2) + 1, packet(rank), "beside")
        return values(comm.wait((rank % 2) + 1, "beside")), values(comm.wait(0))


def test_a_deadline_that_passes_names_who_is_missing_and_harms_nobody():
    text, *others = run_processes(missed_deadline, 3)
    assert "rank 0 waited 0.5 s for rank 1 (tag ('grad', 2), step 4)" in text
    assert "Missing: rank 1 (pid " in text
    assert others == [([2.0], [1.0]), ([1.0], [1.0])]


def stalled(rank, size):
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("thinwire.wire").addHandler(handler)
    with connect(warn_after=0.2) as comm:
        comm.step = 9
        if rank == 0:
            with pytest.raises(DeadlineError):
                comm.wait(1, "slow", 1.0)
            comm.post(1, packet())
        else:
            comm.wait(0)
    return lines


def test_a_stall_is_announced_before_its_deadline():
    line = run_processes(stalled, 2)[0][0]
    assert "rank 0 has waited 0 s for rank 1 (tag 'slow', step 9). Missing: rank 1 (pid " in line


def listening(rank, size):
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("thinwire.wire").addHandler(handler)
    with connect(warn_after=0.05) as comm:
        if rank == 0:
            heard = comm.start(lambda c: c.wait(ANY, "end", math.inf).src, "listener")
            with pytest.raises(DeadlineError):
                comm.wait(1, "nothing", 0.4)
            comm.post(1, packet())
            return heard.wait(), lines
        comm.wait(0)
        comm.start(lambda c: c.post(0, packet(), "end"), "listener").wait()


def test_who_listens_to_anyone_without_end_is_not_stalled():
    heard, lines = run_processes(listening, 2)[0]
    assert heard == 1
    assert lines
    assert all("for rank 1 (tag 'nothing'" in line for line in lines), lines


def stopped(rank, size):
    with connect() as comm:
        if rank == 1:
            comm.post(0, packet(os.getpid()), "pid")
            return values(comm.wait(0, "big"))[-1]
        pid = int(values(comm.wait(1, "pid"))[0])
        os.kill(pid, signal.SIGSTOP)
        # More than the kernels between the two hold, so that the link is full meanwhile.
        comm.post(1, Packet((torch.ones(8_000_000),)), "big")
        with pytest.raises(DeadlineError):
            comm.wait(1, "x", 4.0)
        os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
def test_a_stopped_process_with_a_full_link_is_not_taken_for_dead():
    assert run_processes(stopped, 2) == [None, 1.0]


def busy(rank, size):
    with connect() as comm:
        if rank == 1:
            until = comm.now() + 1.0
            while comm.now() < until:
                pass
        comm.post(1 - rank, Packet((torch.ones(2_000_000),)))
        return values(comm.wait(1 - rank))[-1]


def test_a_process_busy_in_python_is_waited_for():
    assert run_processes(busy, 2) == [1.0, 1.0]


def interrupted(rank, size):
    with connect() as comm:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait(10.0)
        comm.wait(1 - rank, "never", 5.0)


def test_sigterm_ends_a_process_with_an_ordinary_error_and_the_others_hear_of_it():
    other, told = run_processes(interrupted, 2)
    assert isinstance(told, SystemExit)
    assert "rank 1, step 0 was told to stop" in str(told)
    assert isinstance(other, PeerDiedError)
    assert other.rank == 1


def interrupted_while_waiting(rank, size):
    with connect() as comm:
        if rank == 1:
            comm.post(0, packet(os.getpid()), "pid")
            comm.wait(0, "never", 20.0)
        pid = int(values(comm.wait(1, "pid"))[0])
        os.kill(pid, signal.SIGTERM)
        comm.wait(1, "never", 20.0)


def test_sigterm_also_ends_a_wait():
    other, told = run_processes(interrupted_while_waiting, 2)
    assert isinstance(told, SystemExit)
    assert isinstance(other, PeerDiedError)


def idle(rank, size):
    with connect() as comm:
        for _ in range(20):  # short waits, after which a program polls before it sleeps
            comm.post(1 - rank, packet(rank))
            comm.wait(1 - rank)
        began = time.process_time()
        with pytest.raises(DeadlineError):
            comm.wait(1 - rank, "never", 2.0)
        used = time.process_time() - began
        comm.post(1 - rank, packet(), "end")
        comm.wait(1 - rank, "end")
        return used


def test_an_idle_wait_sleeps():
    assert max(run_processes(idle, 2)) < 0.5
