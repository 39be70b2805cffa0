from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from thinwire.batches import SampleStream
from thinwire.errors import InputError
from thinwire.tasks import Task, load_task
from thinwire.testing.toys import DropoutMoons, Exploding, Moons, Poisoned, Quadratic, two_moons


def _train(task: Task, model: nn.Module, steps: int, batch: int, lr: float) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    stream, (x, y), losses = SampleStream(task.num_train, seed=0), task.train_data(), []
    for step in range(steps):
        rows = stream.take(step * batch, batch)
        optimizer.zero_grad()
        loss = task.loss(model, x[rows], y[rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_the_quadratic_has_no_gradient_at_its_optimum():
    task = Quadratic(dim=7, condition=30.0)
    model = task.model()
    model.theta.data.copy_(task.optimum)
    task.loss(model, *task.train_data()).backward()
    assert model.theta.grad.abs().max() < 1e-6
    assert task.evaluate(model) == (1.0, 0.0)


def test_the_quadratics_gradient_is_the_stated_one():
    task = Quadratic(dim=5)
    model = task.model()
    task.loss(model, *task.train_data()).backward()
    expected = (model.theta.detach() - task.optimum) @ task.root @ task.root.T
    torch.testing.assert_close(model.theta.grad, expected)


def test_the_quadratic_is_conditioned_as_asked():
    values = torch.linalg.eigvalsh((root := Quadratic(dim=6, condition=50.0).root) @ root.T)
    assert float(values[-1]) == pytest.approx(1.0, rel=1e-5)
    assert float(values[-1] / values[0]) == pytest.approx(50.0, rel=1e-4)


def test_the_quadratics_evaluation_is_the_excess_loss():
    task = Quadratic(dim=5)
    model = task.model()
    best = task.model()
    best.theta.data.copy_(task.optimum)
    train = task.train_data()
    excess = (task.loss(model, *train) - task.loss(best, *train)).item()
    assert task.evaluate(model)[1] == pytest.approx(excess, rel=1e-4)


def test_full_batches_solve_the_quadratic():
    task = Quadratic()
    model = task.model()
    _train(task, model, steps=200, batch=task.num_train, lr=0.2)
    accuracy, loss = task.evaluate(model)
    assert accuracy == 1.0
    assert loss < 1e-6


@pytest.mark.parametrize(
    "settings", [{"dim": 0}, {"num_samples": 0}, {"condition": 0.5}, {"noise": -1.0}]
)
def test_a_quadratic_that_cannot_be_is_refused(settings: dict[str, float]):
    with pytest.raises(InputError, match=next(iter(settings))):
        Quadratic(**settings)


def test_the_moons_are_where_they_should_be():
    x, y = two_moons(200, seed=0, noise=0.0)
    centre = torch.where(y.unsqueeze(1) == 0, torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.5]))
    torch.testing.assert_close((x - centre).norm(dim=1), torch.ones(200))
    assert (x[y == 0][:, 1] >= 0).all()
    assert (x[y == 1][:, 1] <= 0.5).all()
    assert torch.bincount(y).tolist() == [100, 100]


@pytest.mark.parametrize("task", [Moons(), DropoutMoons()], ids=lambda task: task.name)
def test_the_moons_are_learnt(task: Task):
    torch.manual_seed(0)
    model = task.model()
    _train(task, model, steps=400, batch=32, lr=0.2)
    assert task.evaluate(model)[0] >= 0.95


def test_dropout_draws_from_the_global_generator():
    torch.manual_seed(0)
    task = DropoutMoons()
    model, (x, y) = task.model(), task.train_data()
    torch.manual_seed(1)
    first = task.loss(model, x, y).item()
    second = task.loss(model, x, y).item()
    torch.manual_seed(1)
    assert task.loss(model, x, y).item() == first
    assert second != first


def test_the_exploding_task_is_nan_from_its_step_on():
    task = Exploding(at=4)
    assert task.flops_per_sample > 0  # counting is no training step
    losses = _train(task, task.model(), steps=6, batch=16, lr=0.0)
    assert [math.isnan(loss) for loss in losses] == [False] * 3 + [True] * 3


def test_evaluations_do_not_bring_the_explosion_nearer():
    task = Exploding(at=2)
    model = task.model()
    for _ in range(3):
        assert math.isfinite(task.evaluate(model)[1])
    assert math.isfinite(task.loss(model, *task.train_data()).item())


def test_only_the_batch_with_the_poisoned_sample_is_nan():
    task = Poisoned(sample=9)
    model, (x, y) = task.model(), task.train_data()
    assert math.isnan(task.loss(model, x[:10], y[:10]).item())
    assert math.isfinite(task.loss(model, x[10:], y[10:]).item())


@pytest.mark.parametrize("make", [lambda: Exploding(at=0), lambda: Poisoned(sample=256)])
def test_faults_that_never_come_are_refused(make):
    with pytest.raises(InputError, match="allowed"):
        make()


def test_toys_are_loaded_like_any_task():
    assert load_task("thinwire.testing.toys:Quadratic", dim=4) == Quadratic(dim=4)
