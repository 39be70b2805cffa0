"""Power iteration: orthonormal, exact where the rank suffices, the best in the end."""

from __future__ import annotations

import pytest
import torch

from thinwire.compress.powersgd import (
    first_right,
    left,
    matrix_parts,
    orthogonalise,
    product,
    right,
)
from thinwire.errors import InputError
from thinwire.seeds import generator_for


def matrix(rows, cols, rank=None, seed=0):
    generator = generator_for(seed, rows, cols)
    if rank is None:
        return torch.randn(rows, cols, generator=generator)
    return torch.randn(rows, rank, generator=generator) @ torch.randn(
        rank, cols, generator=generator
    )


def approximate(m, q):
    p = orthogonalise(left(m, q))
    return p, right(m, p)


@pytest.mark.parametrize("p", [matrix(40, 4), torch.zeros(40, 4), torch.ones(40, 4), matrix(4, 4)])
def test_columns_are_orthonormal_whatever_comes_in(p):
    q = orthogonalise(p)
    torch.testing.assert_close(q.t() @ q, torch.eye(4), rtol=0, atol=1e-6)
    torch.testing.assert_close(q @ (q.t() @ p), p, rtol=0, atol=1e-5)


def test_a_matrix_of_low_rank_comes_back_exactly():
    m = matrix(60, 30, rank=3)
    p, q = approximate(m, matrix(30, 3, seed=1))
    torch.testing.assert_close(product(p, q), m, rtol=0, atol=1e-4)


def test_the_error_is_orthogonal_to_what_is_sent():
    m = matrix(60, 30)
    p, q = approximate(m, matrix(30, 3, seed=1))
    assert float((p.t() @ (m - product(p, q))).abs().max()) < 1e-5


def test_a_warm_start_finds_the_best_approximation():
    m = matrix(60, 30, rank=3) + 0.05 * matrix(60, 30, seed=2)
    q = matrix(30, 3, seed=1)
    errors = []
    for _ in range(12):
        p, q = approximate(m, q)
        errors.append(float((m - product(p, q)).norm()))
    best = float(torch.linalg.svdvals(m)[3:].norm())
    assert errors[-1] <= best * 1.001
    assert errors[-1] <= errors[0]


def test_a_zero_gradient_does_not_end_the_warm_start():
    q = matrix(30, 3, seed=1)
    _, q = approximate(torch.zeros(60, 30), q)
    assert not q.any()
    m = matrix(60, 30, rank=3)
    for _ in range(3):
        p, q = approximate(m, q)
    torch.testing.assert_close(product(p, q), m, rtol=0, atol=1e-4)


def test_the_mean_of_the_workers_factors_is_the_factor_of_the_mean():
    ms = [matrix(20, 10, seed=s) for s in range(4)]
    q = matrix(10, 2, seed=9)
    mean = torch.stack(ms).mean(0)
    torch.testing.assert_close(torch.stack([left(m, q) for m in ms]).mean(0), left(mean, q))
    p = orthogonalise(left(mean, q))
    torch.testing.assert_close(torch.stack([right(m, p) for m in ms]).mean(0), right(mean, p))


def test_layers_are_matrices_where_that_halves_their_bytes():
    shapes = [(64, 3, 7, 7), (64,), (10, 4), (1000, 512), (), (5, 0), (1, 4096)]
    parts = matrix_parts(shapes, rank=4)
    assert [(p.rows, p.cols, p.rank) for p in parts] == [
        (64, 147, 4), (1, 64, 0), (10, 4, 0), (1000, 512, 4), (1, 1, 0), (1, 0, 0), (1, 4096, 0),
    ]  # fmt: skip
    assert [p.start for p in parts] == [0, 9408, 9472, 9512, 521512, 521513, 521513]
    assert parts[0].sent == 4 * (64 + 147)
    assert parts[1].sent == 64
    for part in parts:
        assert part.rank == 0 or 2 * part.sent <= part.numel


def test_a_part_is_a_view_of_its_place():
    flat = torch.arange(30.0)
    parts = matrix_parts([(6,), (4, 2, 3)], rank=1)
    view = parts[1].of(flat)
    assert view.shape == (4, 6)
    view.zero_()
    assert flat.tolist() == [0, 1, 2, 3, 4, 5] + [0] * 24


def test_the_first_factor_is_the_same_on_all_ranks_and_differs_between_layers():
    a, b = matrix_parts([(60, 30), (60, 30)], rank=2)
    assert torch.equal(first_right(a, 7), first_right(a, 7))
    assert not torch.equal(first_right(a, 7), first_right(b, 7))
    assert first_right(a, 7).shape == (30, 2)


def test_a_rank_below_one_is_refused():
    with pytest.raises(InputError, match="rank = 0; it must be >= 1"):
        matrix_parts([(3, 3)], rank=0)


def test_meta_matrices_pass_through():
    assert orthogonalise(torch.empty(60, 2, device="meta")).shape == (60, 2)
