"""The density falls in four stages, the same on every machine."""

from __future__ import annotations

import pytest

from thinwire.compress import num_kept, warmed
from thinwire.compress.warmup import STAGES, check_warmup
from thinwire.errors import InputError


def test_the_published_densities_are_met():
    found = [warmed(0.001, step, 400) for step in range(0, 500, 100)]
    assert found == pytest.approx([0.25, 0.0631, 0.0158, 0.004, 0.001], rel=0.01)


@pytest.mark.parametrize("warmup", [1, 3, 4, 10, 401])
def test_it_never_rises_and_ends_with_the_warm_up(warmup):
    found = [warmed(0.01, step, warmup) for step in range(warmup + 3)]
    assert found == sorted(found, reverse=True)
    assert found[warmup:] == [0.01] * 3
    assert all(density > 0.01 for density in found[:warmup])
    if warmup % STAGES == 0:
        assert len(dict.fromkeys(found)) == STAGES + 1


def test_none_is_the_density_from_the_first_step_on():
    assert warmed(0.3, 0, 0) == 0.3
    assert warmed(1.0, 0, 10) == 1.0


def test_the_last_bits_of_a_power_decide_nothing():
    # 0.25 of a million, although 0.0009765625 ** 0.2 may come out a bit below 0.25.
    assert num_kept(warmed(0.25**5, 0, 10), 1_000_000) == 250_000


@pytest.mark.parametrize(("density", "warmup"), [(0, 0), (1.1, 0), (float("nan"), 0), (0.1, -1)])
def test_bad_settings_are_named(density, warmup):
    with pytest.raises(InputError, match=r"density|warmup"):
        check_warmup(density, warmup)
