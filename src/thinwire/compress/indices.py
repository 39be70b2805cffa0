"""Sorted indices in about as few bytes as there is information in them.

Golomb-Rice coding of the gaps: a gap is cut into `parameter` low bits and a quotient in unary,
which is within an eighth of a bit of the entropy of a uniformly drawn set. Layers differ in how
densely they are kept, so a parameter for each block of 128 gaps is tried as well, and the smaller
code by exact size is taken. Elias-Fano coding is not offered because it never is smaller: with the
same low bits its unary part spends `last >> parameter` zeros, which is at least the sum of
`gap >> parameter`; nor is a bitmap, which is the code with parameter 0.

Byte layout::

    size      field
    1         scheme · 64 + parameter: 0 nothing or everything, 1 one parameter, 2 one per block
    1..6      number of indices, 7 bits a byte, lowest first, bit 7 set when another follows
    blocks    (scheme 2) parameter of each block, 0..40
    low       the gaps' low bits one after another, lowest first, filled up with zeros
    unary     per gap as many zero bits as its quotient says, then a one; filled up with zeros
"""

from __future__ import annotations

import math

import numpy as np
import torch

from thinwire.collectives.sparse import index_dtype
from thinwire.compress._native import kernels
from thinwire.errors import InputError
from thinwire.passes import coded_size

__all__ = ["BLOCK", "MAX_NUMEL", "decode_indices", "encode_indices", "entropy_bits",
           "nominal_nbytes"]  # fmt: skip

BLOCK = 128
"""Gaps that share a parameter in scheme 2."""

MAX_NUMEL = 1 << 40
"""Elements of the largest vector whose indices can be coded."""

MAX_PARAMETER = 40
_TRIVIAL, _ONE, _BLOCKS = 0, 1, 2


def encode_indices(index: torch.Tensor, numel: int) -> torch.Tensor:
    """The code of a set of indices.

    Args:
        index: K integers in main memory, rising strictly, 0..numel-1. Meta gives a meta code of
            `nominal_nbytes`.
        numel: elements of the vector, 0..MAX_NUMEL.

    Returns:
        uint8, 1-D.

    Raises:
        InputError: indices that do not rise or lie outside the vector.
    """
    _check_numel(numel)
    if index.is_meta:
        return torch.empty(nominal_nbytes(index.numel(), numel), dtype=torch.uint8, device="meta")
    whole = index.detach().reshape(-1).to(torch.int64).numpy()
    gaps = np.diff(whole, prepend=-1) - 1
    if whole.size and (gaps.min() < 0 or whole[-1] >= numel):
        raise InputError(f"indices to be coded must rise strictly and lie in 0..{numel - 1}")
    if whole.size in (0, numel):
        return torch.from_numpy(np.frombuffer(_head(_TRIVIAL, 0, whole.size), np.uint8).copy())
    one, blocks = _Plan(gaps, gaps.size), _Plan(gaps, BLOCK)
    by_block = blocks.nbytes + blocks.parameters.size < one.nbytes
    plan = blocks if by_block else one
    head = _head(_BLOCKS, 0, gaps.size) if by_block else _head(_ONE, one.parameters[0], gaps.size)
    parts = [np.frombuffer(head, np.uint8)]
    if by_block:
        parts.append(plan.parameters.astype(np.uint8))
    return torch.from_numpy(np.concatenate([*parts, *plan.pack(gaps)]))


def decode_indices(code: torch.Tensor, numel: int) -> torch.Tensor:
    """The indices that `encode_indices` was given.

    Args:
        code: uint8, 1-D; meta gives no indices but an error, for their number is not known.
        numel: as given to `encode_indices`.

    Returns:
        Indices of `index_dtype(numel)`.

    Raises:
        InputError: not a code of indices into a vector of this size.
    """
    _check_numel(numel)
    if code.dtype != torch.uint8 or code.dim() != 1 or code.is_meta:
        raise InputError(
            f"a code of indices is 1-D uint8 with data, not {code.dtype}, {code.dim()}-D"
        )
    data = code.detach().contiguous().numpy()
    scheme, parameter, count, at = _read_head(data, numel)
    if scheme == _TRIVIAL:
        if count not in (0, numel) or at != data.size or parameter:
            raise _corrupt(f"{count} of {numel} indices in a code of {data.size} bytes")
        return torch.arange(count, dtype=index_dtype(numel))
    block, num_blocks = (count, 1) if scheme == _ONE else (BLOCK, -(-count // BLOCK))
    parameters = np.array([parameter], np.int64)
    if scheme == _BLOCKS:
        parameters = data[at : at + num_blocks].astype(np.int64)
        at += num_blocks
    if parameters.size != num_blocks or parameters.max() > MAX_PARAMETER:
        raise _corrupt("parameters are missing or above 40")
    low_nbytes = -(-_low_bits(parameters, block, count) // 8)
    low, unary = data[at : at + low_nbytes], data[at + low_nbytes :]
    if low.size < low_nbytes or unary.size * 8 < count:
        raise _corrupt(f"{data.size} bytes are too few for {count} indices")
    index = np.empty(count, np.int64)
    native = kernels()
    unpack = native.rice_unpack if native else _unpack
    if not unpack(low, unary, block, parameters, numel, index):
        raise _corrupt("its bits do not fit together")
    return torch.from_numpy(index).to(index_dtype(numel))


def entropy_bits(count: int, numel: int) -> float:
    """log2 C(numel, count): the information in a set of `count` of `numel` indices.

    >>> round(entropy_bits(1000, 1_000_000) / 1000, 2)
    11.4
    """
    inside = math.lgamma(count + 1) + math.lgamma(numel - count + 1)
    return (math.lgamma(numel + 1) - inside) / math.log(2)


def nominal_nbytes(count: int, numel: int) -> int:
    """What the code of so many indices, drawn uniformly, is expected to occupy."""
    return coded_size(count, numel)


class _Plan:
    """The parameters of blocks of gaps, and the exact size of what they give."""

    def __init__(self, gaps: np.ndarray, block: int):
        self.block = block
        self.parameters = np.empty(-(-gaps.size // block), np.int64)
        quotients = np.empty_like(self.parameters)
        native = kernels()
        (native.rice_parameters if native else _parameters)(gaps, block, self.parameters, quotients)
        self.low_nbytes = -(-_low_bits(self.parameters, block, gaps.size) // 8)
        self.unary_nbytes = -(-(gaps.size + int(quotients.sum())) // 8)

    @property
    def nbytes(self) -> int:
        """Bytes of the low and the unary bits."""
        return self.low_nbytes + self.unary_nbytes

    def pack(self, gaps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The low and the unary bits."""
        low, unary = np.zeros(self.low_nbytes, np.uint8), np.zeros(self.unary_nbytes, np.uint8)
        native = kernels()
        (native.rice_pack if native else _pack)(gaps, self.block, self.parameters, low, unary)
        return low, unary


def _low_bits(parameters: np.ndarray, block: int, count: int) -> int:
    last = count - block * (parameters.size - 1)
    return block * int(parameters[:-1].sum()) + last * int(parameters[-1])


# The same four steps without numba, on whole arrays; to the byte what the compiled ones give.


def _parameters(
    gaps: np.ndarray, block: int, parameters: np.ndarray, quotients: np.ndarray
) -> None:
    starts = np.arange(0, gaps.size, block)
    sizes = np.diff(starts, append=gaps.size)
    tried = range(int(gaps.max()).bit_length() + 1)
    sums = np.stack([np.add.reduceat(gaps >> parameter, starts) for parameter in tried])
    best = np.argmin(sums + np.outer(tried, sizes), axis=0)
    parameters[:] = best
    quotients[:] = sums[best, np.arange(starts.size)]


def _each(parameters: np.ndarray, block: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    bits = np.repeat(parameters, block)[:count]
    return bits, np.cumsum(bits) - bits


def _pack(
    gaps: np.ndarray, block: int, parameters: np.ndarray, low: np.ndarray, unary: np.ndarray
) -> None:
    bits, offset = _each(parameters, block, gaps.size)
    stream = np.zeros(low.size * 8, np.uint8)
    for bit in range(int(bits.max())):
        wide = bits > bit
        stream[offset[wide] + bit] = (gaps[wide] >> bit) & 1
    low[:] = np.packbits(stream, bitorder="little")
    stream = np.zeros(unary.size * 8, np.uint8)
    stream[np.cumsum((gaps >> bits) + 1) - 1] = 1
    unary[:] = np.packbits(stream, bitorder="little")


def _unpack(
    low: np.ndarray,
    unary: np.ndarray,
    block: int,
    parameters: np.ndarray,
    numel: int,
    index: np.ndarray,
) -> bool:
    ones = np.flatnonzero(np.unpackbits(unary, bitorder="little"))
    if ones.size != index.size or unary.size * 8 - ones[-1] - 1 >= 8:
        return False
    bits, offset = _each(parameters, block, index.size)
    quotients = np.diff(ones, prepend=-1) - 1
    if (quotients > numel >> bits).any():
        return False
    stream = np.unpackbits(low, bitorder="little")
    if stream[offset[-1] + bits[-1] :].any():
        return False
    gaps = quotients << bits
    for bit in range(int(bits.max())):
        wide = bits > bit
        gaps[wide] |= stream[offset[wide] + bit].astype(np.int64) << bit
    if (gaps + 1.0).sum() > numel:
        return False
    np.cumsum(gaps + 1, out=index)
    index -= 1
    return True


def _head(scheme: int, parameter: int, count: int) -> bytes:
    out = bytearray([scheme << 6 | int(parameter)])
    while count > 127:
        out.append(count & 127 | 128)
        count >>= 7
    out.append(count)
    return bytes(out)


def _read_head(data: np.ndarray, numel: int) -> tuple[int, int, int, int]:
    """Scheme, parameter, count and where the rest begins."""
    count, at = 0, 1
    while True:
        if at >= data.size or at > 6:
            raise _corrupt("its head is cut short")
        count |= (int(data[at]) & 127) << 7 * (at - 1)
        at += 1
        if data[at - 1] < 128:
            break
    scheme, parameter = int(data[0]) >> 6, int(data[0]) & 63
    if scheme > _BLOCKS or parameter > MAX_PARAMETER or count > numel:
        raise _corrupt(f"scheme {scheme}, parameter {parameter}, {count} of {numel} indices")
    if scheme and not count:
        raise _corrupt("a code of no indices has no parameters")
    return scheme, parameter, count, at


def _check_numel(numel: int) -> None:
    if not 0 <= numel <= MAX_NUMEL:
        raise InputError(f"numel = {numel!r}; indices can be coded for 0..{MAX_NUMEL} elements")


def _corrupt(why: str) -> InputError:
    return InputError(f"not a code of indices: {why}")
