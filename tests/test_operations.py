"""Counting what passes cost, and dividing a backward pass among the gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from thinwire.flat import Flat
from thinwire.models import describe
from thinwire.operations import FlopCount, Inputs, backward_shares, layer_shares


def names(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_parameters()]


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5),
        nn.Conv2d(8, 8, 3, groups=8), nn.Flatten(), nn.Linear(32, 5),
    )  # fmt: skip


def test_forward_operations_are_those_that_torch_counts():
    model, x = convolutions(), torch.randn(2, 3, 6, 6)
    with FlopCount() as ours:
        model(x)
    with FlopCounterMode(display=False) as theirs:
        model(x)
    assert ours.total == theirs.get_total_flops() > 0


@pytest.mark.parametrize(
    ("make", "shape"),
    [(convolutions, (4, 3, 6, 6)), (lambda: nn.LSTM(5, 7, 2), (6, 3, 5))],
    ids=["convolutions", "lstm"],
)
def test_shares_are_those_of_the_described_model(make: Any, shape: tuple[int, ...]):
    model, x = make(), torch.randn(shape)
    ours = backward_shares(model, names(model), Inputs.of((x,), {}))
    theirs = describe(model, inputs=x, batch=shape[0]).backward_shares()
    assert ours is not None
    assert ours == theirs
    assert sum(ours) == pytest.approx(1)


def test_shares_do_not_depend_on_the_batch():
    model = convolutions()
    found = [
        backward_shares(model, names(model), Inputs.of((torch.randn(n, 3, 6, 6),), {}))
        for n in (2, 7)
    ]
    assert found[0] == found[1]


def test_the_model_its_hooks_and_the_generators_are_left_alone():
    model, called = convolutions(), []
    model.register_forward_hook(lambda *_: called.append("hook"))
    inputs = Inputs.of((torch.randn(2, 3, 6, 6),), {})
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    backward_shares(model, names(model), inputs)
    assert called == []
    assert torch.equal(torch.get_rng_state(), state)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])
    assert all(p.grad is None for p in model.parameters())
    model(torch.randn(2, 3, 6, 6))
    assert called == ["hook"]


def test_named_inputs_and_other_outputs_than_a_tensor_will_do():
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, *, x: torch.Tensor, scale: float) -> dict[str, Any]:
            hidden = self.a(x) * scale
            return {"hidden": hidden, "logits": [self.b(hidden)], "note": "no tensor"}

    model = Named()
    shares = backward_shares(
        model, names(model), Inputs.of((), {"x": torch.ones(3, 4), "scale": 2.0})
    )
    assert shares is not None
    # a: of its weight; b: of weight and input, half as large each.
    assert (sum(shares[:2]), sum(shares[2:])) == (0.5, 0.5)


class Looks(nn.Linear):
    """Looks at a value."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * float(input.sum())


def test_a_model_that_needs_data_and_one_without_operations_go_by_parameters():
    for model in (Looks(3, 2), nn.BatchNorm1d(3)):
        inputs = Inputs.of((torch.ones(2, 3),), {})
        assert backward_shares(model, names(model), inputs) is None
    flat = Flat(model := Looks(3, 2))
    for inputs in (Inputs.of((torch.ones(2, 3),), {}), None):
        assert layer_shares(model, flat.layers, inputs) == (6 / 8, 2 / 8)
