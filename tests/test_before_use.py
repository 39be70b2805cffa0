"""A forward pass that stops at each parameter, when it is first used and not before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from thinwire.flat import Flat


def used(model: nn.Module, *inputs: Any) -> list[Any]:
    """Names of the parameters in the order of the calls; None where the forward pass has ended."""
    flat, seen = Flat(model), []
    with flat.before_use(model, lambda index: seen.append(flat.layers[index].name)):
        model(*inputs)
        seen.append(None)
    return seen


class Odd(nn.Module):
    """It uses its layers in another order, one without calling it, one not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(4, 3), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(self.b(x), self.a.weight)


def test_each_parameter_is_called_for_once_in_the_order_of_use_and_the_unused_at_the_end():
    seen = used(Odd(), torch.zeros(1, 4))
    assert seen == ["b.weight", "b.bias", "a.weight", None, "a.bias", "c.weight", "c.bias"]


@pytest.mark.parametrize(
    "model",
    [
        nn.LSTM(4, 4),
        nn.TransformerEncoderLayer(4, 2, batch_first=True),
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        nn.Sequential(nn.Conv1d(3, 3, 1), nn.BatchNorm1d(3)),
    ],
    ids=["lstm", "attention", "weight norm", "norm"],
)
def test_all_kinds_of_modules_call_for_all_parameters_during_the_forward_pass(model):
    seen = used(model, torch.zeros(2, 3, 4))
    assert seen[-1] is None
    assert sorted(seen[:-1]) == sorted(name for name, _ in model.named_parameters())


def test_what_is_written_before_the_use_is_what_is_used():
    """With a parameter shared by two modules, under autocast, and computed again in backward."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    x = torch.randn(2, 4)
    flat = Flat(model)
    wanted = torch.randn_like(flat.params_P.data)

    def write(index: int) -> None:
        layer = flat.layers[index]
        flat.params_P.data[layer.start : layer.stop] = wanted[layer.start : layer.stop]

    with flat.before_use(model, write), torch.autocast("cpu", dtype=torch.bfloat16):
        y = checkpoint(model, x, use_reentrant=False)
    y.float().sum().backward()
    got = [p.grad.clone() for p in model.parameters()]
    flat.clear_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(x).float().sum().backward()
    for a, b in zip(got, model.parameters(), strict=True):
        assert torch.equal(a, b.grad)
    assert torch.equal(flat.params_P.data, wanted)


def test_a_scripted_part_has_all_called_for_beforehand():
    scripted = torch.jit.script(nn.Linear(2, 2))
    model = nn.Sequential(nn.Linear(2, 2), scripted)
    seen: list[int] = []
    with Flat(model).before_use(model, seen.append):
        assert seen == [0, 1, 2, 3]
        model(torch.zeros(1, 2))
    assert len(seen) == 4


@pytest.mark.slow
def test_a_model_that_is_to_be_compiled_has_all_called_for_beforehand():
    model = nn.Sequential(nn.Linear(2, 2))
    model.compile()  # nothing is compiled before it is called
    seen: list[int] = []
    with Flat(model).before_use(model, seen.append):
        assert seen == [0, 1]


def test_after_a_failure_nothing_more_is_called_for():
    model, seen = Odd(), []
    with pytest.raises(RuntimeError), Flat(model).before_use(model, seen.append):
        model(torch.zeros(1, 5))
    assert seen == [2, 3]
