"""A sampler whose epoch is never set is noticed."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import thinwire as tw
from thinwire.loop._samplers import SameOrder

ROWS = torch.randn(16, 3)


def loader(shuffle: bool = True) -> tuple[DistributedSampler, DataLoader]:
    data = TensorDataset(ROWS)
    sampler = DistributedSampler(data, 2, 0, shuffle=shuffle)
    return sampler, DataLoader(data, 4, sampler=sampler)


def pair() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def epoch(model: nn.Module, optimizer: torch.optim.Optimizer, batches: DataLoader) -> None:
    for (x,) in batches:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()


@pytest.fixture
def found():
    with warnings.catch_warnings(record=True) as all_:
        warnings.simplefilter("always")
        yield lambda: [str(w.message) for w in all_ if w.category is SameOrder]


def test_a_forgotten_set_epoch_is_told_once(found):
    model, optimizer = pair()
    _, batches = loader()
    with tw.distribute(model, optimizer):
        epoch(model, optimizer, batches)
        assert not found()
        for _ in range(3):
            epoch(model, optimizer, batches)
    (told,) = found()
    assert "sampler.set_epoch(epoch)" in told


def test_who_sets_the_epoch_hears_nothing(found):
    model, optimizer = pair()
    sampler, batches = loader()
    with tw.distribute(model, optimizer):
        for number in range(3):
            sampler.set_epoch(number)
            epoch(model, optimizer, batches)
    assert not found()


def test_without_shuffling_there_is_nothing_to_forget(found):
    model, optimizer = pair()
    _, batches = loader(shuffle=False)
    with tw.distribute(model, optimizer):
        for _ in range(2):
            epoch(model, optimizer, batches)
    assert not found()


def test_going_through_a_test_set_again_is_no_epoch(found):
    model, optimizer = pair()
    _, batches = loader()
    _, tests = loader()
    with tw.distribute(model, optimizer):
        for number in range(2):
            model.eval()
            for (x,) in tests:
                model(x)
            model.train()
            with torch.no_grad():
                list(tests)
            if not number:
                epoch(model, optimizer, batches)
    assert not found()


def test_looking_at_the_order_before_training_is_no_epoch(found):
    model, optimizer = pair()
    sampler, batches = loader()
    with tw.distribute(model, optimizer):
        list(sampler)
        epoch(model, optimizer, batches)
    assert not found()


def test_torchs_class_is_its_own_again_after_the_last_pair():
    own = DistributedSampler.__iter__
    first, second = tw.distribute(*pair(), name="a"), tw.distribute(*pair(), name="b")
    assert DistributedSampler.__iter__ is not own
    assert first is not second
    tw.finish()
    assert DistributedSampler.__iter__ is own
