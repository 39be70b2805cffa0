"""Compiled loops. Every one has an explicit signature, so that it is compiled when this module is
first imported and never later; the result is kept on disk. All run without the interpreter's lock.

`contract` lets a product and a sum become one instruction where the processor has it, which is what
torch's own `add_(x, alpha=...)` does: the results are the same to the bit. `reassoc` is only for
counting: sums of ones are exact in any order.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

__all__ = ["accumulate", "add_entries", "count_beyond", "merge_sorted", "rice_pack",
           "rice_parameters", "rice_unpack"]  # fmt: skip

SCAN = 256
"""Elements of which it is first counted whether any is a candidate, then which."""

_FIRST_ONE = np.array([9, *((n & -n).bit_length() - 1 for n in range(1, 512))], np.int64)
"""Place of the lowest bit set, by number."""


def _compiled(signature: str) -> Any:
    fast = {"contract", "reassoc"}
    return numba.njit(signature, cache=True, nogil=True, fastmath=fast, error_model="numpy")


@_compiled("float32(float32[::1], float32)")
def count_beyond(x, limit):
    """How many elements are not below the limit in magnitude, NaN included; zero exactly if none.

    Counted in float32, lanes as wide as the elements', so that the loop vectorises. Four places are
    read at once because the processor then fetches ahead in each: a third faster.
    """
    quarter = x.size // 4
    a, b, c, d = x[:quarter], x[quarter:], x[2 * quarter :], x[3 * quarter :]
    zero, one = np.float32(0), np.float32(1)
    count = zero
    for i in range(quarter):
        first = (zero if abs(a[i]) < limit else one) + (zero if abs(b[i]) < limit else one)
        count += first + (zero if abs(c[i]) < limit else one) + (zero if abs(d[i]) < limit else one)
    for i in range(4 * quarter, x.size):
        count += zero if abs(x[i]) < limit else one
    return count


@_compiled("float32(float32[::1], float32[::1], float32, float32)")
def _add_and_count(memory, grad, scale, threshold):
    count = np.float32(0)
    for i in range(memory.size):
        total = memory[i] + scale * grad[i]
        memory[i] = total
        count += np.float32(0) if abs(total) < threshold else np.float32(1)
    return count


@_compiled("int64(float32[::1], float32[::1], float32, float32, int64, int32[::1], float32[::1])")
def accumulate(memory, grad, scale, threshold, offset, index, value):
    """Add `scale · grad` to the memory and collect what is not below the threshold, NaN included.

    Args:
        memory: float32, changed in place.
        grad: float32, of the same size.
        scale: float32.
        threshold: of magnitudes.
        offset: added to the indices.
        index: receives the candidates' indices, as many as there is room for.
        value: receives the candidates' values; as long.

    Returns:
        How many candidates there are, also when there is no room for all.
    """
    found = 0
    for base in range(0, memory.size, SCAN):
        # Slices, because a start other than zero keeps the loop from being vectorised.
        part = memory[base : base + SCAN]
        if _add_and_count(part, grad[base : base + SCAN], scale, threshold) == 0:
            continue
        for i in range(part.size):
            if not (abs(part[i]) < threshold):
                if found < index.size:
                    index[found] = offset + base + i
                    value[found] = part[i]
                found += 1
    return found


@_compiled("int64(int64[::1], int64, int64, int64)")
def _quotients(gaps, start, stop, parameter):
    total = 0
    for i in range(start, stop):
        total += gaps[i] >> parameter
    return total


@_compiled("void(int64[::1], int64, int64[::1], int64[::1])")
def rice_parameters(gaps, block, parameters, quotients):
    """The best parameter of each block of gaps, the smallest of equally good ones.

    The cost is convex in the parameter, for halving once more saves less each time; so walking
    downhill finds the best.

    Args:
        gaps: >= 0.
        block: gaps to a block.
        parameters: a block's parameter, written.
        quotients: a block's sum of quotients, written.
    """
    parameter, sample = 0, min(256, block, gaps.size)
    while _quotients(gaps, 0, sample, parameter) > sample:  # near it already, for the walk is long
        parameter += 1
    for b in range(parameters.size):
        start, stop = b * block, min((b + 1) * block, gaps.size)
        num = stop - start
        total = _quotients(gaps, start, stop, parameter)
        while parameter > 0:
            less = _quotients(gaps, start, stop, parameter - 1)
            if less - num > total:
                break
            total, parameter = less, parameter - 1
        while True:
            more = _quotients(gaps, start, stop, parameter + 1)
            if more + num >= total:
                break
            total, parameter = more, parameter + 1
        parameters[b], quotients[b] = parameter, total


@_compiled("void(int64[::1], int64, int64[::1], uint8[::1], uint8[::1])")
def rice_pack(gaps, block, parameters, low, unary):
    """Write the gaps' remainders and their quotients in unary.

    Args:
        gaps: >= 0.
        block: gaps to a block.
        parameters: bits of remainder, by block.
        low: receives the remainders; exactly as long as they need.
        unary: zeros; receives a one after as many zeros as the quotient says.
    """
    held, num_held, at, position = np.uint64(0), 0, 0, 0
    for b in range(parameters.size):
        bits = parameters[b]
        mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
        for i in range(b * block, min((b + 1) * block, gaps.size)):
            held |= (np.uint64(gaps[i]) & mask) << np.uint64(num_held)
            num_held += bits
            while num_held >= 8:
                low[at] = np.uint8(held & np.uint64(255))
                held >>= np.uint64(8)
                num_held -= 8
                at += 1
            position += gaps[i] >> bits
            unary[position >> 3] |= np.uint8(1 << (position & 7))
            position += 1
    if num_held:
        low[at] = np.uint8(held)


@numba.njit(inline="always")  # a call would count references to the array
def _bits_at(data, at, bits):
    """So many bits from bit `at` on; the caller has seen that they are there."""
    byte = at >> 3
    if bits <= 17 and byte + 3 <= data.size:
        word = np.int64(data[byte]) | np.int64(data[byte + 1]) << 8 | np.int64(data[byte + 2]) << 16
    else:
        word = np.int64(0)
        for i in range((at + bits + 7 >> 3) - byte):
            word |= np.int64(data[byte + i]) << (8 * i)
    return (word >> (at & 7)) & ((np.int64(1) << bits) - 1)


@numba.njit(inline="always")
def _next_one(data, at):
    """The first bit from `at` on that is set, -1 if none is. A table instead of a loop over bits,
    because where the loop ends cannot be predicted."""
    byte = at >> 3
    if byte + 2 <= data.size:
        word = (np.int64(data[byte]) | np.int64(data[byte + 1]) << 8) >> (at & 7)
        if word & 511:
            return at + _FIRST_ONE[word & 511]
    while at < data.size * 8:
        if (data[at >> 3] >> (at & 7)) & 1:
            return at
        at += 1
    return np.int64(-1)


@_compiled("boolean(uint8[::1], uint8[::1], int64, int64)")
def _ends_well(low, unary, at, position):
    """Whether nothing but zeros that fill a byte is left of the remainders and the quotients."""
    if low.size != (at + 7) >> 3 or unary.size != (position + 7) >> 3:
        return False
    if at & 7 and low[at >> 3] >> (at & 7):
        return False
    return not (position & 7 and unary[position >> 3] >> (position & 7))


@_compiled("boolean(uint8[::1], uint8[::1], int64, int64[::1], int64, int64[::1])")
def rice_unpack(low, unary, block, parameters, numel, index):
    """Read what `rice_pack` wrote, as indices.

    Args:
        low: remainders.
        unary: quotients.
        block: gaps to a block.
        parameters: bits of remainder, by block, each 0..40.
        numel: above every index.
        index: receives the indices.

    Returns:
        Whether everything was as it must be; nothing is read or written out of range.
    """
    at, position, previous, num_low = 0, 0, -1, low.size * 8
    for b in range(parameters.size):  # two loops, for a division an entry takes as long as the rest
        bits = parameters[b]
        for i in range(b * block, min((b + 1) * block, index.size)):
            one = _next_one(unary, position)
            if one < 0 or at + bits > num_low or one - position > numel >> bits:
                return False
            previous += ((one - position) << bits) + _bits_at(low, at, bits) + 1
            if previous >= numel:
                return False
            position, at = one + 1, at + bits
            index[i] = previous
    return _ends_well(low, unary, at, position)


@_compiled("int64(int32[::1], float32[::1], int32[::1], float32[::1], int32[::1], float32[::1])")
def merge_sorted(index_a, value_a, index_b, value_b, index, value):
    """The sum of two sparse vectors in one pass.

    Args:
        index_a: rising strictly.
        value_a: as many.
        index_b: rising strictly.
        value_b: as many.
        index: receives the indices of both; room for all.
        value: receives their values, added where the indices are equal.

    Returns:
        How many there are.
    """
    i, j, found = 0, 0, 0
    while i < index_a.size and j < index_b.size:
        a, b = index_a[i], index_b[j]
        # Without branches: which comes first is a coin toss that no processor predicts.
        take_a, take_b = a <= b, b <= a
        index[found] = a if take_a else b
        left = value_a[i] if take_a else np.float32(0)
        right = value_b[j] if take_b else np.float32(0)
        value[found] = left + right if take_a and take_b else (left if take_a else right)
        i += take_a
        j += take_b
        found += 1
    while i < index_a.size:
        index[found], value[found] = index_a[i], value_a[i]
        i, found = i + 1, found + 1
    while j < index_b.size:
        index[found], value[found] = index_b[j], value_b[j]
        j, found = j + 1, found + 1
    return found


@_compiled("int64(float32[::1], int32[::1], float32[::1])")
def add_entries(dense, index, value):
    """Add a sparse vector to a dense one; how many entries there were before the first whose index
    lies outside it."""
    for i in range(index.size):
        if index[i] < 0 or index[i] >= dense.size:
            return i
        dense[index[i]] += value[i]
    return index.size
