"""gTop-k's packets: fewer bytes, the same training."""

from __future__ import annotations

import pytest
import torch

from thinwire.errors import InputError
from thinwire.methods import GTopK
from thinwire.passes import CODED_FROM
from thinwire.testing.toys import Quadratic


@pytest.mark.slow
@pytest.mark.parametrize("losses", ["paper", "kept"])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_training_is_the_same_to_the_bit_and_sends_less(run_method, losses, size):
    task = Quadratic(dim=600)
    plain, coded = (
        run_method(GTopK(density=0.1, losses=losses, packing=packing), size, task=task, lr=0.01)
        for packing in ("plain", "coded")
    )
    for a, b in zip(plain.params, coded.params, strict=True):
        assert torch.equal(a, b)
    for a, b in zip(plain.world.endpoints, coded.world.endpoints, strict=True):
        assert b.meter.sent <= 0.75 * a.meter.sent
        assert b.meter.messages_sent == a.meter.messages_sent


def test_auto_codes_large_sets_only(run_method, monkeypatch):
    monkeypatch.setattr("thinwire.compress.coded.CODED_FROM", 60)
    sent = {
        (density, packing): run_method(
            GTopK(density=density, packing=packing), 2, task=Quadratic(dim=600), lr=0.01, steps=2
        )
        .world.endpoints[1]
        .meter.sent
        for density in (0.1, 0.099)
        for packing in ("auto", "plain", "coded")
    }
    assert sent[0.1, "auto"] == sent[0.1, "coded"] < sent[0.1, "plain"]
    assert sent[0.099, "auto"] == sent[0.099, "plain"]


def test_bytes_are_declared_where_they_are_known():
    large = 1000 * CODED_FROM
    assert GTopK(density=0.001).sent_bytes(large, 4, 3) is None
    assert GTopK(density=0.001, packing="plain").sent_bytes(large, 4, 3) is not None
    assert GTopK(density=0.001).sent_bytes(large - 1000, 4, 3) is not None
    assert GTopK(density=0.001, packing="coded").sent_bytes(1000, 4, 3) is None


def test_an_unknown_packing_is_refused_by_name():
    with pytest.raises(InputError, match="packing = 'zip'; valid: auto, coded, plain"):
        GTopK(packing="zip")  # pyright: ignore[reportArgumentType]
