"""A few levels between zero and a bucket's norm, chosen at random so that the mean is right."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from thinwire.compress.base import Codec, Traits
from thinwire.compress.draws import Calls
from thinwire.compress.values import finite_flat
from thinwire.errors import InputError
from thinwire.seeds import generator_for
from thinwire.wire.packet import Packet

__all__ = ["QSGD", "pack_bits", "qsgd", "unpack_bits"]


def pack_bits(code: torch.Tensor, bits: int) -> torch.Tensor:
    """Small numbers, several to a byte, the first in the lowest bits.

    Args:
        code: 1-D uint8, each below 2^bits.
        bits: 1, 2, 4 or 8.
    """
    per_byte = 8 // bits
    padded = code.new_zeros(-(-code.numel() // per_byte) * per_byte)
    padded[: code.numel()] = code
    rows = padded.view(-1, per_byte)
    packed = rows[:, 0].clone()
    for i in range(1, per_byte):
        packed |= rows[:, i] << bits * i
    return packed


def unpack_bits(packed: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """The first `count` numbers that `pack_bits` was given.

    Raises:
        InputError: the bytes hold fewer, or more than one byte's worth too many.
    """
    per_byte = 8 // bits
    if packed.dtype != torch.uint8 or packed.numel() != -(-count // per_byte):
        raise InputError(
            f"{packed.numel()} x {packed.dtype} does not hold {count} numbers of {bits} bits"
        )
    columns = [(packed >> bits * i) & (2**bits - 1) for i in range(per_byte)]
    return torch.stack(columns, 1).view(-1)[:count]


@dataclass(frozen=True, kw_only=True)
class QSGD(Codec):
    """Rounds at random to levels of each bucket's norm: 2, 4 or 8 bits an element, unbiased.

    Needs no feedback, but its noise grows with the bucket: at 2 bits the variance is up to
    sqrt(bucket) times the bucket's squared norm.

    Update rule: Q(x)_i = ‖x‖₂ · sign(x_i) · l/s, where l is s·|x_i|/‖x‖₂ rounded up or down at
    random, s = 2^(bits−1) − 1, and the norm is that of x_i's bucket.

    Departure from the paper: codes of equal length instead of Elias codes.

    Args:
        bits: 2, 4 or 8 for each element, sign included.
        bucket: elements that share a norm, >= 1.
        seed: of the draws, >= 0; give ranks different ones, or their errors do not average out.

    >>> codec = qsgd(bits=4)
    >>> x = torch.tensor([3.0, 0.0, -4.0])
    >>> codec.encode(x, codec.init(x)).payload_nbytes
    14

    Reference: Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and
    Encoding", NeurIPS 2017.
    """

    bits: int = 4
    bucket: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        if self.bits not in (2, 4, 8):
            raise InputError(f"bits = {self.bits!r}; valid: 2, 4, 8")
        if self.bucket < 1:
            raise InputError(f"bucket = {self.bucket!r}; it must be >= 1")
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
        """See `Codec`. Buffers: the codes level + s, packed; a norm for each bucket (float32); the
        number of elements (int64).

        Raises:
            NonFiniteError: an element is NaN or infinite.
        """
        flat = finite_flat(x)
        numel, buckets = flat.numel(), -(-flat.numel() // self.bucket)
        sizes = torch.tensor([numel])
        if flat.is_meta:
            packed = torch.empty(-(-numel * self.bits // 8), dtype=torch.uint8, device="meta")
            norm = flat.new_empty(buckets)
        else:
            generator = generator_for(self.seed, "qsgd", state.count)
            code, norm = self._code(flat, buckets, generator)
            packed, norm = pack_bits(code, self.bits).cpu(), norm.cpu()
        state.count += 1
        return Packet((packed, norm, sizes), "gradient")

    def _code(
        self, flat: torch.Tensor, buckets: int, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        padded = flat.new_zeros(buckets * self.bucket)
        padded[: flat.numel()] = flat
        rows = padded.view(buckets, self.bucket)
        norm = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
        norm = norm.clamp(max=torch.finfo(torch.float32).max).float()
        # A bucket of zeros has level 0 everywhere.
        share = rows / torch.where(norm == 0, torch.inf, norm)[:, None]
        drawn = torch.rand(rows.shape, generator=generator).to(flat.device)
        # Adding 0..1 and rounding down gives either neighbour with the right mean, also below 0.
        level = share.mul_(self._top).add_(drawn).floor_().clamp_(-self._top, self._top)
        return level.add_(self._top).view(-1)[: flat.numel()].to(torch.uint8), norm

    @property
    def _top(self) -> int:
        return 2 ** (self.bits - 1) - 1

    def decode(self, packet: Packet) -> torch.Tensor:
        """See `Codec`."""
        packed, norm, size = packet.buffers
        numel = int(size)
        if packed.is_meta:
            return norm.new_empty(numel)
        if norm.numel() != -(-numel // self.bucket):
            raise InputError(
                f"{norm.numel()} norms do not fit {numel} elements in buckets of {self.bucket}"
            )
        level = unpack_bits(packed, self.bits, numel).float().sub_(self._top).div_(self._top)
        return level.mul_(norm.repeat_interleave(self.bucket)[:numel])


def qsgd(bits: int = 4, bucket: int = 512, seed: int = 0) -> QSGD:
    """`QSGD(bits=bits, bucket=bucket, seed=seed)`."""
    return QSGD(bits=bits, bucket=bucket, seed=seed)
