"""QSGD: every gradient element travels, in a few bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from thinwire.collectives.gathers import all_gather_buffers
from thinwire.compress import feedback, qsgd
from thinwire.compress.base import Codec
from thinwire.compress.cost import dequantise_work, quantise_work
from thinwire.errors import InputError
from thinwire.methods.base import Method, Paper, Traits
from thinwire.wire.packet import Packet
from thinwire.worker import Worker

__all__ = ["QSGD"]


@dataclass(frozen=True, kw_only=True)
class QSGD(Method):
    """Each worker sends its gradient rounded at random to a few levels, right on average.

    Traffic per worker and step: `bits` an element and a norm for each bucket, to P−1 others; above
    32 / `bits` workers an all-reduce of the plain gradient is smaller. No staleness, no memory, for
    the rounding is unbiased: what it costs is noise, the more the fewer the bits and the larger the
    buckets.

    Update rule: `x ← x − lr · Σ_r Q(w_r·g_r)`, with `Q(v)_i = ‖v‖₂·sign(v_i)·l/s` over each bucket,
    l being `s·|v_i|/‖v‖₂` rounded up or down at random, and `s = 2^(bits−1) − 1`.

    Departures from the paper: codes of equal length instead of Elias codes. `errors="kept"` (ours)
    remembers what rounding took, `e_r ← a_r − Q(a_r)` with `a_r = e_r + w_r·g_r`; it needs buckets
    so small that the noise is below the vector, or the memory grows without end.

    Args:
        bits: of an element, sign included: 2, 4 or 8.
        bucket: elements that share a norm, at least 1.
        errors: "dropped" or "kept".

    Example:
        >>> QSGD(bits=8).bucket
        512
    """

    bits: int = 4
    bucket: int = 512
    errors: Literal["dropped", "kept"] = "dropped"

    paper: ClassVar[Paper | None] = Paper(
        authors="Alistarh, Grubic, Li, Tomioka and Vojnovic",
        title="QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding",
        venue="NeurIPS",
        year=2017,
        url="https://arxiv.org/abs/1610.02132",
    )
    traits: ClassVar[Traits] = Traits(
        traffic="(bits/8 + 4/bucket)·m·(P−1)",
        staleness="0",
        synchronous=True,
        agree=True,
        packets_only=True,
    )

    def __post_init__(self) -> None:
        qsgd(self.bits, self.bucket)  # which checks both
        if self.errors not in ("dropped", "kept"):
            raise InputError(f"errors = {self.errors!r}; valid: dropped, kept")
        largest = largest_kept_bucket(self.bits)
        if self.errors == "kept" and self.bucket > largest:
            raise InputError(
                f"bucket = {self.bucket} with errors = 'kept': at {self.bits} bits the rounding "
                f"may be larger than what is rounded, and the memory grows without end; allowed: "
                f"1..{largest}"
            )

    def worker(self, w: Worker) -> None:
        """See `Method`."""
        numel = w.params.numel()
        codec = self._codec(w)
        state = w.state.codec = codec.init(w.params)
        for batch in w.batches():
            gradient = w.gradient(batch)
            with w.phase("encode"):
                packet = codec.encode(gradient * batch.weight, state)
                w.comm.spend(quantise_work(numel))
            with w.phase("merge"):
                packets = all_gather_buffers(w.comm, packet.buffers, tag="qsgd")
                total = torch.zeros_like(w.params)
                for buffers in packets:  # by rank, so that all round alike
                    total.add_(codec.decode(Packet(buffers)).to(total))
                w.comm.spend(dequantise_work(numel * w.size))
            w.apply(total)

    def _codec(self, w: Worker) -> Codec:
        # Each rank's own draws: equal errors would not average out.
        seed = int(torch.randint(2**62, (), generator=w.rng))
        codec = qsgd(self.bits, self.bucket, seed)
        return codec if self.errors == "dropped" else feedback(codec)


def largest_kept_bucket(bits: int) -> int:
    """The bucket of most elements d whose rounding is smaller on average than the vector itself:
    min(d/s², √d/s) < 1 (the paper's bound on the variance).

    >>> largest_kept_bucket(4), largest_kept_bucket(8)
    (48, 16128)
    """
    top = 2 ** (bits - 1) - 1
    return max(1, top**2 - 1)
