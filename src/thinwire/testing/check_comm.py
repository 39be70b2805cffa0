"""The conformance suite of the seam: what every `Comm` must do, whatever carries it.

    check_comm(lambda program, size: World(cluster(size)).run(program))

Each check is a program for all ranks that asserts what it promises; all of them run one after the
other in one world or one group of processes, so that a real wire pays for one start only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thinwire.errors import DeadlineError, InputError, WaitInBackwardError
from thinwire.wire import ANY, Comm, Packet, Work

__all__ = ["CHECKS", "all_checks", "check_comm"]

Run = Callable[[Callable[[Comm], Any], int], list[Any]]


def check_comm(run: Run, size: int = 3) -> None:
    """Hold a communicator to the contract.

    Args:
        run: runs a program on `size` workers and returns their results, raising what a rank raised.
        size: at least 3.

    Raises:
        AssertionError: a promise that is not kept; the check's name is in the traceback.
    """
    assert size >= 3, size
    results = run(all_checks, size)
    expected = [check.__name__ for check in CHECKS]
    for rank, done in enumerate(results):
        assert done == expected, f"rank {rank} did {done}"


def all_checks(comm: Comm) -> list[str]:
    """Every check in turn; the names of those done."""
    done = []
    for step, check in enumerate(CHECKS, start=1):
        comm.step = step
        check(comm)
        _meet(comm, check.__name__)
        done.append(check.__name__)
    return done


def _number(value: float, **header: Any) -> Packet:
    return Packet((torch.tensor([value]),), **header)


def _value(comm: Comm, src: int, tag: Any) -> float:
    packet = comm.wait(src, tag, deadline=30.0).packet
    assert packet is not None
    return float(packet.buffers[0][0])


def _raised(kind: type[Exception], action: Callable[[], Any]) -> str:
    """The text of the exception that `action` must raise."""
    try:
        action()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} was raised")


def _others(comm: Comm) -> list[int]:
    return [r for r in range(comm.size) if r != comm.rank]


def _meet(comm: Comm, name: str) -> None:
    for rank in _others(comm):
        comm.post(rank, _number(0.0, kind="control"), ("meet", name))
    for rank in _others(comm):
        _value(comm, rank, ("meet", name))


def packets_of_a_pair_keep_their_order(comm: Comm) -> None:
    """One tag, one pair: first posted, first received; big and small alike."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for i in range(20):
        payload = torch.full((1 if i % 3 else 50_000,), float(i))
        comm.post(after, Packet((payload,)), "order")
    assert [_value(comm, before, "order") for _ in range(20)] == list(range(20))


def tags_do_not_mix(comm: Comm) -> None:
    """A wait takes only its own tag, also when another came first."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for tag in ("a", 7, ("a", 1), ("a", "long")):
        comm.post(after, _number(len(repr(tag))), tag)
    for tag in (("a", "long"), ("a", 1), 7, "a"):
        assert _value(comm, before, tag) == len(repr(tag))


def any_takes_each_message_once(comm: Comm) -> None:
    """Waiting for anyone gives every message once and says whose it was."""
    for rank in _others(comm):
        comm.post(rank, _number(comm.rank), "any")
    seen = []
    for _ in _others(comm):
        arrival = comm.wait(ANY, "any", deadline=30.0)
        assert arrival.packet is not None
        assert float(arrival.packet.buffers[0][0]) == arrival.src
        seen.append(arrival.src)
    assert sorted(seen) == _others(comm)


def a_source_is_waited_for_past_others(comm: Comm) -> None:
    """A wait for one source leaves the others' messages of that tag where they are."""
    for rank in _others(comm):
        comm.post(rank, _number(comm.rank), "source")
    for rank in reversed(_others(comm)):
        assert _value(comm, rank, "source") == rank


def posting_never_blocks(comm: Comm) -> None:
    """Everybody may post a lot before anybody waits."""
    payload = torch.full((250_000,), float(comm.rank))
    for rank in _others(comm):
        comm.post(rank, Packet((payload,)), "big")
    for rank in _others(comm):
        packet = comm.wait(rank, "big", deadline=60.0).packet
        assert packet is not None
        assert bool((packet.buffers[0] == rank).all())


def packets_arrive_as_they_left(comm: Comm) -> None:
    """Header fields, every dtype, an empty buffer, a second buffer."""
    dtypes = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8,
              torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool]  # fmt: skip
    buffers = [torch.arange(5).to(d) for d in dtypes] + [torch.empty(0, dtype=torch.int32)]
    sent = Packet(tuple(buffers), kind="sparse", step=2**32 - 1, layer=12)
    comm.post((comm.rank + 1) % comm.size, sent, "intact")
    packet = comm.wait((comm.rank - 1) % comm.size, "intact", deadline=30.0).packet
    assert packet is not None
    assert (packet.kind, packet.step, packet.layer) == ("sparse", 2**32 - 1, 12)
    assert packet.nbytes == sent.nbytes
    for got, want in zip(packet.buffers, buffers, strict=True):
        assert got.dtype == want.dtype
        assert torch.equal(got, want)


def a_deadline_harms_nobody(comm: Comm) -> None:
    """A wait that is given up raises; the link goes on working, for both sides."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    text = _raised(DeadlineError, lambda: comm.wait(before, "never", deadline=0.05))
    assert f"rank {before}" in text, text
    assert "never" in text, text
    comm.post(after, _number(1.0), "later")
    assert _value(comm, before, "later") == 1.0


def tasks_go_on_beside_the_program(comm: Comm) -> None:
    """Tasks of one key talk to each other; starting them in another order is no deadlock."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

    def swap(task_comm: Comm) -> float:
        assert not torch.is_grad_enabled()
        task_comm.post(after, _number(comm.rank), "swap")
        return _value(task_comm, before, "swap")

    keys = [f"task {i}" for i in range(4)]
    tasks = {key: comm.start(swap, key) for key in (keys if comm.rank % 2 else keys[::-1])}
    assert [tasks[key].wait(30.0) for key in keys] == [before] * 4
    assert all(task.done for task in tasks.values())
    assert torch.is_grad_enabled()


def a_task_raises_where_it_is_waited_for(comm: Comm) -> None:
    """What a task raised comes out of its wait."""

    def fail(task_comm: Comm) -> None:
        task_comm.post((comm.rank + 1) % comm.size, _number(0.0), "go")
        _value(task_comm, (comm.rank - 1) % comm.size, "go")
        raise KeyError("on purpose")

    task = comm.start(fail, "failing")
    assert "on purpose" in _raised(KeyError, lambda: task.wait(30.0))


def the_meter_counts_what_packets_occupy(comm: Comm) -> None:
    """Bytes and messages, per peer, both ways."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    packet = Packet((torch.zeros(10), torch.zeros(3, dtype=torch.int64)))
    sent, received = comm.meter.peer(after).sent, comm.meter.peer(before).received
    messages = comm.meter.peer(after).messages_sent
    comm.post(after, packet, "metered")
    comm.wait(before, "metered", deadline=30.0)
    assert comm.meter.peer(after).sent - sent == packet.nbytes == 16 + 2 * 8 + 40 + 24
    assert comm.meter.peer(after).messages_sent - messages == 1
    assert comm.meter.peer(before).received - received == packet.nbytes


def a_wrong_destination_is_refused(comm: Comm) -> None:
    """Nobody, oneself, and beyond the last endpoint."""
    for dst in (-1, comm.rank, comm.size + comm.num_servers):
        _raised(InputError, lambda dst=dst: comm.post(dst, _number(0.0), "x"))


def waiting_inside_backward_is_refused(comm: Comm) -> None:
    """A hook may post, start and spend; a wait in it raises and the message stays to be had."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    raised: list[Exception] = []

    def hook(grad: torch.Tensor) -> None:
        comm.post(after, Packet.of(grad), "hook")
        comm.spend(Work(flops=1.0))
        try:
            comm.wait(before, "hook", deadline=5.0)
        except WaitInBackwardError as error:
            raised.append(error)

    x = torch.ones(2, requires_grad=True)
    x.register_hook(hook)
    (x * 3).sum().backward()
    assert len(raised) == 1
    assert _value(comm, before, "hook") == 3.0


def one_post_may_follow_another(comm: Comm) -> None:
    """With `after`, both arrive, also when the first has long left."""
    first_to, second_to = _others(comm)[0], _others(comm)[-1]
    first = comm.post(first_to, Packet((torch.ones(100_000),)), "chain")
    second = comm.post(second_to, _number(2.0), "chained", after=first)
    comm.post(second_to, _number(3.0), "chained", after=second)
    expect_first = [r for r in range(comm.size) if r != comm.rank and _first(comm, r) == comm.rank]
    expect_second = [r for r in range(comm.size) if r != comm.rank and _last(comm, r) == comm.rank]
    for src in expect_first:
        assert _value(comm, src, "chain") == 1.0
    for src in expect_second:
        assert [_value(comm, src, "chained") for _ in range(2)] == [2.0, 3.0]


def _first(comm: Comm, rank: int) -> int:
    return min(r for r in range(comm.size) if r != rank)


def _last(comm: Comm, rank: int) -> int:
    return max(r for r in range(comm.size) if r != rank)


def time_goes_forward(comm: Comm) -> None:
    """`now` never goes back, and waiting is metered as time."""
    before_spend = comm.now()
    comm.spend(Work(flops=1e6, memory_bytes=1e6, elapsed=1e-6))
    assert comm.now() >= before_spend >= 0.0
    if comm.rank == 0:
        comm.spend(Work(elapsed=0.01))
        for rank in _others(comm):
            comm.post(rank, _number(0.0), "time")
    else:
        arrival = comm.wait(0, "time", deadline=30.0)
        assert before_spend <= arrival.time <= comm.now()
        assert comm.meter.peer(0).waited >= 0.0


CHECKS: tuple[Callable[[Comm], None], ...] = (
    packets_of_a_pair_keep_their_order,
    tags_do_not_mix,
    any_takes_each_message_once,
    a_source_is_waited_for_past_others,
    posting_never_blocks,
    packets_arrive_as_they_left,
    a_deadline_harms_nobody,
    tasks_go_on_beside_the_program,
    a_task_raises_where_it_is_waited_for,
    the_meter_counts_what_packets_occupy,
    a_wrong_destination_is_refused,
    waiting_inside_backward_is_refused,
    one_post_may_follow_another,
    time_goes_forward,
)
