"""What a probe hands on: each machine's computing, each pair's wire, all of them at once."""

from __future__ import annotations

import msgspec

from thinwire.run.doctor.report import Facts
from thinwire.run.probe.stats import Spread

__all__ = ["Computing", "Crowd", "Flow", "Kernel", "Survey", "Wire"]

SCHEMA = 1


class Kernel(msgspec.Struct, kw_only=True, frozen=True):
    """One kind of memory-bound work.

    Attributes:
        nbytes: what the cost model counts for it.
        seconds: that it took.
    """

    nbytes: float
    seconds: Spread

    @property
    def rate(self) -> float:
        """Bytes per second, 0 where nothing was measured."""
        return self.nbytes / self.seconds.median if self.seconds.median else 0.0


class Computing(msgspec.Struct, kw_only=True, frozen=True):
    """What a rank computes. Times in seconds.

    Attributes:
        flops: operations that the cost model counts for a training step of the whole batch.
        total: forward and backward pass together, of each step.
        update: the optimizer's step.
        drift: relative change of `total` from the beginning of the measurement to its end; None
            where there were too few steps to tell.
        names: of the trainable tensors; `sizes` their elements.
        needed: by tensor, median time into the forward pass at which its layer begins; None: never.
        ready: by tensor, median time into the backward pass at which its gradient is complete.
        memory: plain addition of two vectors far larger than the caches.
        kernels: by a key of `passes.KERNELS`, measured on vectors of the model's size.
        problem: empty, or why something is missing.
    """

    model: str = ""
    batch: int = 0
    threads: int = 0
    flops: float = 0.0
    num_params: int = 0
    total: Spread = Spread()
    forward: Spread = Spread()
    backward: Spread = Spread()
    update: Spread = Spread()
    drift: float | None = None
    names: list[str] = []
    sizes: list[int] = []
    needed: list[float | None] = []
    ready: list[float | None] = []
    memory: Kernel = Kernel(nbytes=0.0, seconds=Spread())
    kernels: dict[str, Kernel] = {}
    problem: str = ""

    @property
    def rate(self) -> float:
        """Effective FLOP/s, 0 where nothing was measured."""
        return self.flops / self.total.median if self.total.median else 0.0


class Flow(msgspec.Struct, kw_only=True, frozen=True):
    """A stream from one rank to another, as the receiver saw it.

    Attributes:
        rate: bytes per second without the beginning, by slices of time: quartiles, and as median
            the mean of the middle half.
        nbytes: that came in `seconds`.
        head: bytes that came sooner than the rate allows, at the beginning: a bucket or buffer on
            the way was empty; 0 if none.
    """

    rate: Spread = Spread()
    nbytes: int = 0
    seconds: float = 0.0
    head: float = 0.0


class Wire(msgspec.Struct, kw_only=True, frozen=True):
    """Two ranks, nobody else talking; `high` dialled.

    Attributes:
        trip: round trip of 8 bytes over plain TCP, seconds.
        packets: round trip of a small packet through thinwire's own wire, seconds.
        up: from `high` to `low`.
        down: from `low` to `high`.
        at_once: other pairs were measured at the same time.
        problem: empty, or what did not work; what was measured until then is kept.
    """

    low: int
    high: int
    trip: Spread = Spread()
    packets: Spread = Spread()
    up: Flow = Flow()
    down: Flow = Flow()
    at_once: bool = False
    problem: str = ""


class Crowd(msgspec.Struct, kw_only=True, frozen=True):
    """All ranks sending to all at once.

    Attributes:
        received: by receiver, then sender: bytes per second while all were sending.
        seconds: that were counted.
        problems: what did not work.
    """

    received: dict[int, dict[int, float]] = {}
    seconds: float = 0.0
    problems: list[str] = []


class Survey(msgspec.Struct, kw_only=True):
    """Everything rank 0 knows at the end.

    Attributes:
        ranks: of those that came, in order.
        lost: by rank: why one that should be there is not, or fell silent.
        computing: by rank.
        wires: in the order measured.
        crowd: None where it was not measured.
        finished: whether it came to its end.
    """

    schema: int = SCHEMA
    size: int = 1
    ranks: list[Facts] = []
    lost: dict[int, str] = {}
    computing: dict[int, Computing] = {}
    wires: list[Wire] = []
    crowd: Crowd | None = None
    finished: bool = False
    began: str = ""

    @property
    def problems(self) -> list[str]:
        """All that went wrong, one line each."""
        found = [f"rank {rank}: {why}" for rank, why in sorted(self.lost.items())]
        found += [f"rank {r}: {c.problem}" for r, c in sorted(self.computing.items()) if c.problem]
        found += [wire.problem for wire in self.wires if wire.problem]
        return found + (self.crowd.problems if self.crowd else [])
