"""What a codec is: a vector in, a packet out, and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch

from thinwire.wire.packet import Packet

__all__ = ["Codec", "Traits"]


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a method may assume of a codec.

    Args:
        linear: the codec of a sum is the sum of the codecs, so packets may be added on the way.
        biased: what comes out differs from what went in by more than chance; training with it
            needs `feedback`.
        shared_support: packets of all ranks address the same elements.
    """

    linear: bool = False
    biased: bool = False
    shared_support: bool = False


class Codec(ABC):
    """A compression of vectors, with explicit state.

    A codec holds settings only. What it remembers between calls is in the state that `init` makes:
    one per vector that is compressed, part of a checkpoint, changed by `encode` alone.
    """

    @property
    @abstractmethod
    def traits(self) -> Traits:
        """What a method may assume."""

    @abstractmethod
    def init(self, like: torch.Tensor) -> Any:
        """The state before the first call, for vectors of the size, dtype and device of `like`;
        None where nothing is remembered."""

    @abstractmethod
    def encode(self, x: torch.Tensor, state: Any) -> Packet:
        """Compress a vector.

        Args:
            x: left alone; its shape counts as flat. Meta gives a packet of the nominal size.
            state: as made by `init`; changed only when the call succeeds.
        """

    @abstractmethod
    def decode(self, packet: Packet) -> torch.Tensor:
        """What a packet stands for: a new 1-D tensor in main memory (or meta). Needs no state, so
        any rank can do it."""
