"""Error feedback and selection in one pass over the memory.

On the CPU two passes do for a float32 vector: one over the gradient, to see that all of it is
finite, and one over gradient and memory together, which writes the sum and collects the elements
above a threshold. The threshold comes from a sample of the sum; the k largest are found among the
collected, or among all when the sample misled. The look ahead moves a third of the bytes of the
other pass; undoing that one would need a second memory.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from thinwire.collectives.sparse import Sparse, index_dtype, keep_largest
from thinwire.compress._native import kernels
from thinwire.compress.threshold import at_least
from thinwire.compress.topk import BLOCK, select_top
from thinwire.errors import InputError, NonFiniteError

__all__ = ["COMPILED_FROM", "accumulate_above", "accumulate_and_select", "prepare"]

SAFE = 2.0**102
"""A quarter of the distance between the largest float32 and the one below: adding as much to a
finite float32 never gives infinity, also when a limit computed from it was rounded up."""

MAX = float(np.finfo(np.float32).max)

COMPILED_FROM = 1 << 17
"""Elements from which on loading the compiled kernels pays."""

SAMPLE = 1 << 15
"""Elements looked at for the threshold, at least; each is a cache line from memory."""

CHUNK = 1 << 20
"""Elements that a thread takes at a time: few enough that one which has lost its core to another
program holds up the others for a millisecond only."""


def prepare(memory: torch.Tensor) -> None:
    """Load the compiled kernels now if `accumulate_and_select` will use them on this memory, so
    that no timed step waits for it: a second or two for each process, some more where nothing has
    been compiled yet."""
    _compiled(memory)


def _compiled(memory: torch.Tensor) -> bool:
    suited = memory.dtype == torch.float32 and memory.device.type == "cpu"
    return suited and COMPILED_FROM <= memory.numel() <= 2**31 and kernels() is not None


def accumulate_and_select(
    memory: torch.Tensor,
    grad: torch.Tensor,
    scale: float,
    k: int,
    *,
    num_threads: int | None = None,
) -> Sparse:
    """`memory += scale · grad`, then take out the k largest: returned, and zero in the memory.

    To the bit what `memory.add_(grad, alpha=scale)`, `select_top(memory, k)` and `zero_in(memory)`
    give, ties included. Threads share the vector by chunks and run without the interpreter's lock.

    Args:
        memory: P values, contiguous, changed in place; left as it was when the gradient is refused.
        grad: P values, same dtype and device; its shape counts as flat.
        scale: finite in float32.
        k: 1..P.
        num_threads: >= 1; by default as many as torch uses.

    Raises:
        NonFiniteError: the gradient, or the sum with it, is NaN or infinite somewhere; the memory
            is as before.
    """
    flat, grad = _matching(memory, grad, scale)
    numel = flat.numel()
    if not 1 <= k <= numel:
        raise InputError(f"k = {k!r}; valid: 1..{numel}")
    if flat.is_meta:
        return select_top(flat, k)
    threads = _threads(numel, num_threads)
    if not _compiled(flat):
        _refuse_bad_sum(flat, grad, scale)
        return _select(flat.add_(grad, alpha=scale), k)
    estimate = _look_ahead(flat, grad, scale, k, threads)
    if estimate is None:
        return _select(flat.add_(grad, alpha=scale), k)
    found = _accumulate(flat.numpy(), grad.numpy(), scale, *estimate, threads)
    return _select(flat, k) if found is None else _exact(flat, *found, k)


def accumulate_above(
    memory: torch.Tensor,
    grad: torch.Tensor,
    scale: float,
    threshold: float,
    room: int,
    *,
    num_threads: int | None = None,
) -> Sparse:
    """`memory += scale · grad`, then all elements of at least a known magnitude, which stay.

    To the bit what `memory.add_(grad, alpha=scale)` and `at_least(memory, threshold)` give.

    Args:
        memory: as of `accumulate_and_select`, but not on meta.
        grad: as there.
        scale: as there.
        threshold: >= 0; taken as a float32 where the memory is.
        room: entries that are expected; more take a second pass.
        num_threads: as there.

    Raises:
        NonFiniteError: as there.
    """
    flat, grad = _matching(memory, grad, scale)
    threads = _threads(flat.numel(), num_threads)
    limit = float(torch.tensor(threshold, dtype=flat.dtype))
    if _compiled(flat):
        _refuse_beyond(flat, grad, scale, threads)
        found = _accumulate(flat.numpy(), grad.numpy(), scale, limit, room, threads)
        if found is not None:
            index = torch.from_numpy(found[0]).to(index_dtype(flat.numel()))
            return Sparse(index, torch.from_numpy(found[1]), flat.numel())
    else:
        _refuse_bad_sum(flat, grad, scale)
        flat.add_(grad, alpha=scale)
    return at_least(flat, limit)


def _matching(
    memory: torch.Tensor, grad: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both as flat vectors, if they fit."""
    flat, grad = memory.detach().view(-1), grad.detach().reshape(-1)
    if flat.shape != grad.shape or flat.dtype != grad.dtype or flat.device != grad.device:
        raise InputError(
            f"a gradient of {grad.numel()} x {grad.dtype} on {grad.device} meets a memory of "
            f"{flat.numel()} x {flat.dtype} on {flat.device}"
        )
    if not abs(scale) <= MAX:
        raise InputError(f"scale = {scale!r}; it must be finite in float32")
    return flat, grad


def _threads(numel: int, asked: int | None) -> int:
    threads = asked if asked is not None else torch.get_num_threads()
    if threads < 1:
        raise InputError(f"num_threads = {asked!r}; it must be >= 1")
    return max(1, min(threads, numel // CHUNK))


def _select(flat: torch.Tensor, k: int) -> Sparse:
    own = select_top(flat, k)
    own.zero_in(flat)
    return own


def _exact(flat: torch.Tensor, index: np.ndarray, value: np.ndarray, k: int) -> Sparse:
    """The k largest of the candidates, or of all when these are too few or not numbers."""
    magnitude = np.abs(value)
    if index.size < k or not np.isfinite(magnitude.max()):
        return _select(flat, k)  # which names a bad element of the memory itself
    keep = keep_largest(magnitude, k)
    chosen = torch.from_numpy(index[keep]).to(index_dtype(flat.numel()))
    own = Sparse(chosen, torch.from_numpy(value[keep]), flat.numel())
    own.zero_in(flat)
    return own


def _chunks(numel: int) -> list[slice]:
    return [slice(start, min(start + CHUNK, numel)) for start in range(0, numel, CHUNK)]


def _on_threads(jobs: Sequence[Callable[[], Any]], num_threads: int) -> list[Any]:
    """What the jobs return, each done by whichever thread is free. Threads are made for the call:
    a pool would not live through a fork, and starting one takes a hundredth of what it does."""
    results: list[Any] = [None] * len(jobs)
    todo = iter(enumerate(jobs))  # shared: its steps are atomic under the interpreter's lock

    errors: list[BaseException] = []

    def run() -> None:
        try:
            for i, job in todo:
                results[i] = job()
        except BaseException as error:  # of a thread, to be raised by the caller
            errors.append(error)

    others = [threading.Thread(target=run) for _ in range(num_threads - 1)]
    for thread in others:
        thread.start()
    run()
    for thread in others:
        thread.join()
    if errors:
        raise errors[0]
    return results


def _look_ahead(
    flat: torch.Tensor, grad: torch.Tensor, scale: float, k: int, threads: int
) -> tuple[float, int] | None:
    """See that the sum will be finite, and estimate the threshold meanwhile. One look at the
    gradient decides nearly always; only where it is huge the sum has to be looked at.

    Raises:
        NonFiniteError: it will not be.
    """
    look = partial(_threshold, flat.numpy(), grad.numpy(), scale, k)
    return _refuse_beyond(flat, grad, scale, threads, look)


def _refuse_beyond(
    flat: torch.Tensor,
    grad: torch.Tensor,
    scale: float,
    threads: int,
    meanwhile: Callable[[], Any] = lambda: None,
) -> Any:
    """See that the sum will be finite; what `meanwhile` gives, which is done beside."""
    native = kernels()
    assert native is not None
    values = grad.numpy()
    limit = np.float32(min(SAFE / abs(scale), MAX) if scale else MAX)
    looks = [partial(native.count_beyond, values[chunk], limit) for chunk in _chunks(values.size)]
    result, *beyond = _on_threads([meanwhile, *looks], threads)
    if any(beyond):
        _refuse_bad_sum(flat, grad, scale)
    return result


def _refuse_bad_sum(flat: torch.Tensor, grad: torch.Tensor, scale: float) -> None:
    for start in range(0, flat.numel(), BLOCK):
        block = grad[start : start + BLOCK]
        total = flat[start : start + BLOCK].add(block, alpha=scale)
        if bool(torch.isfinite(total.sum())) or bool(torch.isfinite(total).all()):
            continue
        at = int((~torch.isfinite(total)).nonzero()[0])
        raise NonFiniteError(
            f"element {start + at} of the gradient is {float(block[at])}, and "
            f"{float(total[at])} when added to the error-feedback memory, which was left as it "
            "was. Lower the learning rate, clip the gradient, or skip the step"
        )


def _threshold(
    memory: np.ndarray, grad: np.ndarray, scale: float, k: int
) -> tuple[float, int] | None:
    """A magnitude that probably fewer than k elements of the sum are below the k-th of, and room
    for as many as are then expected; None where a sample is no help."""
    stride = memory.size // SAMPLE
    with np.errstate(all="ignore"):  # the gradient may be bad: it is being looked at
        sample = np.abs(memory[::stride] + np.float32(scale) * grad[::stride])
    expected = sample.size * k / memory.size
    # Four standard deviations more than the sample's share of k, so that too few are rare.
    enough = math.ceil(expected + 4 * math.sqrt(expected) + 10)
    if enough > sample.size // 2:
        return None
    threshold = float(np.partition(sample, sample.size - enough)[sample.size - enough])
    return threshold, int(enough * stride * (1 + 6 / math.sqrt(enough))) + 1024


def _accumulate(
    memory: np.ndarray,
    grad: np.ndarray,
    scale: float,
    threshold: float,
    room: int,
    threads: int,
) -> tuple[np.ndarray, np.ndarray] | None:
    """The candidates' indices, rising, and values; None when there are more than room for."""
    native = kernels()
    assert native is not None

    def work(chunk: slice) -> tuple[np.ndarray, np.ndarray] | None:
        part = memory[chunk]
        size = min(room, part.size)
        index, value = np.empty(size, np.int32), np.empty(size, np.float32)
        found = native.accumulate(
            part,
            grad[chunk],
            np.float32(scale),
            np.float32(threshold),
            chunk.start,
            index,
            value,
        )
        return (index[:found], value[:found]) if found <= size else None

    parts = _on_threads([partial(work, chunk) for chunk in _chunks(memory.size)], threads)
    if None in parts:
        return None
    return np.concatenate([i for i, _ in parts]), np.concatenate([v for _, v in parts])
