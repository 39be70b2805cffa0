"""LAGS: each tensor is selected from by itself, and nothing is lost."""

from __future__ import annotations

import pytest
import torch

from thinwire.batches import SampleStream
from thinwire.cluster import Cluster, Node
from thinwire.compress.warmup import num_warmed
from thinwire.errors import NonFiniteError, WorkerFailedError
from thinwire.methods import LAGS, WFBP, TopK
from thinwire.testing.toys import Moons, Quadratic
from thinwire.wire import Comm
from thinwire.wire.virtual import World
from thinwire.worker import Plan, Replica, Worker

SHAPES: list[tuple[int, ...]] = [(30, 20), (20,), (40, 40), (7,), (3, 50)]
SIZES = [600, 20, 1600, 7, 150]
P = sum(SIZES)
ALL = [
    LAGS(density=0.02, dense_below=0, merge=0),
    LAGS(density=0.02, dense_below=30),
    LAGS(density=0.1, dense_below=30, merge=70),
    LAGS(density=0.01, dense_below=30, adaptive=True, delta_every=2),
    LAGS(density=0.01, dense_below=30, warmup=5),
    LAGS(density=0.01, dense_below=30, warmup=6, adaptive=True),
]


def ids(method: LAGS) -> str:
    return f"{method.density}-{method.dense_below}-{method.merge}-{method.adaptive}-{method.warmup}"


def made_up(size: int, steps: int = 7, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, steps, P, generator=torch.Generator().manual_seed(seed))


@pytest.mark.slow
@pytest.mark.parametrize("method", ALL, ids=ids)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_of_every_tensor_what_was_applied_and_what_waits_are_all_gradients(
    feed_method, method, size
):
    gradients, shares = made_up(size), tuple(range(1, size + 1))
    result = feed_method(method, gradients, SHAPES, shares=shares)
    weights = torch.tensor(shares).double().div(sum(shares))
    given = (gradients.double() * weights[:, None, None]).sum(dim=(0, 1))
    applied = result.directions[0].double().sum(dim=0)
    waiting = sum(state.memory.double() for state in result.states)
    for part in zip(*(x.split(SIZES) for x in (given, applied + waiting)), strict=True):
        torch.testing.assert_close(*part, rtol=0, atol=2e-5)
    for directions in result.directions:
        assert torch.equal(directions, result.directions[0])


def test_each_tensor_sends_its_own_largest_entries(feed_method):
    gradients = made_up(3, steps=1)
    gradients[:, :, :600] *= 1000  # would take all places of a selection from the whole
    method = LAGS(density=0.02, dense_below=30)
    [direction] = feed_method(method, gradients, SHAPES).directions[0].double()
    for kept, got, parts in zip(
        (12, 20, 32, 7, 3),
        direction.split(SIZES),
        zip(*(g[0].split(SIZES) for g in gradients), strict=True),
        strict=True,
    ):
        expected = torch.zeros_like(got)
        for part in parts:
            index = part.abs().topk(kept).indices
            expected[index] += part[index].double() / 3
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_in_the_warm_up_each_tensor_sends_what_the_steps_density_asks_for(feed_method):
    method = LAGS(density=0.001, dense_below=30, warmup=8)
    result = feed_method(method, made_up(2, steps=10), SHAPES)
    for step, direction in enumerate(result.directions[0]):
        for part in direction.split(SIZES):
            sent = int(part.count_nonzero())
            kept = num_warmed(0.001, step, 8, len(part))
            assert kept <= sent <= 2 * kept or len(part) < 30, (step, len(part))
            assert sent == len(part) or len(part) >= 30


def test_a_model_of_one_tensor_is_plain_top_k_to_the_bit(run_method):
    task = Quadratic(dim=400)
    ours = run_method(LAGS(density=0.05), 3, task=task, lr=0.01)
    plain = run_method(TopK(density=0.05), 3, task=task, lr=0.01)
    assert torch.equal(ours.params[0], plain.params[0])


def test_messages_in_common_change_no_bit(feed_method):
    gradients = made_up(3)
    runs = [
        feed_method(LAGS(density=0.02, dense_below=0, merge=merge), gradients, SHAPES)
        for merge in (0, 15, 10**6)
    ]
    assert torch.equal(runs[0].directions[0], runs[1].directions[0])
    assert torch.equal(runs[0].directions[0], runs[2].directions[0])
    messages = [run.world.endpoints[0].meter.messages_sent for run in runs]
    assert messages == sorted(messages, reverse=True)
    assert len(set(messages)) == 3


def test_a_tensor_that_would_send_its_share_or_more_goes_whole(feed_method):
    # The entries of four workers are twice as many as a tensor has: all goes by all-reduce.
    gradients = made_up(4)
    ours = feed_method(LAGS(density=0.5, dense_below=0, merge=0), gradients, SHAPES)
    dense = feed_method(WFBP(), gradients, SHAPES)
    torch.testing.assert_close(ours.directions[0], dense.directions[0], rtol=1e-5, atol=1e-6)
    assert all(not state.memory.any() for state in ours.states)


def test_delta_is_what_it_is_said_to_be(feed_method):
    gradients = made_up(3, steps=1)
    method = LAGS(density=0.02, dense_below=30, delta_every=1)
    result = feed_method(method, gradients, SHAPES)
    [logged] = result.logged[0]
    assert logged == result.logged[2][0]
    weighted = gradients[:, 0].double() / 3
    large = {0: 12, 2: 32, 4: 3}
    for i, k in large.items():
        parts = [g.split(SIZES)[i] for g in weighted]
        whole, chosen = torch.stack(parts).sum(dim=0), torch.zeros(SIZES[i]).double()
        for part in parts:
            index = part.abs().topk(k).indices
            chosen[index] += part[index]
        random = (1 - k / SIZES[i]) * whole.square().sum()
        expected = float((whole - chosen).square().sum() / random)
        assert logged[f"delta layer {i}"] == pytest.approx(expected, rel=1e-4)
    assert logged["delta_max"] == max(logged[f"delta layer {i}"] for i in large)
    assert logged["delta_max"] < 1
    assert len(logged) == 4


def test_delta_is_logged_only_when_asked_for(feed_method):
    assert feed_method(ALL[1], made_up(2), SHAPES).logged == [[], []]
    logged = feed_method(LAGS(density=0.02, delta_every=3), made_up(2), SHAPES).logged
    assert [len(lines) for lines in logged] == [3, 3]  # of 7 steps


def test_adaptive_densities_send_no_less_and_are_remembered(feed_method):
    # No time passes between these gradients, so nothing hides: all keep the least.
    method = LAGS(density=0.02, dense_below=30, adaptive=True)
    result = feed_method(method, made_up(3), SHAPES)
    order, kept = result.states[0].found.tolist()
    assert order == [4, 3, 2, 1, 0]
    assert kept == [3, 1, 32, 1, 12]


@pytest.mark.slow
def test_with_much_time_to_hide_behind_adaptive_densities_rise(run_method):
    """The slower the machines compute, the more entries hide behind a gradient."""
    sent = {}
    for flops in ("slow", "fast"):
        counts = []
        for adaptive in (False, True):
            method = LAGS(density=0.02, dense_below=30, adaptive=adaptive)
            runs = [_train(method, 1e5 if flops == "slow" else 1e9, steps) for steps in (5, 6)]
            counts.append(runs[1] - runs[0])
        sent[flops] = counts
    fixed, adaptive = sent["fast"]
    assert adaptive == fixed
    fixed, adaptive = sent["slow"]
    assert adaptive > 2 * fixed


def _train(method: LAGS, flops: float, steps: int) -> int:
    """Bytes that rank 0 sends, among 3 workers of so many operations a second."""
    nodes = [
        Node(name=f"n{i}", flops=flops, memory_rate=1e11, egress=1e6, ingress=1e6) for i in range(3)
    ]
    task, plan = Moons(), Plan(shares=(4,) * 3, steps=steps, speeds=(1.0,) * 3)
    stream = SampleStream(task.num_train, 0)
    world = World(Cluster(name="test", nodes=tuple(nodes), default_latency=1e-4))

    def worker(comm: Comm) -> None:
        method.worker(Worker(comm, Replica(task, plan, comm, lambda kind, values: None), stream))

    world.run(worker)
    return world.endpoints[0].meter.sent


def test_no_memory_changes_before_all_ranks_have_come_through_a_step(feed_method, fed):
    """Rank 1's last gradient of the second step is bad: by then all others have been exchanged."""
    gradients = made_up(2, steps=2)
    method = LAGS(density=0.02, dense_below=30, merge=0)
    before = [s.memory for s in feed_method(method, gradients[:, :1], SHAPES).states]
    plan, states = Plan(shares=(1, 1), steps=2, speeds=(1.0, 1.0)), {}
    body, cluster = fed

    class Bad(body):
        def gradient(self, batch, before_layer=None, on_layer=None):
            def last_is_bad(layer: int, gradient: torch.Tensor) -> None:
                if self.rank == 1 and int(batch.index_B) == 1 and layer == 0:
                    raise NonFiniteError("the gradient of 'layer 0' is not finite")
                assert on_layer is not None
                on_layer(layer, gradient)

            return super().gradient(batch, before_layer, last_is_bad)

    def worker(comm: Comm) -> None:
        w = Worker(comm, Bad(plan, comm.rank, SHAPES, list(gradients[comm.rank])))
        states[comm.rank] = w.state
        method.worker(w)

    world = World(cluster(2))
    with pytest.raises(WorkerFailedError, match="rank 1, step 2"):
        world.run(worker)
    assert world.endpoints[0].meter.messages_sent > 6  # of two steps
    for rank in range(2):
        assert torch.equal(states[rank].memory, before[rank])
