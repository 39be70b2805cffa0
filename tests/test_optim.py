"""Large-batch optimizers: the published rules, on tensors and on a flat vector of them."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from thinwire.errors import InputError
from thinwire.flat import Flat, Layer
from thinwire.optim import LAMB, LARS, FlatSGD, scale_lr, trust_ratio
from thinwire.testing.toys import Moons

STEPS = 6
LARS_SETTINGS = {"lr": 3.0, "momentum": 0.9, "weight_decay": 0.05, "trust": 0.01}
LAMB_SETTINGS = {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.05}
BOTH = [(LARS, LARS_SETTINGS), (LAMB, LAMB_SETTINGS)]
both = pytest.mark.parametrize(("kind", "settings"), BOTH, ids=["lars", "lamb"])


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 4))


def gradients(net: nn.Module, step: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [10.0**-step * torch.randn(p.shape, generator=generator) for p in net.parameters()]


def stepped(net: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        for param, grad in zip(net.parameters(), gradients(net, step), strict=True):
            param.grad = grad
        optimizer.step()


def lars_reference(
    x: torch.Tensor, grads: list[torch.Tensor], min_dim: int, lr: float, momentum: float,
    weight_decay: float, trust: float,
) -> torch.Tensor:  # fmt: skip
    """One tensor by the paper's algorithm, in double precision and with plain numbers."""
    x, v = x.double(), torch.zeros_like(x, dtype=torch.double)
    for g in (g.double() for g in grads):
        scaled = x.dim() >= min_dim
        beta = weight_decay if scaled else 0.0
        norm, grad = x.square().sum().sqrt().item(), g.square().sum().sqrt().item()
        local = trust * norm / (grad + beta * norm) if scaled and norm and grad else 1.0
        v = momentum * v + lr * local * (g + beta * x)
        x = x - v
    return x


def lamb_reference(
    x: torch.Tensor, grads: list[torch.Tensor], min_dim: int, lr: float,
    betas: tuple[float, float], eps: float, weight_decay: float,
) -> torch.Tensor:  # fmt: skip
    """As `lars_reference`."""
    x = x.double()
    m, v = torch.zeros_like(x), torch.zeros_like(x)
    for t, g in enumerate((g.double() for g in grads), start=1):
        scaled = x.dim() >= min_dim
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        u = m / (1 - betas[0] ** t) / ((v / (1 - betas[1] ** t)) ** 0.5 + eps)
        if scaled:
            u = u + weight_decay * x
        norm, length = x.square().sum().sqrt().item(), u.square().sum().sqrt().item()
        x = x - lr * (norm / length if scaled and norm and length else 1.0) * u
    return x


REFERENCES: dict[Any, Any] = {LARS: lars_reference, LAMB: lamb_reference}


@both
@pytest.mark.parametrize("min_dim", [0, 2])
def test_each_tensor_follows_the_papers_rule(kind: Any, settings: dict[str, Any], min_dim: int):
    net = model()  # with a bias of zeros, that of the norm
    before = [p.detach().clone() for p in net.parameters()]
    stepped(net, kind(net.parameters(), min_dim=min_dim, **settings), range(STEPS))
    for i, (x, param) in enumerate(zip(before, net.parameters(), strict=True)):
        grads = [gradients(net, step)[i] for step in range(STEPS)]
        expected = REFERENCES[kind](x, grads, min_dim, **settings)
        torch.testing.assert_close(param.detach().double(), expected, rtol=1e-4, atol=1e-6)


@both
def test_a_flat_vector_with_its_layers_steps_as_the_tensors_do(kind, settings):
    net, alike = model(), model()
    flat = Flat(alike)
    stepped(net, kind(net.parameters(), **settings), range(STEPS))
    optimizer = kind([flat.params_P], layers=flat.layers, **settings)
    for step in range(STEPS):
        flat.params_P.grad = torch.cat([g.reshape(-1) for g in gradients(alike, step)])
        optimizer.step()
    for one, other in zip(net.parameters(), alike.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


@both
def test_layers_matter(kind, settings):
    params = [nn.Parameter(torch.linspace(0.1, 4.0, 12)) for _ in range(2)]
    layers = (Layer("small", 0, 4, (2, 2)), Layer("large", 4, 12, (4, 2)))
    for param, given in zip(params, (layers, None), strict=True):
        param.grad = torch.linspace(1.0, 0.1, 12)
        kind([param], layers=given, min_dim=1, **settings).step()
    assert not torch.allclose(params[0], params[1])


@both
def test_a_layer_of_zeros_and_one_without_gradient_stay_finite(kind, settings):
    zeros, still = nn.Parameter(torch.zeros(3, 3)), nn.Parameter(torch.ones(3, 3))
    untouched = nn.Parameter(torch.ones(3, 3))
    zeros.grad, still.grad = torch.ones(3, 3), torch.zeros(3, 3)
    kind([zeros, still, untouched], **{**settings, "weight_decay": 0.0}).step()
    assert bool(torch.isfinite(zeros).all())
    assert bool((zeros < 0).all())
    assert torch.equal(still.data, torch.ones(3, 3))
    assert torch.equal(untouched.data, torch.ones(3, 3))


@both
def test_weight_decay_shrinks_matrices_and_leaves_biases_where_they_are_left_out(kind, settings):
    matrix, bias = nn.Parameter(torch.ones(3, 3)), nn.Parameter(torch.ones(3))
    matrix.grad, bias.grad = torch.full((3, 3), 1e-12), torch.zeros(3)
    kind([matrix, bias], min_dim=2, **{**settings, "weight_decay": 0.5}).step()
    assert bool((matrix < 1).all())
    assert torch.equal(bias.data, torch.ones(3))


@both
def test_a_layers_relative_step_does_not_depend_on_the_size_of_its_gradient(kind, settings):
    moved = []
    for size in (1e-3, 1e3):
        param = nn.Parameter(torch.linspace(1, 2, 9).view(3, 3))
        before = param.detach().clone()
        param.grad = size * torch.linspace(-1, 1, 9).view(3, 3)
        kind([param], **{**settings, "weight_decay": 0.0}).step()
        moved.append(float((param.detach() - before).norm() / before.norm()))
    expected = settings["lr"] * settings.get("trust", 1.0)
    assert moved == pytest.approx([expected, expected], rel=1e-3)


@both
def test_a_loaded_state_goes_on_bit_for_bit(kind, settings):
    net = model()
    optimizer = kind(net.parameters(), **settings)
    stepped(net, optimizer, range(3))
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    other = copy.deepcopy(net)
    fresh = kind(other.parameters(), lr=1.0)
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    stepped(net, optimizer, range(3, STEPS))
    stepped(other, fresh, range(3, STEPS))
    for one, two in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


@both
def test_a_gradient_is_not_written_to(kind, settings):
    param = nn.Parameter(torch.ones(3, 3))
    param.grad = torch.full((3, 3), 0.5)
    kind([param], **settings).step()
    assert torch.equal(param.grad, torch.full((3, 3), 0.5))


@both
def test_a_torch_scheduler_drives_the_rate(kind, settings):
    param = nn.Parameter(torch.ones(2, 2))
    optimizer = kind([param], **{**settings, "lr": 1.0})
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.25, total_iters=3)
    rates = []
    for _ in range(4):
        param.grad = torch.ones(2, 2)
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        warm.step()
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1.0])


@both
def test_it_learns_in_an_ordinary_loop(kind, settings):
    task = Moons()
    torch.manual_seed(0)
    net = task.model()
    x, y = task.train_data()
    optimizer = kind(net.parameters(), **{**settings, "weight_decay": 0.0})

    def closure() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        return float(loss.detach())

    losses = [optimizer.step(closure) for _ in range(60)]
    assert losses[-1] < 0.5 * losses[0]


def test_a_ratio_is_one_where_a_norm_is_zero():
    zero, three = torch.zeros(4), torch.full((4,), 3.0)
    ratios = [trust_ratio(*pair) for pair in ((zero, three), (three, zero), (three, torch.ones(4)))]
    assert [float(ratio) for ratio in ratios] == [1.0, 1.0, 3.0]


def test_the_rate_is_in_proportion_to_the_batch_and_exact_where_they_are_equal():
    assert scale_lr(0.1, 8192, 256) == pytest.approx(3.2)
    assert scale_lr(0.4, 16, 64) == pytest.approx(0.1)
    assert all(scale_lr(0.1, batch, batch) == 0.1 for batch in range(1, 200))
    with pytest.raises(InputError, match="lr_batch = 0: at least 1 sample"):
        scale_lr(0.1, 8, 0)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (LARS, {"lr": 0.0}, "lr = 0.0"),
        (LARS, {"lr": float("inf")}, "lr = inf"),
        (LARS, {"momentum": 1.0}, r"momentum = 1\.0: 0 <= momentum < 1"),
        (LARS, {"trust": 0.0}, "trust = 0.0"),
        (LARS, {"weight_decay": -0.1}, "weight_decay = -0.1"),
        (LARS, {"min_dim": -1}, "min_dim = -1"),
        (LAMB, {"lr": -1.0}, "lr = -1.0"),
        (LAMB, {"betas": (0.9, 1.0)}, r"betas = \(0\.9, 1\.0\)"),
        (LAMB, {"eps": 0.0}, "eps = 0.0"),
        (LAMB, {"layers": (Layer("a", 0, 3),)}, "don't cover the parameter's 4 elements"),
        (LARS, {"layers": (Layer("a", 0, 1), Layer("b", 2, 4))}, "don't cover"),
    ],
)
def test_an_optimizer_that_cannot_be_is_refused(kind, settings, message):
    with pytest.raises(InputError, match=message):
        kind([nn.Parameter(torch.zeros(4))], **{"lr": 0.1, **settings})


def test_layers_are_of_one_flat_parameter():
    two = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))]
    with pytest.raises(InputError, match="layers with 2 parameters"):
        LAMB(two, lr=0.1, layers=(Layer("a", 0, 4),))


def test_a_sparse_gradient_is_refused():
    param = nn.Parameter(torch.ones(3, 3))
    param.grad = torch.eye(3).to_sparse()
    with pytest.raises(InputError, match="sparse gradient"):
        LARS([param], lr=0.1).step()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_flat_sgd_is_torchs_to_the_bit_also_after_a_load(momentum, weight_decay):
    start, settings = torch.randn(50), {"momentum": momentum, "weight_decay": weight_decay}
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    flat = FlatSGD([ours], lr=0.1, **settings)
    torchs = torch.optim.SGD([theirs], lr=0.1, **settings)
    for step in range(6):
        if step == 3:
            kept = copy.deepcopy(flat.state_dict())
            flat = FlatSGD([ours], lr=0.5, **settings)
            flat.load_state_dict(kept)
        gradient = torch.randn(50)
        ours.grad, theirs.grad = gradient, gradient.clone()
        flat.step()
        torchs.step()
        assert torch.equal(ours, theirs)
        assert torch.equal(ours.grad, theirs.grad)
    ours.grad = None
    flat.step()
    assert torch.equal(ours, theirs)


def test_flat_sgd_refuses_a_closure():
    with pytest.raises(InputError, match="closure"):
        FlatSGD([nn.Parameter(torch.zeros(2))], lr=0.1).step(lambda: 1.0)
