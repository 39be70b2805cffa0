"""The lossless survey's test bed as one description, and the five constants that are fitted.

An all-reduce of n bytes on P GPUs takes a + (h + 2(P-1)/P·β)·n on one channel: β is 1 / the rate of
the slower of the bus inside a machine and, from two machines on, of the network; a is as published.
A parameter server's message passes the bus of its machine as an all-reduce of four GPUs does, then
the machine's line there and back, both of which the line carries one after the other. While a GPU
computes, whatever passes its bus goes at `beside` of its speed.

Fitted, all on rows of BERT-Large:

* `host` (h) and `bus`: its BSP-A2A with RDMA, by least squares;
* `tcp`, the rate of 100 Gbit/s under TCP/IP: its BSP-A2A there from 8 GPUs on, mean time a byte;
* `beside`: its MG-WFBP with RDMA;
* `hand_over`, what ByteScheduler adds to each start-up: its ByteScheduler-A2A with RDMA.

The last two have the predicted throughput equal to the published one in the geometric mean over
the numbers of GPUs.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from thinwire.models import published_table
from thinwire.reproduce._lossless_published import (
    ALL_REDUCE,
    MODELS,
    PER_NODE,
    RDMA,
    STARTUPS,
    TCP,
    TEN,
    THROUGHPUT,
    WORKERS,
    Model,
)
from thinwire.schedule import (
    BYTEPS_PARTITION,
    Cost,
    Load,
    Plan,
    behind_barrier,
    fused,
    load_of,
    merged,
    partitioned,
    per_tensor,
    prioritised,
    simulate,
    whole,
)

__all__ = ["FITTED_MODEL", "FITTED_ROWS", "Constants", "fit", "throughput"]

FITTED_MODEL = MODELS[-1]
FITTED_ROWS = (
    (RDMA, "BSP-A2A"),
    (RDMA, "MG-WFBP"),
    (RDMA, "ByteScheduler-A2A"),
    (TCP, "BSP-A2A"),
)
"""Network and method of the rows of `FITTED_MODEL` that constants were chosen by."""

_FORWARD = 1 / 3  # of computing; only totals were published
_ELEMENT = 4
_PARTITION, _CREDIT = 4_000_000 * _ELEMENT, 16_000_000 * _ELEMENT
_HALVINGS = 24


@dataclass(frozen=True, kw_only=True)
class Constants:
    """See the module.

    Args:
        host: seconds a byte.
        bus: bytes per second.
        tcp: bytes per second.
        beside: share of its speed.
        hand_over: seconds.
        startups: of an all-reduce, by number of GPUs.
        duplex: whether push and pull pass beside each other.
    """

    host: float
    bus: float
    tcp: float
    beside: float = 1.0
    hand_over: float = 0.0
    startups: Mapping[int, float] = dataclasses.field(default_factory=lambda: STARTUPS)
    duplex: bool = False

    def rate(self, network: str) -> float:
        """Bytes per second of a machine's line; that of the two as sold, but for TCP/IP."""
        return {RDMA: 100e9 / 8, TEN: 10e9 / 8, TCP: self.tcp}[network]


def throughput(model: Model, network: str, method: str, workers: int, c: Constants) -> float:
    """Samples per second of all GPUs."""
    load = _load(model)
    path = _path(network, method, workers, c)
    return workers * model.batch / simulate(load, _plan(load, method, path[0]), path).step


def fit() -> Constants:
    """The constants, from the published rows named above."""
    load, computing = _load(FITTED_MODEL), FITTED_MODEL.computing
    nbytes = sum(load.nbytes)

    def per_byte(network: str, workers: int) -> float:
        step = workers * FITTED_MODEL.batch / _published(network, "BSP-A2A", workers)
        return (step - computing - STARTUPS[workers]) / nbytes

    slope, host = statistics.linear_regression(
        [_share(n) for n in WORKERS], [per_byte(RDMA, n) for n in WORKERS]
    )
    slower = [(per_byte(TCP, n) - host) / _share(n) for n in WORKERS if n > PER_NODE]
    c = Constants(host=host, bus=1 / slope, tcp=1 / statistics.mean(slower))
    c = _solved(lambda x: dataclasses.replace(c, beside=x), "MG-WFBP", 0.05, 1.0)
    return _solved(lambda x: dataclasses.replace(c, hand_over=x), "ByteScheduler-A2A", 5e-3, 0.0)


def _solved(
    with_value: Callable[[float], Constants], method: str, slow: float, fast: float
) -> Constants:
    """The constants with the value, between one that is too slow and one that is too fast, at which
    a row is right in the mean."""
    for _ in range(_HALVINGS):
        middle = with_value((slow + fast) / 2)
        logs = [
            math.log(throughput(FITTED_MODEL, RDMA, method, n, middle))
            - math.log(_published(RDMA, method, n))
            for n in WORKERS
        ]
        value = (slow + fast) / 2
        slow, fast = (value, fast) if sum(logs) < 0 else (slow, value)
    return with_value((slow + fast) / 2)


def _published(network: str, method: str, workers: int) -> float:
    return THROUGHPUT[FITTED_MODEL.title, network, method][WORKERS.index(workers)]


def _share(workers: int) -> float:
    return 2 * (workers - 1) / workers


@cache
def _load(model: Model) -> Load:
    forward = _FORWARD * model.computing
    return load_of(published_table(model.table), forward, model.computing - forward)


def _path(network: str, method: str, workers: int, c: Constants) -> list[Cost]:
    line = 0.0 if workers == PER_NODE else 1 / c.rate(network)
    if method in ALL_REDUCE:
        slowest = max(1 / c.bus, line)
        added = c.hand_over if method == "ByteScheduler-A2A" else 0.0
        return [
            Cost(
                startup=c.startups[workers] + added,
                per_byte=c.host + _share(workers) * slowest,
                beside=c.beside,
            )
        ]
    inside = Cost(
        startup=c.startups[PER_NODE],
        per_byte=c.host + _share(PER_NODE) / c.bus,
        beside=c.beside,
    )
    if not line:
        return [inside]
    return [inside, *([Cost(per_byte=line)] * 2 if c.duplex else [Cost(per_byte=2 * line)])]


def _plan(load: Load, method: str, cost: Cost) -> Plan:
    if method in ("BSP-A2A", "BSP-PS"):
        return fused(load, whole(load.order))
    if method == "WFBP-A2A":
        return fused(load, per_tensor(load.order))
    if method == "MG-WFBP":
        groups = merged(load.order, load.ready, load.nbytes, cost.startup, cost.per_byte)
        return fused(load, groups)
    if method == "ByteScheduler-A2A":
        return prioritised(load, _PARTITION, _CREDIT)
    if method == "WFBP-PS":
        return partitioned(load, per_tensor(load.order), BYTEPS_PARTITION)
    # The same run with the server's scheduling on: the workers still wait for everything.
    return behind_barrier(prioritised(load, BYTEPS_PARTITION, 4 * BYTEPS_PARTITION))
