"""Sparse sets into a dense vector: the sum, its order, and what is refused."""

from __future__ import annotations

import pytest
import torch

from thinwire.collectives import Sparse
from thinwire.compress import add_sets
from thinwire.errors import InputError


def sets_of(numel: int, counts: list[int], dtype: torch.dtype = torch.float32) -> list[Sparse]:
    draw = torch.Generator().manual_seed(5)
    found = []
    for count in counts:
        index = torch.randperm(numel, generator=draw)[:count].sort().values.to(torch.int32)
        found.append(Sparse(index, torch.randn(count, generator=draw, dtype=dtype), numel))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_sets_are_added_in_their_order_to_the_bit(dtype: torch.dtype):
    sets, dense = sets_of(500, [200, 1, 0, 500, 300], dtype), torch.randn(500, dtype=dtype)
    expected = dense.clone()
    for s in sets:
        for i, value in zip(s.index.tolist(), s.value, strict=True):
            expected[i] += value
    assert add_sets(sets, dense) is dense
    assert torch.equal(dense, expected)


def test_a_dense_tensor_of_another_shape_and_without_the_kernels(monkeypatch):
    sets, dense = sets_of(60, [10, 30]), torch.zeros(6, 10)
    add_sets(sets, dense)
    monkeypatch.setattr("thinwire.compress.adding.kernels", lambda: None)
    assert torch.equal(dense, add_sets(sets, torch.zeros(6, 10)))


def test_meta_sets_change_nothing():
    (s,) = sets_of(8, [3])
    meta = Sparse(s.index.to("meta"), s.value.to("meta"), 8)
    assert not add_sets([meta], torch.zeros(8)).any()


@pytest.mark.parametrize("index", [-1, 8])
def test_an_index_outside_is_refused_and_not_written(index: int):
    """A broken packet must not write into foreign memory."""
    s = Sparse(torch.tensor([index], dtype=torch.int32), torch.ones(1), 8)
    with pytest.raises(InputError, match=f"index {index}; valid: 0..7"):
        add_sets([s], torch.zeros(8))


def test_a_set_of_another_size_is_refused():
    with pytest.raises(InputError, match="8 elements"):
        add_sets(sets_of(8, [3]), torch.zeros(9))
