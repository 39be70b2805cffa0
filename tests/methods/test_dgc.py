"""Deep Gradient Compression against its pseudo-code, and who may have momentum."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import thinwire as tw
from thinwire.batches import SampleStream
from thinwire.cluster import Cluster, Node
from thinwire.errors import InputError, WorkerFailedError
from thinwire.methods import DGC, SSGD, TopK
from thinwire.methods.fit import check_optimizer
from thinwire.run.settings import MethodSpec, assign
from thinwire.seeds import generator_for
from thinwire.testing.toys import Moons
from thinwire.wire.virtual import World
from thinwire.worker import Optimizer, Plan, Replica, Worker

SHAPES = [(20, 10), (8,), (30, 10)]
SIZES = [200, 8, 300]
NUMEL = sum(SIZES)


def drawn(size: int, steps: int = 12) -> torch.Tensor:
    return torch.randn(size, steps, NUMEL, generator=generator_for(0, "dgc", size)).pow(3)


def published(
    gradients: torch.Tensor, weights: list[float], density: float, momentum: float, clip: float
) -> torch.Tensor:
    """The paper's algorithm in dictionaries of layers, the middle one being sent whole."""
    size, steps, _ = gradients.shape
    u, v = torch.zeros(size, NUMEL), torch.zeros(size, NUMEL)
    directions = torch.zeros(steps, NUMEL)
    for t in range(steps):
        for r in range(size):
            g = gradients[r, t] * weights[r]
            g = g * min(1.0, clip * math.sqrt(weights[r]) / float(g.norm()))
            u[r] = momentum * u[r] + g
            start = 0
            for numel in SIZES:
                part = slice(start, start + numel)
                start += numel
                if numel == 8:
                    directions[t, part] += u[r, part]
                    continue
                v[r, part] += u[r, part]
                k = max(1, int(density * numel))
                chosen = v[r, part].abs().topk(k).indices + part.start
                directions[t, chosen] += v[r, chosen]
                v[r, chosen] = u[r, chosen] = 0.0
    return directions


@pytest.mark.parametrize("shares", [(1,), (1, 1), (2, 1, 5)])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("clip", [math.inf, 3.0])
def test_it_does_what_the_paper_says(feed_method, shares, momentum, clip):
    gradients = drawn(len(shares))
    weights = [share / sum(shares) for share in shares]
    method = DGC(
        density=0.05,
        momentum=momentum,
        clip=None if clip == math.inf else clip,
        dense_below=9,
    )
    found = feed_method(method, gradients, SHAPES, shares).directions[0]
    expected = published(gradients, weights, 0.05, momentum, clip)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_what_is_sent_loses_its_momentum(feed_method):
    """Momentum factor masking: a gradient seen once moves its element once."""
    gradients = torch.zeros(1, 4, NUMEL)
    gradients[0, 0, 3] = 100.0
    method = DGC(density=0.01, dense_below=0, scope="model")
    directions = feed_method(method, gradients, SHAPES).directions[0]
    assert directions[:, 3].tolist() == [100.0, 0.0, 0.0, 0.0]


def test_what_waits_gathers_momentum(feed_method):
    """Correction: an element that waits two steps arrives as momentum SGD would have moved it."""
    gradients = torch.zeros(1, 3, NUMEL)
    gradients[0, :, 3] = torch.tensor([1.0, 1.0, 1.0])
    gradients[0, :2, 7] = 1000.0  # goes first
    method = DGC(density=1e-9, momentum=0.5, dense_below=0, scope="model")
    directions = feed_method(method, gradients, SHAPES).directions[0]
    assert directions[2, 3] == 1.0 + 1.5 + 1.75


def test_of_the_whole_model_without_momentum_it_is_topk(run_method):
    ours = run_method(DGC(density=0.05, momentum=0.0, dense_below=0, scope="model"), 3)
    topk = run_method(TopK(density=0.05), 3, momentum=0.0)
    torch.testing.assert_close(ours.params[0], topk.params[0], rtol=0, atol=1e-2)
    assert ours.world.endpoints[1].meter.sent == topk.world.endpoints[1].meter.sent


def test_small_layers_are_momentum_sgd_to_rounding(run_method):
    ours = run_method(DGC(dense_below=10**6, momentum=0.8), 3, steps=20)
    plain = run_method(SSGD(), 3, steps=20, momentum=0.8)
    torch.testing.assert_close(ours.params[0], plain.params[0], rtol=1e-5, atol=1e-6)


def test_a_sample_chooses_about_as_many_and_none_twice(feed_method):
    gradients = torch.randn(2, 6, 5000, generator=generator_for(0, "sampled"))
    method = DGC(density=0.02, momentum=0.0, dense_below=0, select="sampled")
    result = feed_method(method, gradients, [(5000,)])
    for step in range(6):
        kept = int((result.directions[0][step] != 0).sum())
        assert 50 <= kept <= 2 * 150


# Momentum has one owner.


def test_momentum_of_the_optimizer_is_refused_before_anything_runs():
    spec = [MethodSpec(name="dgc")]
    with pytest.raises(InputError, match=r"momentum = 0\.9 of the optimizer with DGC"):
        assign(spec, {"train.momentum": 0.9}, {})
    with pytest.raises(InputError, match=r"optimizer = 'adamw' with DGC"):
        assign(spec, {"train.optimizer": "adamw"}, {})
    assert assign(spec, {}, {})[0].train.momentum == 0.0
    assert assign([MethodSpec(name="ssgd")], {}, {})[0].train.momentum == 0.9


def test_momentum_is_refused_in_a_loop_of_ones_own():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(
        [{"params": [model.weight]}, {"params": [model.bias], "momentum": 0.5}], lr=0.1
    )
    with pytest.raises(InputError, match=r"momentum = 0\.5 of the optimizer with DGC"):
        tw.distribute(model, optimizer, method="dgc")
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    tw.distribute(model, plain, method="dgc", density=0.5)
    model(torch.ones(1, 3)).sum().backward()
    plain.step()
    tw.finish()


def test_the_method_itself_refuses_too():
    node = Node(name="a", flops=1e9, memory_rate=1e9, egress=1e9, ingress=1e9)
    plan = Plan(shares=(4,), steps=2, speeds=(1.0,), optimizer=Optimizer(lr=0.1, momentum=0.9))

    def worker(comm):
        replica = Replica(Moons(), plan, comm, lambda kind, values: None)
        DGC().worker(Worker(comm, replica, SampleStream(replica.learner.num_train, 0)))

    with pytest.raises(WorkerFailedError, match=r"momentum = 0\.9 of the optimizer with DGC"):
        World(Cluster(name="one", nodes=(node,), default_latency=0.0)).run(worker)


def test_other_methods_take_any_optimizer():
    check_optimizer(SSGD(), "adamw", 0.0)
    check_optimizer(TopK(), "sgd", 0.9)
