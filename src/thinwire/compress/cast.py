"""Every element in 16 or 8 bits."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from thinwire.compress.base import Codec, Traits
from thinwire.compress.draws import Calls
from thinwire.compress.values import check_form, finite_flat, narrow, narrow_by_chance, widen
from thinwire.errors import InputError
from thinwire.seeds import generator_for
from thinwire.wire.packet import Packet

__all__ = ["Cast", "StochasticCast", "cast", "stochastic_cast"]

_NARROW = ("fp16", "bf16", "int8")


@dataclass(frozen=True, kw_only=True)
class Cast(Codec):
    """Rounds to the nearest: half or a quarter of the bytes, the same elements on all ranks.

    fp16 keeps 11 bits and ends at 65,504, beyond which it saturates; bf16 keeps 8 bits and the
    range of float32; int8 has a scale for every 2,048 elements.

    Args:
        form: "fp16", "bf16" or "int8".

    >>> codec = cast("bf16")
    >>> codec.decode(codec.encode(torch.tensor([1.0, 1.001]), None))
    tensor([1., 1.])
    """

    form: str

    def __post_init__(self) -> None:
        check_form(self.form, "form", _NARROW)

    @property
    def traits(self) -> Traits:
        """See `Codec`."""
        return Traits(biased=True, shared_support=True)

    def init(self, like: torch.Tensor) -> None:
        """See `Codec`: nothing is remembered."""
        return None

    def encode(self, x: torch.Tensor, state: None) -> Packet:
        """See `Codec`.

        Raises:
            NonFiniteError: an element is NaN or infinite.
        """
        return Packet(_own(narrow(finite_flat(x), self.form)), "gradient")

    def decode(self, packet: Packet) -> torch.Tensor:
        """See `Codec`."""
        return widen(packet.buffers, self.form)


@dataclass(frozen=True, kw_only=True)
class StochasticCast(Codec):
    """Rounds up or down at random, so that the mean is the element itself: needs no feedback.

    Args:
        form: "fp16", "bf16" or "int8".
        seed: of the draws; give ranks different ones, or their errors do not average out.

    Reference: Gupta et al., "Deep Learning with Limited Numerical Precision", ICML 2015.
    """

    form: str
    seed: int = 0

    def __post_init__(self) -> None:
        check_form(self.form, "form", _NARROW)
        if self.seed < 0:
            raise InputError(f"seed = {self.seed!r}; it must be >= 0")

    @property
    def traits(self) -> Traits:
        """See `Codec`."""
        return Traits(shared_support=True)

    def init(self, like: torch.Tensor) -> Calls:
        """See `Codec`: how often it was called, so that each call draws anew."""
        return Calls()

    def encode(self, x: torch.Tensor, state: Calls) -> Packet:
        """See `Codec`.

        Raises:
            NonFiniteError: an element is NaN or infinite.
        """
        generator = generator_for(self.seed, "stochastic_cast", state.count)
        buffers = narrow_by_chance(finite_flat(x), self.form, generator)
        state.count += 1
        return Packet(_own(buffers), "gradient")

    def decode(self, packet: Packet) -> torch.Tensor:
        """See `Codec`."""
        return widen(packet.buffers, self.form)


def _own(buffers: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(b if b.is_meta else b.cpu() for b in buffers)


def cast(form: str) -> Cast:
    """`Cast(form=form)`, to be composed: `feedback(cast("int8"))`."""
    return Cast(form=form)


def stochastic_cast(form: str, seed: int = 0) -> StochasticCast:
    """`StochasticCast(form=form, seed=seed)`."""
    return StochasticCast(form=form, seed=seed)
