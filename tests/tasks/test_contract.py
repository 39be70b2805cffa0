"""What every task must keep, whichever it is."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
import torch
from torch import nn

from thinwire.tasks import Digits, Task
from thinwire.testing.toys import DropoutMoons, Exploding, Moons, Poisoned, Quadratic

TASKS = [Digits(train_limit=100), Moons(), DropoutMoons(), Exploding(), Poisoned(), Quadratic()]
every_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)


def _rng_states() -> tuple[bytes, str, str]:
    numpy_state = str(np.random.get_state())
    return torch.random.get_rng_state().numpy().tobytes(), numpy_state, str(random.getstate())


def _state(model: nn.Module) -> list[bytes]:
    tensors = [*model.parameters(), *model.buffers()]
    return [tensor.detach().numpy().tobytes() for tensor in tensors]


def _all_data(task: Task) -> tuple[torch.Tensor, ...]:
    return task.train_data() + task.test_data()


@every_task
def test_data_are_samples_with_targets_and_always_the_same(task: Task):
    for data in (task.train_data, task.test_data):
        x, y = data()
        assert len(x) == len(y) > 0
        assert data()[0] is x
        assert data()[1] is y
    assert task.num_train == len(task.train_data()[1])


@every_task
def test_the_data_follow_from_the_settings_alone(task: Task):
    torch.manual_seed(11)
    again = type(task)(
        **{field.name: getattr(task, field.name) for field in dataclasses.fields(task)}
    )
    for ours, theirs in zip(_all_data(task), _all_data(again), strict=True):
        assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())


@every_task
def test_a_model_follows_from_the_seed_alone(task: Task):
    torch.manual_seed(4)
    first = _state(task.model())
    torch.manual_seed(5)
    other = _state(task.model())
    torch.manual_seed(4)
    assert _state(task.model()) == first
    assert other != first


@every_task
def test_a_model_is_fresh_and_in_training_mode(task: Task):
    model, second = task.model(), task.model()
    assert model.training
    assert not {p.data_ptr() for p in model.parameters()} & {
        p.data_ptr() for p in second.parameters()
    }


@every_task
def test_the_loss_is_a_mean_over_samples(task: Task):
    model = task.model().eval()
    x, y = task.train_data()
    x, y = x[1:14], y[1:14]  # sample 0 is the poisoned one
    whole = task.loss(model, x, y)
    parts = [task.loss(model, x[a:b], y[a:b]) * (b - a) for a, b in ((0, 5), (5, 6), (6, 13))]
    assert whole.dim() == 0
    assert whole.requires_grad
    torch.testing.assert_close(whole, sum(parts) / 13)


@every_task
def test_evaluation_changes_nothing(task: Task):
    model = task.model()
    next(model.children(), model).eval()  # a user may have frozen a part
    modes = [module.training for module in model.modules()]
    state, rngs = _state(model), _rng_states()
    first = task.evaluate(model)
    assert task.evaluate(model) == first
    assert _state(model) == state
    assert _rng_states() == rngs
    assert [module.training for module in model.modules()] == modes
    assert torch.is_grad_enabled()


@every_task
def test_evaluation_gives_accuracy_and_loss(task: Task):
    accuracy, loss = task.evaluate(task.model())
    assert 0 <= accuracy <= 1
    assert loss > 0


@every_task
def test_operations_are_counted_without_a_random_number(task: Task):
    rngs = _rng_states()
    assert task.flops_per_sample > 0
    assert _rng_states() == rngs


def test_evaluation_in_batches_is_the_mean_over_all_samples():
    task = Digits()
    x, y = task.test_data()
    long = _Repeated(x.repeat(4, 1, 1, 1), y.repeat(4))  # 1,440 samples: three batches
    model = task.model()
    accuracy, loss = long.evaluate(model)
    with torch.no_grad():
        scores = model(x)
    assert accuracy == pytest.approx(float((scores.argmax(1) == y).float().mean()))
    assert loss == pytest.approx(float(nn.functional.cross_entropy(scores, y)), rel=1e-6)


def test_modes_come_back_after_an_evaluation_that_raised():
    task = Digits()
    broken = nn.Sequential(nn.Linear(3, 10), nn.Dropout())
    with pytest.raises(RuntimeError):
        task.evaluate(broken)
    assert all(module.training for module in broken.modules())
    assert torch.is_grad_enabled()


class _Repeated(Digits):
    def __init__(self, x: torch.Tensor, y: torch.Tensor):
        object.__setattr__(self, "_splits", ((x, y), (x, y)))
