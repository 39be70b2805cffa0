"""Our methods on the authors' machines and network: the shipped programs, timing only.

A machine computes as long as theirs did, so a step of one machine alone is the least that any
method's step can be: what one can gain over dense exchange is at most (compute + communication) /
compute, and the share of this bound that a method reaches is compute over its own step.
"""

from __future__ import annotations

from dataclasses import dataclass

from thinwire.methods import GTopK, Method, TopK
from thinwire.methods.alone import Alone
from thinwire.methods.ssgd import SSGD
from thinwire.reproduce._gtopk_published import DENSITY, NETWORK, Model
from thinwire.run.experiment import Job, run_virtual
from thinwire.run.settings import TrainSettings, WireSettings
from thinwire.tasks.timing import Timing

__all__ = ["DEVICE", "HOST", "Steps", "own_share", "own_steps"]

DEVICE, HOST = 300e9, 20e9
"""Bytes per second at which selecting, merging and updating read and write: in the memory of a
graphics card (as in the preset `gigabit`; theirs has 400 on its data sheet), and of its host."""

_STEPS = 2
_FLOPS = 1e9  # of one sample's forward pass; any number serves, the machine's rate is set by it


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Seconds of a step of one model by our methods."""

    alone: float
    dense: float
    topk: float
    gtopk: float

    @property
    def bound(self) -> float:
        """The most that anything can gain over dense exchange."""
        return self.dense / self.alone

    @property
    def over_dense(self) -> float:
        """What gtopk gains over dense exchange."""
        return self.dense / self.gtopk

    @property
    def over_topk(self) -> float:
        """What gtopk gains over top-k."""
        return self.topk / self.gtopk

    @property
    def share(self) -> float:
        """The part of the bound that gtopk reaches."""
        return self.alone / self.gtopk


def own_steps(model: Model, workers: int, memory_rate: float) -> Steps:
    """Simulated, headers included."""
    return Steps(
        alone=_step(Alone(), model, workers, memory_rate),
        dense=_step(SSGD(), model, workers, memory_rate),
        topk=_step(TopK(density=DENSITY), model, workers, memory_rate),
        gtopk=_step(GTopK(density=DENSITY), model, workers, memory_rate),
    )


def own_share(model: Model, workers: int, memory_rate: float) -> float:
    """The part of the bound that gtopk reaches, which needs no dense step to be known."""
    alone = _step(Alone(), model, workers, memory_rate)
    return alone / _step(GTopK(density=DENSITY), model, workers, memory_rate)


def _step(method: Method, model: Model, workers: int, memory_rate: float) -> float:
    flops = 3 * _FLOPS / model.compute_time  # forward, and twice that backward
    cluster = NETWORK.cluster(workers, flops=flops, memory_rate=memory_rate)
    job = Job(
        run="reproduce",
        label=type(method).__name__,
        name=type(method).__name__,
        method=method,
        cluster=cluster,
        train=TrainSettings(batch=1, epochs=1, evals=1, momentum=0.0),
        wire=WireSettings(link_model="queue"),
    )
    size = len(job.placement)
    task = Timing(num_params=model.params, flops_per_sample=_FLOPS, num_train=_STEPS * size)
    return run_virtual(job, task, lambda line: None).time / _STEPS
