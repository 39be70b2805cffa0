"""The authors' system on the virtual cluster: their overheads around our simulated collectives.

An iteration is computing, selecting, a collective on their network, and work of the host: copies
between device and host, merging and putting back in NumPy. Six constants say what the two-machine
figures of the network don't, and all are fitted on one model, VGG-16:

* `dense_rates`, one for each number of workers: bytes per second that a line carries while all
  machines send at once, from VGG-16's dense row;
* `host`: seconds for each parameter that a sparse exchange costs beside the wire, from VGG-16's
  published breakdown of gTop-k at 32 workers;
* `entry`: seconds for each entry that top-k's all-gather brings and NumPy adds, from VGG-16's top-k
  row.

Selecting is as published; where it isn't, as VGG-16's for each parameter. Everything else is
prediction.
"""

from __future__ import annotations

from dataclasses import dataclass

from thinwire.collectives import all_gather_sparse, all_reduce, gtopk_all_reduce
from thinwire.reproduce._gtopk_published import MODELS, NETWORK, WORKERS, Model
from thinwire.reproduce.bench import Network, dense_of_size, sparse_of_size
from thinwire.wire.base import Comm, Work

__all__ = ["Constants", "exchange_time", "fit", "iteration"]


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What was fitted, see the module.

    Args:
        dense_rates: bytes per second by number of workers.
        host: seconds for each parameter.
        entry: seconds for each gathered entry.
        select: seconds for each parameter.
    """

    dense_rates: dict[int, float]
    host: float
    entry: float
    select: float


def exchange_time(method: str, model: Model, workers: int, network: Network = NETWORK) -> float:
    """Seconds that a method's collective takes on the wire, simulated."""
    return network.time(workers, lambda comm: _collective(comm, method, model))


def iteration(method: str, model: Model, workers: int, constants: Constants) -> float:
    """Seconds of one iteration on the authors' test bed, simulated."""
    network = NETWORK
    before, after = model.compute_time, 0.0
    if method == "dense":
        network = Network(latency=NETWORK.latency, rate=constants.dense_rates[workers])
    else:
        before += _selecting(model, constants)
        after = constants.host * model.params
        after += constants.entry * workers * model.kept if method == "top-k" else 0.0

    def program(comm: Comm) -> None:
        comm.spend(Work(elapsed=before))
        _collective(comm, method, model)
        comm.spend(Work(elapsed=after))

    return network.time(workers, program)


def fit(model: Model = MODELS[0]) -> Constants:
    """The constants, from the published figures of one model."""
    assert model.compress is not None
    assert model.communicate is not None
    wire = exchange_time("gTop-k", model, WORKERS[-1])
    free = Constants(
        dense_rates={workers: _dense_rate(model, workers) for workers in WORKERS},
        host=(model.communicate - wire) / model.params,
        entry=0.0,
        select=model.compress / model.params,
    )
    gathered = [workers * model.kept for workers in WORKERS]
    missing = [model.seconds("top-k", n) - iteration("top-k", model, n, free) for n in WORKERS]
    least_squares = sum(x * y for x, y in zip(gathered, missing, strict=True)) / sum(
        x * x for x in gathered
    )
    return Constants(
        dense_rates=free.dense_rates, host=free.host, select=free.select, entry=least_squares
    )


def _dense_rate(model: Model, workers: int) -> float:
    """The line's rate with which the simulated ring takes as long as the published iteration."""
    once = exchange_time("dense", model, workers)
    half = Network(latency=NETWORK.latency, rate=NETWORK.rate / 2)
    per_rate = exchange_time("dense", model, workers, half) - once  # at NETWORK.rate, no latency
    left = model.seconds("dense", workers) - model.compute_time - (once - per_rate)
    return NETWORK.rate * per_rate / left


def _selecting(model: Model, constants: Constants) -> float:
    return constants.select * model.params if model.compress is None else model.compress


def _collective(comm: Comm, method: str, model: Model) -> None:
    if method == "dense":
        all_reduce(comm, dense_of_size(model.params), "ring")
    elif method == "top-k":
        all_gather_sparse(comm, sparse_of_size(model.kept, model.params))
    else:
        gtopk_all_reduce(comm, sparse_of_size(model.kept, model.params), model.kept)
