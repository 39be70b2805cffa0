"""Power iteration: orthonormal, exact where the rank suffices, the best in the end."""

from __future__ import annotations

import os
import subprocess
import sys

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
from thinwire.errors import InputError, NonFiniteError
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


PORTABLE = """
import hashlib, numpy as np, torch
from thinwire.compress.powersgd import orthogonalise, product
drawn = np.random.default_rng(1)
p, q = (torch.from_numpy(drawn.standard_normal((n, 4)).astype("f4")) for n in (513, 777))
p[:, 3] = p[:, 0]
o = orthogonalise(p)
print(hashlib.blake2b(o.numpy().tobytes() + product(o, q).numpy().tobytes()).hexdigest())
"""


@pytest.mark.slow
def test_factors_and_product_have_the_same_bits_on_processors_with_and_without_wide_units():
    """Of torch, of MKL and of numpy, as older processors would run them."""
    variants = [
        {},
        {"ATEN_CPU_CAPABILITY": "default"},
        {"MKL_CBWR": "COMPATIBLE"},
        {"NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3"},
        {"OMP_NUM_THREADS": "2"},
    ]
    found = []
    for variant in variants:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **variant}
        command = [sys.executable, "-W", "ignore", "-c", PORTABLE]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        found.append(done.stdout)
    assert found == [found[0]] * len(variants)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_factor_that_is_no_number_is_refused(bad):
    p = matrix(40, 4)
    p[7, 2] = bad
    with pytest.raises(NonFiniteError, match="lower the learning rate"):
        orthogonalise(p)


@pytest.mark.parametrize("scale", [1e-38, 1e-20, 1e20, 1e37])
def test_columns_of_any_size_are_orthonormalised(scale):
    q = orthogonalise(matrix(40, 4) * scale)
    torch.testing.assert_close(q, orthogonalise(matrix(40, 4)), rtol=0, atol=1e-5)


def test_the_product_is_that_of_a_library_to_rounding():
    for rows, cols, rank in ((1, 1, 1), (300, 5, 2), (3, 70_000, 3), (500, 300, 8)):
        p, q = matrix(rows, rank, seed=3), matrix(cols, rank, seed=4)
        torch.testing.assert_close(product(p, q), p @ q.t(), rtol=1e-5, atol=1e-5)
        out = torch.empty(rows, cols)
        assert product(p, q, out=out) is out


def test_small_matrices_may_be_left_dense():
    shapes = [(64, 64), (32, 32), (7,)]
    assert [p.rank for p in matrix_parts(shapes, 2, dense_below=1025)] == [2, 0, 0]
    with pytest.raises(InputError, match="dense_below = -1"):
        matrix_parts(shapes, 2, dense_below=-1)
