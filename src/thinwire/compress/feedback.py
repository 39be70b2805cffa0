"""Error feedback: what a codec leaves out is added to the next vector."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from thinwire.compress.base import Codec, Traits
from thinwire.errors import InputError, NonFiniteError
from thinwire.wire.packet import Packet

__all__ = ["Feedback", "FeedbackState", "feedback"]


@dataclass
class FeedbackState:
    """What one vector's feedback remembers; belongs into a checkpoint.

    Args:
        memory: P values, what has not been sent yet; starts at zero.
        inner: the wrapped codec's state.
    """

    memory: torch.Tensor
    inner: Any


@dataclass(frozen=True, kw_only=True)
class Feedback(Codec):
    """Adds the memory to the vector, encodes the sum, remembers what the packet lacks of it.

    After each call, `decode(packet) + memory` after is `x + memory` before: exactly for codecs that
    keep elements as they are, to rounding for others. The memory is flat and as large as the
    vector.

    Args:
        codec: what is compressed with.

    Reference: Stich, Cordonnier, Jaggi, "Sparsified SGD with Memory", NeurIPS 2018.
    """

    codec: Codec

    @property
    def traits(self) -> Traits:
        """See `Codec`: no longer biased, for the error is made up for later; never linear."""
        return replace(self.codec.traits, biased=False, linear=False)

    def init(self, like: torch.Tensor) -> FeedbackState:
        """See `Codec`."""
        memory = torch.zeros_like(like.detach().reshape(-1), memory_format=torch.contiguous_format)
        return FeedbackState(memory, self.codec.init(like))

    def encode(self, x: torch.Tensor, state: FeedbackState) -> Packet:
        """See `Codec`.

        Raises:
            NonFiniteError: the vector is NaN or infinite somewhere; the memory is as before.
        """
        flat, memory = x.detach().reshape(-1), state.memory
        if flat.shape != memory.shape:
            raise InputError(
                f"a vector of {flat.numel()} elements meets a memory of {memory.numel()}"
            )
        total = memory + flat
        if total.is_meta:
            return self.codec.encode(total, state.inner)
        if not bool(torch.isfinite(total.sum())) and not bool(torch.isfinite(total).all()):
            raise NonFiniteError(
                "the vector to compress is NaN or infinite; the error-feedback memory was left as "
                "it was. Lower the learning rate, clip the gradient, or skip the step"
            )
        packet = self.codec.encode(total, state.inner)
        lacking = self.codec.decode(packet).to(device=memory.device, dtype=memory.dtype)
        torch.sub(total, lacking, out=memory)
        return packet

    def decode(self, packet: Packet) -> torch.Tensor:
        """See `Codec`."""
        return self.codec.decode(packet)


def feedback(codec: Codec) -> Feedback:
    """`Feedback(codec=codec)`, to be composed: `feedback(topk(0.01))`."""
    return Feedback(codec=codec)
