"""Compiled kernels: loaded when wanted, compiled then and never later."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch

from thinwire.compress import (
    _native,
    accumulate_and_select,
    decode_indices,
    encode_indices,
    prepare,
)
from thinwire.compress.fused import COMPILED_FROM
from thinwire.testing.processes import run_processes


def run(program: Callable[[int, int], bool]) -> None:
    """In a process of its own, which must be one where numba hasn't been loaded."""
    assert run_processes(program, 1) == [True]


def prepare_what_is_not_worth_it(rank: int, size: int) -> bool:
    assert "numba" not in sys.modules
    prepare(torch.zeros(COMPILED_FROM - 1))
    prepare(torch.zeros(COMPILED_FROM, dtype=torch.float64))
    prepare(torch.zeros(COMPILED_FROM, device="meta"))
    return "numba" not in sys.modules


def select_without_numba(rank: int, size: int) -> bool:
    assert "numba" not in sys.modules
    sys.modules["numba"] = None  # pyright: ignore[reportArgumentType]
    x = torch.arange(COMPILED_FROM + 5.0)
    kept = accumulate_and_select(torch.zeros_like(x), x, 1.0, 3)
    assert kept.index.tolist() == [COMPILED_FROM + 2, COMPILED_FROM + 3, COMPILED_FROM + 4]
    code = encode_indices(kept.index, kept.numel)
    return torch.equal(decode_indices(code, kept.numel), kept.index)


@pytest.mark.distributed
def test_numba_is_loaded_only_for_a_memory_that_is_worth_it():
    run(prepare_what_is_not_worth_it)


@pytest.mark.distributed
def test_without_numba_selection_and_codes_still_work():
    run(select_without_numba)


def test_kernels_take_what_they_were_compiled_for_and_compile_nothing_else():
    kernels = _native.kernels()
    if kernels is None:
        pytest.skip("numba does not work here")
    prepare(torch.zeros(COMPILED_FROM))
    assert kernels.count_beyond(np.ones(9, np.float32), np.float32(1)) == 9
    with pytest.raises(TypeError, match="No matching definition"):
        kernels.count_beyond(np.ones(9), np.float32(1))
    for name in kernels.__all__:
        assert len(getattr(kernels, name).signatures) == 1


@pytest.mark.parametrize("place", [0, 1, 2, 5, 8, 9, 10])
def test_an_element_beyond_the_limit_is_found_wherever_it_is(place):
    kernels = _native.kernels()
    if kernels is None:
        pytest.skip("numba does not work here")
    for bad in (2.0, -2.0, np.nan, np.inf):
        x = np.ones(11, np.float32)
        x[place] = bad
        assert kernels.count_beyond(x, np.float32(1.5)) == 1
