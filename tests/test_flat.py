"""Flat parameters: the module and the vector are one memory."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from thinwire.errors import InputError
from thinwire.flat import Flat, digest


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def test_module_and_vector_share_their_memory():
    net = model()
    flat = Flat(net)
    assert flat.params_P.numel() == 3 * 4 + 4 + 4 * 2 + 2
    with torch.no_grad():
        flat.params_P.fill_(1.0)
    assert all(bool((p == 1).all()) for p in net.parameters())
    net[0].weight.data.fill_(2.0)
    assert bool((flat.params_P[:12] == 2).all())


def test_the_layer_table_covers_the_vector_in_order():
    flat = Flat(model())
    assert [la.name for la in flat.layers] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert flat.layers[0].start == 0
    assert [a.stop for a in flat.layers[:-1]] == [b.start for b in flat.layers[1:]]
    assert flat.layers[-1].stop == flat.params_P.numel()


@pytest.mark.parametrize("set_to_none", [True, False])
def test_backward_fills_the_flat_gradient(set_to_none):
    net, x = model(), torch.randn(5, 3)
    flat = Flat(net)
    reference = model()
    for _ in range(3):
        net.zero_grad(set_to_none=set_to_none)
        reference.zero_grad()
        flat.clear_grad()
        net(x).square().mean().backward()
        reference(x).square().mean().backward()
        expected = torch.cat([p.grad.reshape(-1) for p in reference.parameters()])
        assert torch.equal(flat.grad_P, expected)


def test_stepping_the_vector_is_stepping_the_module():
    net, reference, x = model(), model(), torch.randn(5, 3)
    flat = Flat(net)
    ours = torch.optim.SGD([flat.params_P], lr=0.1, momentum=0.9)
    theirs = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    for _ in range(6):
        flat.clear_grad()
        net(x).square().mean().backward()
        flat.params_P.grad = flat.grad_P
        ours.step()
        theirs.zero_grad()
        reference(x).square().mean().backward()
        theirs.step()
    assert torch.equal(
        flat.params_P.data, torch.cat([p.data.reshape(-1) for p in reference.parameters()])
    )


def test_frozen_parameters_stay_outside():
    net = model()
    net[0].weight.requires_grad_(False)
    before = net[0].weight.clone()
    flat = Flat(net)
    with torch.no_grad():
        flat.params_P.zero_()
    assert torch.equal(net[0].weight, before)
    assert "0.weight" not in [la.name for la in flat.layers]


def test_models_that_cannot_be_flattened_are_named():
    with pytest.raises(InputError, match="no parameter"):
        Flat(nn.ReLU())
    mixed = model()
    mixed[2].double()
    with pytest.raises(InputError, match=r"2\.weight.*float64"):
        Flat(mixed)


def test_the_digest_sees_a_single_bit():
    x = torch.zeros(1000)
    y = x.clone()
    y[500] = 1e-45
    assert digest(x) == digest(x.clone())
    assert digest(x) != digest(y)


def test_watched_layers_are_told_in_backward_order_until_stopped():
    net, x = model(), torch.randn(2, 3)
    flat = Flat(net)
    seen: list[int] = []
    stop = flat.watch(seen.append)
    flat.clear_grad()
    net(x).sum().backward()
    assert sorted(seen) == [0, 1, 2, 3]
    assert seen.index(2) < seen.index(0)
    stop()
    net(x).sum().backward()
    assert len(seen) == 4


def test_gradients_are_collected_from_wherever_they_are():
    net, x = model(), torch.randn(2, 3)
    flat = Flat(net)
    for how in ("views", "none", "own"):
        flat.grad_P.fill_(7.0)
        flat.clear_grad()
        if how != "views":
            net.zero_grad(set_to_none=True)
            flat.grad_P.fill_(7.0)
        if how != "none":
            net(x).sum().backward()
        expected = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in flat.params]
        flat.collect_grad()
        assert torch.equal(flat.grad_P, torch.cat([g.reshape(-1) for g in expected]))
        assert all(p.grad is not None and p.grad._base is flat.grad_P for p in flat.params)


def test_a_parameter_frozen_meanwhile_has_no_gradient():
    net = model()
    flat = Flat(net)
    flat.clear_grad()
    net[2].weight.requires_grad_(False)
    flat.bind_grad()
    assert net[2].weight.grad is None
    assert net[0].weight.grad is not None


def test_the_first_layer_that_is_not_finite_is_named():
    flat = Flat(model())
    assert flat.non_finite_layer() is None
    flat.grad_P[flat.layers[2].start] = float("inf")
    assert flat.non_finite_layer() == flat.layers[2].name
    flat.grad_P.fill_(3e38)  # the sum alone is infinite
    assert flat.non_finite_layer() is None


def test_only_some_parameters_may_be_taken():
    net = model()
    flat = Flat(net, only=net[2].parameters())
    assert [la.name for la in flat.layers] == ["2.weight", "2.bias"]
    assert flat.attached
    net.double()
    assert not flat.attached
