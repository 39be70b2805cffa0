"""Local SGD: average the models now and then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from thinwire.batches import split_batch
from thinwire.errors import InputError
from thinwire.methods.base import Method, Paper, Traits
from thinwire.worker import Worker

__all__ = ["LocalSGD"]


@dataclass(frozen=True, kw_only=True)
class LocalSGD(Method):
    """Each worker steps by itself; every round the models are averaged.

    Traffic per worker and step: 2·m·(P−1)/P values divided by `every`. Tolerates slow links, and
    with `pace="speed"` slow machines: a round then holds more steps for the faster ones, so that
    all finish together. Replicas differ within a round.

    Update rule: H_r times `x_r ← x_r − lr · g_r(x_r)`, then `x_r ← Σ_i s_i · x_i`, s_i the share
    of the round's samples that worker i has seen. Momentum stays local.

    Args:
        every: mean number of steps in a round over the workers, at least 1.
        pace: "equal": H_r = every; "speed": H_r in proportion to the worker's speed.

    Example:
        >>> LocalSGD(every=16, pace="speed").every
        16
    """

    every: int = 8
    pace: Literal["equal", "speed"] = "equal"

    paper: ClassVar[Paper | None] = Paper(
        authors="Stich",
        title="Local SGD Converges Fast and Communicates Little",
        venue="ICLR",
        year=2019,
        url="https://arxiv.org/abs/1805.09767",
    )
    traits: ClassVar[Traits] = Traits(
        traffic="8·m·(P−1)/P / every",
        staleness="up to `every` local steps",
        synchronous=True,
        agree=True,
        evaluate_at="call",
        resumable=True,
    )

    def __post_init__(self) -> None:
        if self.every < 1:
            raise InputError(f"every = {self.every}: at least 1 is needed")
        if self.pace not in ("equal", "speed"):
            raise InputError(f"pace = {self.pace!r}; valid: equal, speed")

    def worker(self, w: Worker) -> None:
        """See `Method`."""
        pace = w.plan.speeds if self.pace == "speed" else None
        done = w.steps
        w.evaluate(done)
        while done < w.plan.steps:
            length = min(self.every - done % self.every, w.plan.steps - done)
            steps = split_batch(length * w.size, pace, w.size)
            samples = [h * b for h, b in zip(steps, w.plan.shares, strict=True)]
            taken = 0
            for batch in w.batches(steps[w.rank]):
                w.apply(w.gradient(batch))
                taken += 1
            if not taken:  # somebody's own loop ended with the round before
                break
            share = samples[w.rank] / sum(samples)
            with w.phase("apply"):
                w.params.copy_(w.all_reduce(w.params * share))
            done += length
            w.evaluate(done)
