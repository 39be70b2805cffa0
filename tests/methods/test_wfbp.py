"""Wait-free backpropagation: S-SGD's sums, in messages that leave during backward."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from thinwire.batches import SampleStream
from thinwire.cluster import Cluster, Node
from thinwire.errors import PeerDiedError, WorkerFailedError
from thinwire.methods import SSGD, WFBP
from thinwire.testing.toys import Moons, Poisoned
from thinwire.wire import Comm
from thinwire.wire.faults import Crash, FaultPlan
from thinwire.wire.virtual import World
from thinwire.worker import Plan, Replica, Worker

SHAPES: list[tuple[int, ...]] = [(30, 20), (20,), (40, 40), (7,), (3, 50)]
P = 600 + 20 + 1600 + 7 + 150
ALL = [
    WFBP(),
    WFBP(at_once=1),
    WFBP(groups="buckets", bucket_bytes=3000),
    WFBP(groups="merged"),
    WFBP(groups="optimal", at_once=2),
    WFBP(groups="one"),
]


def ids(method: WFBP) -> str:
    return f"{method.groups}-{method.at_once}"


class Deep(Moons):
    """Eight wide layers, so that backward takes a while after the first gradient."""

    name: ClassVar[str] = "deep"

    def model(self) -> nn.Module:
        """As `Task.model`."""
        layers: list[nn.Module] = [nn.Linear(2, 32)]
        for _ in range(6):
            layers += [nn.Tanh(), nn.Linear(32, 32)]
        return nn.Sequential(*layers, nn.Tanh(), nn.Linear(32, 2))


def cluster(size: int, latency: float = 0.0003) -> Cluster:
    nodes = [
        Node(name=f"n{i}", flops=2e7, memory_rate=8e9, egress=12.5e6, ingress=12.5e6)
        for i in range(size)
    ]
    return Cluster(name="test", nodes=tuple(nodes), default_latency=latency)


def train(method: Any, size: int, steps: int = 12, latency: float = 0.0003, **world: Any) -> World:
    """On a deep model; the world, traced."""
    task, plan = Deep(), Plan(shares=(4,) * size, steps=steps, speeds=(1.0,) * size)
    stream = SampleStream(task.num_train, 0)

    def worker(comm: Comm) -> None:
        replica = Replica(task, plan, comm, lambda kind, values: None)
        method.worker(Worker(comm, replica, stream))

    made = World(cluster(size, latency), trace=True, **world)
    made.run(worker)
    return made


@pytest.mark.parametrize("method", ALL, ids=ids)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_directions_are_those_of_plain_s_sgd_to_rounding(feed_method, method, size):
    gradients = torch.randn(size, 6, P, generator=torch.Generator().manual_seed(size))
    plain = feed_method(SSGD(), gradients, SHAPES)
    ours = feed_method(method, gradients, SHAPES)
    for rank in range(size):
        assert torch.equal(ours.directions[rank], ours.directions[0])
        torch.testing.assert_close(
            ours.directions[rank], plain.directions[rank], rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("size", [2, 3, 5])
def test_one_message_is_plain_s_sgd_to_the_bit(feed_method, size):
    gradients = torch.randn(size, 4, P, generator=torch.Generator().manual_seed(1))
    ours = feed_method(WFBP(groups="one"), gradients, SHAPES)
    assert torch.equal(ours.directions[0], feed_method(SSGD(), gradients, SHAPES).directions[0])


@pytest.mark.parametrize("size", [2, 4])
def test_at_powers_of_two_sums_do_not_depend_on_what_was_measured(feed_method, size):
    gradients = torch.randn(size, 6, P, generator=torch.Generator().manual_seed(2))
    merged = feed_method(WFBP(groups="merged"), gradients, SHAPES)
    optimal = feed_method(WFBP(groups="optimal"), gradients, SHAPES)
    assert torch.equal(merged.directions[0], optimal.directions[0])


def backward_spans(world: World, rank: int) -> list[tuple[int, int]]:
    return [(s[2], s[3]) for s in world.spans or () if s[:2] == (rank, "compute")]


def test_the_first_message_leaves_long_before_backward_has_ended():
    world = train(WFBP(), 2, steps=1)
    computing = [end for _, end in backward_spans(world, 0)]
    leaves = min(s[2] for s in world.spans or () if s[:2] == (0, "send"))
    assert leaves < computing[-1] / 2
    assert sum(end > leaves for end in computing) >= 7  # layers computed since


def test_plain_s_sgd_sends_only_after_the_last_gradient():
    world = train(WFBP(groups="one"), 2, steps=1)
    starts = [s[2] for s in world.spans or () if s[:2] == (0, "send")]
    assert min(starts) >= max(start for start, _ in backward_spans(world, 0)[:-1])


def test_messages_during_backward_take_less_time_than_after_it_and_as_many_bytes():
    after, during = (train(m, 4) for m in (WFBP(groups="one"), WFBP()))
    assert during.elapsed < 0.9 * after.elapsed
    header = 24
    for a, b in zip(after.endpoints, during.endpoints, strict=True):
        payloads = [e.meter.sent - header * e.meter.messages_sent for e in (a, b)]
        assert payloads[0] == payloads[1]


def test_on_one_channel_messages_go_one_after_the_other():
    def under_way(world: World) -> int:
        """The most messages of rank 0 at one moment."""
        spans = [s for s in world.spans or () if s[:2] == (0, "send")]
        return max(sum(a[2] <= b[2] < a[3] for a in spans) for b in spans)

    # One ends here when the last packet has come; its own may still be on its way.
    assert under_way(train(WFBP(at_once=1), 2, steps=2)) <= 2
    assert under_way(train(WFBP(), 2, steps=2)) > 2


@pytest.mark.slow
@pytest.mark.parametrize("groups", ["merged", "optimal"])
def test_where_start_ups_are_dear_measured_groups_are_few_and_the_step_is_shorter(groups):
    """On one channel, as the models have it: never slower than a message each, nor than one."""

    def last_steps(method: WFBP) -> tuple[float, int]:
        short, long = (train(method, 2, steps=n, latency=0.01) for n in (6, 12))
        messages = [w.endpoints[0].meter.messages_sent for w in (short, long)]
        return long.elapsed - short.elapsed, messages[1] - messages[0]

    each, one = last_steps(WFBP(at_once=1)), last_steps(WFBP(groups="one"))
    ours = last_steps(WFBP(groups=groups, at_once=1))
    assert one[1] < ours[1] < each[1] or ours[1] == one[1]
    assert ours[0] <= 1.01 * min(each[0], one[0])


def test_where_start_ups_cost_nothing_nothing_is_merged():
    def messages(method: WFBP) -> int:
        short, long = (train(method, 2, steps=n, latency=0.0) for n in (5, 6))
        return long.endpoints[0].meter.messages_sent - short.endpoints[0].meter.messages_sent

    merged, each, one = (messages(WFBP(groups=g)) for g in ("merged", "tensor", "one"))
    assert one < merged
    assert merged >= each / 2  # a bias is complete at the same moment as its weight


def test_buckets_hold_their_bytes_in_the_order_of_backward(feed_method):
    gradients = torch.randn(2, 3, P)
    [state, _] = feed_method(WFBP(groups="buckets", bucket_bytes=3000), gradients, SHAPES).states
    order, numbers = state.messages.tolist()
    assert order == [4, 3, 2, 1, 0]
    assert numbers == [0, 0, 0, 1, 1]  # 600 + 28 + 6400 bytes, then 80 + 2400


def test_a_crashed_peer_is_named_in_the_middle_of_a_step():
    with pytest.raises(PeerDiedError, match="rank 1") as failed:
        train(WFBP(), 3, faults=FaultPlan([Crash(rank=1, step=3)]))
    assert failed.value.rank == 1


def test_a_nan_of_one_worker_reaches_no_other(run_method):
    with pytest.raises(WorkerFailedError, match=r"rank \d, step"):
        run_method(WFBP(), 3, task=Poisoned(), steps=20)


def test_what_one_message_sends_is_declared():
    world = train(WFBP(groups="one"), 3, steps=5)
    numel = sum(p.numel() for p in Deep().model().parameters())
    declared = WFBP(groups="one").sent_bytes(numel, 3, 5)
    assert declared == [e.meter.sent for e in world.endpoints]
    assert WFBP().sent_bytes(numel, 3, 5) is None


def test_spans_of_one_rank_do_not_overlap():
    spans = backward_spans(train(WFBP(), 2, steps=2), 0)
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
