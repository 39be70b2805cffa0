"""Values in fewer bits.

Legend: B values in a bucket that shares a scale.
"""

from __future__ import annotations

import torch

from thinwire.errors import InputError, NonFiniteError

__all__ = ["BUCKET", "FORMS", "check_form", "finite_flat", "narrow", "narrow_by_chance",
           "refuse_bad", "widen"]  # fmt: skip

FORMS = ("fp32", "fp16", "bf16", "int8")
"""Names of the forms: 4, 2, 2 and 1 byte a value."""

BUCKET = 2048
"""B: int8 values that share a float32 scale."""

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_LEVELS = 127
_MAX_SCALE = torch.finfo(torch.float32).max / _LEVELS * (1 - 2**-23)
"""Times 127 it still is a float32."""


def check_form(form: str, key: str, valid: tuple[str, ...] = FORMS) -> None:
    """Reject what is not the name of a form."""
    if form not in valid:
        raise InputError(f"{key} = {form!r}; valid: {', '.join(valid)}")


def refuse_bad(flat: torch.Tensor) -> None:
    """Reject a 1-D vector with an element that is NaN or infinite.

    Raises:
        NonFiniteError: naming the first by its place.
    """
    if flat.is_meta or not flat.numel() or bool(torch.isfinite(flat.sum())):
        return
    bad = (~torch.isfinite(flat)).nonzero()  # none where only the sum overflowed
    if bad.numel():
        at = int(bad[0])
        raise NonFiniteError(
            f"element {at} of the vector to compress is {float(flat[at])}; nothing was encoded. "
            "Lower the learning rate, clip the gradient, or skip the step"
        )


def finite_flat(x: torch.Tensor) -> torch.Tensor:
    """A vector as float32 in one dimension, on its own device; a view where it is one already.

    Raises:
        NonFiniteError: an element is NaN, infinite or too large for float32.
    """
    flat = x.detach().reshape(-1).float()
    refuse_bad(flat)
    return flat


def narrow(value: torch.Tensor, form: str) -> tuple[torch.Tensor, ...]:
    """Values rounded to the nearest of a form.

    What lies beyond the form's largest number becomes that number, so that feedback sends the rest.

    Args:
        value: 1-D, float32, finite; or meta.
        form: in `FORMS`.

    Returns:
        One buffer; for int8 also a scale for every `BUCKET` values.
    """
    if form == "int8":
        scaled, scale = _scaled(value)
        return scaled.round().to(torch.int8), scale
    return (_within(value, _DTYPES[form]).to(_DTYPES[form]),)


def narrow_by_chance(
    value: torch.Tensor, form: str, generator: torch.Generator
) -> tuple[torch.Tensor, ...]:
    """As `narrow`, but up or down at random, so that the mean is the value itself.

    Args:
        value: 1-D, float32, finite; or meta.
        form: "fp16", "bf16" or "int8".
        generator: on the CPU; one number is drawn for each value.
    """
    if value.is_meta:
        return narrow(value, form)
    if form == "bf16":
        # bfloat16 is the upper half of float32, so adding to the lower half carries by chance.
        lower = torch.randint(0, 1 << 16, value.shape, generator=generator, dtype=torch.int32)
        bits = _within(value, torch.bfloat16).view(torch.int32) + lower.to(value.device)
        return ((bits >> 16).to(torch.int16).view(torch.bfloat16),)
    drawn = torch.rand(value.shape, generator=generator).to(value.device)
    if form == "int8":
        scaled, scale = _scaled(value)
        return (scaled + drawn).floor_().clamp_(-_LEVELS, _LEVELS).to(torch.int8), scale
    value = _within(value, torch.float16)
    near = value.to(torch.float16)
    error = value - near.float()
    # The neighbour on the other side of the value: bits count magnitudes, below the sign bit.
    bits = near.view(torch.int16)
    beside = torch.where(error * near.sign() > 0, bits + 1, bits - 1)
    beside = torch.where(near == 0, torch.where(error < 0, -32767, 1), beside).to(torch.int16)
    other = beside.view(torch.float16)
    share = error / (other.float() - near.float())
    return (torch.where(drawn < share, other, near),)


def widen(buffers: tuple[torch.Tensor, ...], form: str) -> torch.Tensor:
    """The values that `narrow` gave, as float32 (float64 in form fp32 stays so).

    Raises:
        InputError: buffers that are not of this form.
    """
    if len(buffers) != (2 if form == "int8" else 1):
        raise InputError(f"{len(buffers)} buffers are not values of form {form}")
    value = buffers[0]
    if form == "int8":
        scale = buffers[1]
        if value.dtype != torch.int8 or scale.numel() != -(-value.numel() // BUCKET):
            raise InputError(
                f"{value.numel()} x {value.dtype} with {scale.numel()} scales are not int8 values "
                f"with a scale for every {BUCKET}"
            )
        return value.float() * _spread(scale, value.numel())
    if value.dtype != _DTYPES[form] and not (form == "fp32" and value.dtype == torch.float64):
        raise InputError(f"values of {value.dtype} are not of form {form}")
    return value.float() if form != "fp32" else value


def _within(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    limit = torch.finfo(dtype).max
    return value if dtype == value.dtype else value.clamp(-limit, limit)


def _scaled(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Values in -127..127, and the scale of each bucket: its largest magnitude / 127."""
    num, buckets = value.numel(), -(-value.numel() // BUCKET)
    if value.is_meta:
        return torch.empty_like(value), torch.empty(buckets, device="meta")
    padded = value.new_zeros(buckets * BUCKET)
    padded[:num] = value
    largest = padded.view(buckets, BUCKET).abs().amax(1) if num else value.new_zeros(0)
    scale = (largest / _LEVELS).clamp_(max=_MAX_SCALE)
    # Of a bucket of zeros, or of values too small for a scale, nothing is sent.
    scaled = value / _spread(torch.where(scale == 0, torch.inf, scale), num)
    return scaled.clamp_(-_LEVELS, _LEVELS), scale


def _spread(scale: torch.Tensor, num: int) -> torch.Tensor:
    if scale.is_meta:
        return torch.empty(num, device="meta")
    return scale.repeat_interleave(BUCKET)[:num]
