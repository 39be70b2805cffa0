"""Values in fewer bits: the nearest, the right mean, nothing beyond the range."""

from __future__ import annotations

import pytest
import torch

from thinwire.compress.values import BUCKET, narrow, narrow_by_chance, widen
from thinwire.errors import InputError
from thinwire.seeds import generator_for

NARROW = ("fp16", "bf16", "int8")
TINY = {"fp16": 2.0**-24, "bf16": 2.0**-133}


def values(numel=3000, scale=1.0):
    return torch.randn(numel, generator=generator_for(4, numel)).mul(scale)


@pytest.mark.parametrize("form", ["fp16", "bf16"])
def test_rounding_is_to_the_nearest(form):
    x = values()
    wide = widen(narrow(x, form), form)
    assert torch.equal(wide, x.to(torch.float16 if form == "fp16" else torch.bfloat16).float())


def test_int8_values_are_at_most_half_a_step_off_in_every_bucket():
    x = values()
    x[BUCKET:] *= 1000  # another bucket, of its own scale
    wide = widen(narrow(x, "int8"), "int8")
    for part in (slice(0, BUCKET), slice(BUCKET, None)):
        step = x[part].abs().max() / 127
        assert (wide[part] - x[part]).abs().max() <= step * 0.501
        assert (wide[part].abs().max() - x[part].abs().max()).abs() <= 1e-5 * x[part].abs().max()


@pytest.mark.parametrize("form", NARROW)
def test_what_lies_beyond_the_range_saturates(form):
    largest = torch.finfo(torch.float32).max
    x = torch.tensor([largest, -largest, 70_000.0, -70_000.0])
    generator = generator_for(0)
    for buffers in (narrow(x, form), narrow_by_chance(x, form, generator)):
        wide = widen(buffers, form)
        assert torch.isfinite(wide).all()
        assert wide[0] == -wide[1] > 60_000
    if form == "fp16":
        assert wide.tolist() == [65504, -65504, 65504, -65504]


@pytest.mark.parametrize("form", ["fp16", "bf16"])
def test_by_chance_one_of_the_two_neighbours_is_taken_with_the_right_mean(form):
    near = torch.tensor([1.0, -1.0, 3.0, -0.125, 0.0, 0.0, 2.0, -2.0])
    dtype = torch.float16 if form == "fp16" else torch.bfloat16
    bits = near.to(dtype).view(torch.int16)
    above = (bits + 1).view(dtype).float()
    above[5] = -TINY[form]
    share = torch.tensor([0.25, 0.5, 0.75, 0.1, 0.3, 0.6, 0.0, 1.0])
    x = near + share * (above - near)
    rows = x.repeat(4000)
    drawn = widen(narrow_by_chance(rows, form, generator_for(8)), form).view(4000, -1)
    assert ((drawn == near) | (drawn == above)).all()
    moved = (drawn == above).float().mean(0)
    assert ((moved - share).abs() < 0.04).all()
    assert moved[6] == 0
    assert moved[7] == 1


@pytest.mark.parametrize("form", NARROW)
def test_exact_levels_stay_whatever_is_drawn(form):
    x = torch.tensor([0.0, 127.0, -127.0, 64.0, -1.0, 3.0])
    for seed in range(20):
        assert torch.equal(widen(narrow_by_chance(x, form, generator_for(seed)), form), x)


@pytest.mark.parametrize("form", NARROW)
@pytest.mark.parametrize("numel", [0, 1, BUCKET, BUCKET + 1])
def test_every_length_comes_back(form, numel):
    for buffers in (
        narrow(values(numel), form),
        narrow_by_chance(values(numel), form, generator_for(0)),
    ):
        assert widen(buffers, form).shape == (numel,)


def test_a_bucket_too_small_for_a_scale_is_sent_as_zeros():
    x = torch.full((5,), 1e-45)
    for buffers in (narrow(x, "int8"), narrow_by_chance(x, "int8", generator_for(0))):
        assert not widen(buffers, "int8").any()


def test_buffers_of_another_form_are_refused():
    x = values()
    for given, read in (("fp16", "bf16"), ("int8", "fp16"), ("fp16", "int8"), ("bf16", "fp32")):
        with pytest.raises(InputError, match=r"form|scale"):
            widen(narrow(x, given), read)
    code, scale = narrow(x, "int8")
    with pytest.raises(InputError, match=r"3000 x torch.int8 with 1 scales"):
        widen((code, scale[:1]), "int8")
