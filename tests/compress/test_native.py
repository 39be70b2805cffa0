"""Compiled kernels: loaded when wanted, compiled then and never later."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from thinwire.compress import _native, prepare
from thinwire.compress.topk import SAMPLE_FROM


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_numba_is_loaded_only_for_a_memory_that_is_worth_it():
    run(
        "import sys, torch\n"
        "from thinwire.compress import prepare\n"
        f"prepare(torch.zeros({SAMPLE_FROM - 1}))\n"
        f"prepare(torch.zeros({SAMPLE_FROM}, dtype=torch.float64))\n"
        f"prepare(torch.zeros({SAMPLE_FROM}, device='meta'))\n"
        "assert 'numba' not in sys.modules"
    )


def test_without_numba_selection_and_codes_still_work():
    run(
        "import sys, torch\n"
        "sys.modules['numba'] = None\n"
        "from thinwire.compress import accumulate_and_select, decode_indices, encode_indices\n"
        f"x = torch.arange({SAMPLE_FROM + 5}.0)\n"
        "kept = accumulate_and_select(torch.zeros_like(x), x, 1.0, 3)\n"
        f"assert kept.index.tolist() == [{SAMPLE_FROM + 2}, {SAMPLE_FROM + 3}, {SAMPLE_FROM + 4}]\n"
        "code = encode_indices(kept.index, kept.numel)\n"
        "assert torch.equal(decode_indices(code, kept.numel), kept.index)"
    )


def test_kernels_take_what_they_were_compiled_for_and_compile_nothing_else():
    kernels = _native.kernels()
    if kernels is None:
        pytest.skip("numba does not work here")
    prepare(torch.zeros(SAMPLE_FROM))
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
