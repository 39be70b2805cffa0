"""The rows of `benchmarks/wire.py`, by group: plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from thinwire.methods import METHODS

__all__ = ["EXCHANGES", "GROUPS", "Row", "rows_of"]

EXCHANGES = ("topk plain", "gtopk plain", "topk coded", "gtopk coded")

NUMEL, KEPT = 25_600_000, 25_600
"""Of the exchanges alone: a density of 0.001."""

SIZES = {"resnet20": 269_722, "mlp": 5_824_522, "resnet50": 25_557_032, "lstm-ptb": 66_034_000}
"""Parameters of the models."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the tables.

    Args:
        group: that it belongs to.
        kind: "ours" trains by a method, "ddp" by DistributedDataParallel, "exchange" exchanges sets
            of entries and nothing else.
        method: with its settings, or which exchange.
        hosts: how many.
        rate: of every link, as tc writes it.
        model: a key of `SIZES`.
        compute: seconds of forward and backward, emulated by sleeping; 0 for none.
        real: whether the gradients are computed instead.
        delay: seconds one way, added by the relay.
        accumulate: batches of one update.
        hook: a communication hook of DDP.
        steps: that are measured.
        warmup: steps before them.
        quick: whether `--quick` keeps it.
    """

    group: str
    kind: str
    method: str
    hosts: int
    rate: str
    model: str = ""
    compute: float = 0.0
    real: bool = False
    delay: float = 0.0
    accumulate: int = 1
    hook: str = ""
    steps: int = 7
    warmup: int = 2
    quick: bool = False
    numel: int = NUMEL
    k: int = KEPT

    @property
    def lab(self) -> tuple[int, str, float, str]:
        """Rows with equal ones share processes. A hook that may fail gets its own."""
        return self.hosts, self.rate, self.delay, self.hook

    @property
    def label(self) -> str:
        """What tables call it."""
        if self.kind != "ddp":
            return self.method
        hook = f", {self.hook} hook" if self.hook else ""
        more = f", accumulate {self.accumulate}" if self.accumulate > 1 else ""
        return f"plain DDP{more}{hook}"

    @property
    def floor(self) -> float:
        """Seconds that a dense exchange takes at least; a limit for waiting is made of it."""
        bits = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}[self.rate[-4:]] * float(self.rate[:-4])
        return 2 * 4 * SIZES.get(self.model, 0) * 8 / bits

    @property
    def limit(self) -> float:
        """Seconds after which the row is given up."""
        each = 3.0 + self.accumulate * (self.compute + 2 * self.real) + 2 * self.floor
        return 60.0 + 3 * (self.steps + self.warmup) * each


def _sparse(density: float = 0.001) -> list[str]:
    """Ours that exist, the sparse ones at this density."""
    names = ("topk", "gtopk", "dgc", "oktopk", "lags")
    return [f"{name}:density={density}" for name in names if name in METHODS]


def _ours(dense: bool = True) -> list[str]:
    dense_ones = ("ssgd", "wfbp", "bytescheduler")
    whole = [name for name in dense_ones if dense and name in METHODS]
    return [*whole, *_sparse(), "powersgd:rank=4"]


def _ddp(row: Row, **changes: object) -> Row:
    return dataclasses.replace(row, kind="ddp", method="", steps=5, warmup=1, **changes)  # pyright: ignore[reportArgumentType]


def _target() -> Iterator[Row]:
    """The figure of the project: 25.6M parameters, four hosts at 100 Mbit/s."""
    base = Row(group="target", kind="ours", method="", hosts=4, rate="100mbit", model="resnet50")
    for method in ("alone", *_ours(dense=False), "gtopk:density=0.001:packing=plain"):
        quick = method.startswith(("alone", "gtopk", "topk"))
        yield dataclasses.replace(base, method=method, quick=quick)
    for compute in (0.2, 1.0, 5.0):
        steps = 5 if compute > 1 else 7
        for method in ("alone", "gtopk:density=0.001"):
            yield dataclasses.replace(base, method=method, compute=compute, steps=steps, warmup=1)
    for compute in (0.0, 0.2, 1.0, 5.0):
        yield _ddp(base, compute=compute)


def _gigabit() -> Iterator[Row]:
    """The same model at 1 Gbit/s."""
    base = Row(group="gigabit", kind="ours", method="", hosts=4, rate="1gbit", model="resnet50",
               compute=0.2)  # fmt: skip
    for method in ("alone", *_ours()):
        yield dataclasses.replace(base, method=method)
    yield _ddp(base)


def _hosts() -> Iterator[Row]:
    """Two and eight hosts."""
    for hosts in (2, 8):
        base = Row(group="hosts", kind="ours", method="", hosts=hosts, rate="100mbit", model="mlp",
                   compute=0.2, steps=5)  # fmt: skip
        for method in ("alone", *_ours()):
            yield dataclasses.replace(base, method=method)
        yield _ddp(base)


def _small() -> Iterator[Row]:
    """Real gradients: ResNet-20."""
    base = Row(group="small", kind="ours", method="", hosts=4, rate="100mbit", model="resnet20",
               real=True)  # fmt: skip
    for method in ("alone", *_ours()):
        quick = method.startswith(("alone", "gtopk"))
        yield dataclasses.replace(base, method=method, quick=quick)
    yield dataclasses.replace(_ddp(base), quick=True)
    yield _ddp(base, accumulate=8)


def _hook() -> Iterator[Row]:
    """DDP's own PowerSGD. Over gloo its processes stop after the first compressed step, and the
    row is given up when its time is over."""
    base = Row(group="hook", kind="ddp", method="", hosts=4, rate="100mbit", model="resnet20",
               real=True)  # fmt: skip
    yield _ddp(base, hook="powersgd")


def _large() -> Iterator[Row]:
    """66M parameters."""
    base = Row(group="large", kind="ours", method="", hosts=4, rate="1gbit", model="lstm-ptb",
               compute=1.0, steps=5, warmup=1)  # fmt: skip
    for method in ("alone", *_sparse()):
        yield dataclasses.replace(base, method=method)
    yield _ddp(base)


def _latency() -> Iterator[Row]:
    """20 ms one way, by the relay."""
    base = Row(group="latency", kind="ours", method="", hosts=4, rate="100mbit", model="mlp",
               compute=0.2, delay=0.02, steps=5)  # fmt: skip
    for method in ("alone", *_ours()):
        yield dataclasses.replace(base, method=method)
    yield _ddp(base)


def _crossover() -> Iterator[Row]:
    """The exchange alone: gTop-k's tree against top-k's all-gather."""
    for hosts in (2, 4, 8):
        for rate in ("100mbit", "1gbit"):
            for method in EXCHANGES:
                yield Row(group="crossover", kind="exchange", method=method, hosts=hosts, rate=rate,
                          steps=9, quick=hosts == 4)  # fmt: skip


GROUPS = {
    "target": _target,
    "crossover": _crossover,
    "small": _small,
    "gigabit": _gigabit,
    "hosts": _hosts,
    "latency": _latency,
    "large": _large,
    "hook": _hook,
}
"""By name, in the order in which they run."""


def rows_of(groups: list[str], quick: bool) -> list[Row]:
    """The rows of some groups, in their order."""
    rows = [row for name in groups for row in GROUPS[name]()]
    return [dataclasses.replace(row, steps=5) for row in rows if row.quick] if quick else rows
