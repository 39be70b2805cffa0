"""A model by name, with data: what runs is what the table describes."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from thinwire.errors import InputError
from thinwire.models import describe
from thinwire.models._subject import Sizes, runnable


@pytest.mark.parametrize("name", ["resnet20", "vgg16-cifar"])
def test_the_model_that_runs_has_the_tensors_of_its_table(name):
    model, args, kwargs = runnable(name, Sizes(2))
    assert model(*args, **kwargs).shape == (2, 10)
    shapes = [tuple(p.shape) for p in model.parameters()]
    assert shapes == [tensor.shape for tensor in describe(name, batch=2).tensors]
    assert next(model.parameters()).device.type == "cpu"


def test_a_model_of_ones_own_runs_on_the_inputs_it_gives_or_on_words_that_it_knows(monkeypatch):
    module = ModuleType("own_models")
    monkeypatch.setitem(sys.modules, "own_models", module)
    x = torch.ones(3, 4)
    module.__dict__["given"] = lambda: (torch.nn.Linear(4, 1), x)
    model, args, _ = runnable("own_models:given", Sizes(3))
    assert args[0] is x
    assert model(*args).shape == (3, 1)
    module.__dict__["words"] = lambda: torch.nn.Sequential(torch.nn.Embedding(7, 4))
    model, args, _ = runnable("own_models:words", Sizes(3, sequence=50))
    assert args[0].shape == (3, 50)
    assert 0 <= int(args[0].min()) <= int(args[0].max()) < 7
    with pytest.raises(InputError, match="no function"):
        runnable("own_models:absent", Sizes(3))
