"""What `benchmarks/wire.py` prints: tables in Markdown, and what the exchanges should take."""

from __future__ import annotations

from typing import Any

from _wire_rows import EXCHANGES, KEPT, NUMEL
from thinwire.collectives import (
    Plain,
    Sparse,
    all_gather_sparse,
    costs,
    gtopk_all_reduce,
)
from thinwire.compress import select_top
from thinwire.compress.coded import Coded
from thinwire.passes import coded_size
from thinwire.planner import quick_cluster
from thinwire.wire import Comm
from thinwire.wire.virtual import World

__all__ = ["crossover", "predict_exchanges", "simulate_exchanges", "table"]

LATENCY = 0.1e-3
RATES = {"100mbit": 12.5e6, "1gbit": 125e6}
TIE = 0.1
HEADS = ["hosts", "rate", *EXCHANGES, "ahead"]
PHASES = ("select", "encode", "send", "wait", "merge")


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def _range(figure: dict[str, float]) -> str:
    least, most = _ms(figure["least"]), _ms(figure["most"])
    return f"{_ms(figure['median'])} ({least} to {most})"


def _bytes(count: float | None) -> str:
    if count is None:
        return "–"
    for unit in ("B", "kB", "MB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1e3
    return f"{count:.3g} GB"


def _markdown(heads: list[str], lines: list[list[str]]) -> str:
    rule = ["---"] * len(heads)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, rule, *lines))


def table(results: list[dict[str, Any]]) -> str:
    """The rows of a group that trains."""
    heads = ["hosts", "model", "compute", "what", "time per batch", "beyond", "to plain DDP",
             "sent", "on the wire", "phases", "gradients"]  # fmt: skip
    return _markdown(heads, [_line(figures, results) for figures in results])


def _per_batch(figures: dict[str, Any]) -> float:
    return figures["step_time"]["median"] / figures["accumulate"]


def _line(figures: dict[str, Any], results: list[dict[str, Any]]) -> list[str]:
    place = [str(figures["hosts"]), figures["model"], f"{figures['compute']:g} s"]
    if figures["real"]:
        place[2] = "real"
    if "failed" in figures:
        return [*place, figures["label"], f"did not run: {figures['failed']}", *["–"] * 6]
    alike = [
        other
        for other in results
        if other["label"] == "plain DDP" and "failed" not in other
        and (other["hosts"], other["compute"]) == (figures["hosts"], figures["compute"])
    ]  # fmt: skip
    ratio = f"{_per_batch(alike[0]) / _per_batch(figures):.3g}×" if alike else "–"
    batch = {
        name: value / figures["accumulate"]
        for name, value in figures["step_time"].items()
        if name != "count"
    }
    spent = figures.get("phases", {})
    phases = ", ".join(f"{name} {_ms(spent[name])}" for name in PHASES if spent.get(name, 0) > 5e-4)
    return [*place, figures["label"], _range(batch), _range(figures["beyond"]), ratio,
            _bytes(figures.get("sent")), _bytes(figures["wire"]), phases or "–",
            figures["gradients"]]  # fmt: skip


def crossover(results: list[dict[str, Any]]) -> str:
    """The exchanges beside each other, by hosts and rate."""
    lines = []
    for hosts, rate in dict.fromkeys((f["hosts"], f["rate"]) for f in results):
        some = {f["label"]: f for f in results if (f["hosts"], f["rate"]) == (hosts, rate)}
        times = {k: f["step_time"]["median"] for k, f in some.items() if "failed" not in f}
        cells = [
            f"{_range(some[name]['step_time'])}, {_bytes(some[name]['sent'])}"
            if name in times
            else f"did not run: {some[name]['failed']}"
            for name in EXCHANGES
        ]
        lines.append([str(hosts), rate, *cells, _ahead(times)])
    return _markdown(HEADS, lines)


def _ahead(times: dict[str, float]) -> str:
    """Of top-k and gTop-k, with plain indices and with coded ones."""
    said = []
    for form in ("plain", "coded"):
        topk, gtopk = times.get(f"topk {form}"), times.get(f"gtopk {form}")
        if topk is not None and gtopk is not None:
            ratio = topk / gtopk
            tie = abs(ratio - 1) <= TIE
            said.append(f"{'tie' if tie else 'gtopk' if ratio > 1 else 'topk'} ({ratio:.2f})")
    return "; ".join(said)


def predict_exchanges() -> str:
    """What the closed forms say, wire only."""
    lines = []
    entries = 4 * KEPT + coded_size(KEPT, NUMEL)
    for hosts in (2, 4, 8, 32):
        for rate, speed in RATES.items():
            times = {
                "topk plain": costs.all_gather_sparse(hosts, KEPT, LATENCY, speed),
                "gtopk plain": costs.gtopk_tree(hosts, KEPT, LATENCY, speed),
                "topk coded": costs.all_gather_sparse(hosts, 1, LATENCY, speed, itemsize=entries),
                "gtopk coded": costs.gtopk_tree(hosts, 1, LATENCY, speed, itemsize=entries),
            }
            lines.append([str(hosts), rate, *map(_ms, times.values()), _ahead(times)])
    return _markdown(HEADS, lines)


def simulate_exchanges(hosts: int = 32) -> str:
    """The same programs on a virtual cluster of a size that no machine here can hold; merging costs
    nothing, coding does."""
    programs = {
        "topk plain": lambda comm: all_gather_sparse(comm, _nominal(), form=Plain()),
        "topk coded": lambda comm: all_gather_sparse(comm, _nominal(), form=Coded()),
        "gtopk plain": lambda comm: gtopk_all_reduce(comm, _nominal(), KEPT, form=Plain()),
        "gtopk coded": lambda comm: gtopk_all_reduce(comm, _nominal(), KEPT, form=Coded()),
    }
    lines = []
    for rate, speed in RATES.items():
        cluster, _ = quick_cluster(hosts, speed, latency=LATENCY, memory_rate=10e9)
        times = {}
        for name, program in programs.items():
            world = World(cluster, link_model="fair")
            world.run(_without_result(program))
            times[name] = world.elapsed
        lines.append([str(hosts), rate, *map(_ms, times.values()), _ahead(times)])
    return "simulated, the wire and coding at 10 GB/s of memory:\n\n" + _markdown(HEADS, lines)


def _without_result(program: Any) -> Any:
    def run(comm: Comm) -> None:
        program(comm)

    return run


def _nominal() -> Sparse:
    import torch

    return select_top(torch.empty(NUMEL, device="meta"), KEPT)
