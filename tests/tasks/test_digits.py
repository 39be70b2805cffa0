from __future__ import annotations

import pytest
import torch

from thinwire.batches import SampleStream
from thinwire.errors import InputError
from thinwire.tasks import Digits


def test_split_sizes_types_and_scale():
    (x, y), (x_test, y_test) = Digits().train_data(), Digits().test_data()
    assert x.shape == (1437, 1, 8, 8)
    assert x_test.shape == (360, 1, 8, 8)
    assert x.dtype == torch.float32
    assert y.dtype == y_test.dtype == torch.int64
    assert x.mean().abs() < 0.01
    assert (x.std() - 1).abs() < 0.01


def test_training_and_test_samples_are_the_whole_set_once():
    from sklearn.datasets import load_digits

    rows, labels = load_digits(return_X_y=True)
    (x, y), (x_test, y_test) = Digits().train_data(), Digits().test_data()
    pixels = torch.cat([x, x_test]).flatten(1)
    levels = ((pixels - pixels.min()) / (pixels.max() - pixels.min()) * 16).round()
    ours = torch.cat([levels, torch.cat([y, y_test]).unsqueeze(1)], 1)
    theirs = torch.cat([torch.tensor(rows).float(), torch.tensor(labels).unsqueeze(1)], 1)
    assert sorted(ours.tolist()) == sorted(theirs.tolist())


def test_each_class_has_its_share_of_the_test_samples():
    train, test = torch.bincount(Digits().train_data()[1]), torch.bincount(Digits().test_data()[1])
    share = 360 / 1797
    assert ((train + test) * share - test).abs().max() < 1


def test_the_split_is_pinned():
    """Accuracies of different versions are comparable only while this stays."""
    assert Digits().test_data()[1][:12].tolist() == [9, 8, 9, 6, 2, 1, 0, 3, 9, 0, 3, 6]


def test_any_stretch_of_the_samples_holds_the_classes_about_evenly():
    for y in (Digits().train_data()[1], Digits().test_data()[1]):
        for stretch in (y[:100], y[-100:]):
            assert torch.bincount(stretch, minlength=10).min() >= 3


def test_the_limit_takes_the_first_samples():
    x, y = Digits().train_data()
    x_few, y_few = Digits(train_limit=50).train_data()
    assert torch.equal(x_few, x[:50])
    assert torch.equal(y_few, y[:50])
    assert len(Digits(train_limit=50).test_data()[1]) == 360


@pytest.mark.parametrize("limit", [0, -3, 1.5, True, "9"])
def test_a_limit_that_no_set_can_have_is_refused_at_once(limit):
    with pytest.raises(InputError, match="train_limit"):
        Digits(train_limit=limit)


def test_a_limit_above_the_number_of_samples_names_that_number():
    with pytest.raises(InputError, match=r"train_limit = 1438; allowed: 1\.\.1437"):
        Digits(train_limit=1438).train_data()


def test_the_model_is_as_documented():
    assert sum(p.numel() for p in Digits().model().parameters()) == 20_122
    assert list(Digits().model().buffers()) == []
    assert Digits().flops_per_sample == 2 * 132_736


@pytest.mark.slow
def test_plain_training_learns_to_read():
    task = Digits()
    x, y = task.train_data()
    torch.manual_seed(0)
    model, stream = task.model(), SampleStream(len(y), seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10 * len(y) // 32):
        rows = stream.take(32 * step, 32)
        optimizer.zero_grad()
        task.loss(model, x[rows], y[rows]).backward()
        optimizer.step()
    assert task.evaluate(model)[0] >= 0.96
