"""Training over real shaped links on one machine, ours beside PyTorch's DistributedDataParallel.

    sudo python benchmarks/wire.py                          everything, about a quarter of an hour
    sudo python benchmarks/wire.py --quick                  a minute or two
    sudo python benchmarks/wire.py --rows target,crossover  some groups
    sudo python benchmarks/wire.py --json wire.jsonl        each row as a JSON line, too

Every host is a process in a network namespace of its own behind links of 100 Mbit/s or 1 Gbit/s;
they share this machine's cores. Groups of rows:

    target     25.6M parameters (ResNet-50), 4 hosts, 100 Mbit/s; steps that compute 0 to 5 s
    crossover  the exchange alone: gTop-k against top-k's all-gather, 2, 4 and 8 hosts; predicted
               first, then measured; 32 hosts simulated
    small      ResNet-20, 4 hosts, 100 Mbit/s: real gradients
    gigabit    25.6M parameters, 4 hosts, 1 Gbit/s
    hosts      5.8M parameters (a perceptron), 2 and 8 hosts, 100 Mbit/s
    latency    the same with 4 hosts and 20 ms one way, added by relay.py
    large      66M parameters (LSTM-PTB), 4 hosts, 1 Gbit/s

Figures are medians over the steps, of the slowest host at each, with the least and the most.
"Beyond" is what a step takes besides computation and the optimizer. Bytes are a host's per update,
by our meter and by the interface's counter. A row says whether its gradients are real or emulated:
then the hosts sleep for the time given, and gradients are random vectors, whose largest entries
lie where no other host's do. "derived" is not measured: DDP with accumulation sends what
DDP sends after eight times the computation. Nothing leaves this machine. Needs Linux, root and
iproute2.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from _wire_lab import Found, run_rows
from _wire_rows import GROUPS, Row, rows_of
from _wire_tables import crossover, predict_exchanges, simulate_exchanges, table
from netns import why_not

TARGET = 0.15
"""Seconds beyond computation and optimizer, for gtopk at density 0.001 in the group "target"."""


def summed(row: Row, found: Found, alone: dict[str, Any] | None) -> dict[str, Any]:
    """A row's figures over all hosts and steps.

    Args:
        row: as it was asked for.
        found: by host, or why there is nothing.
        alone: the figures of the same group's "alone" row, for real gradients' computation.
    """
    how = "–" if row.kind == "exchange" else "real" if row.real else "emulated"
    out: dict[str, Any] = {**vars(row), "label": row.label, "gradients": how}
    if isinstance(found, str):
        return {**out, "failed": found}
    out["step_time"] = spread([max(at) for at in zip(*(f["step"] for f in found), strict=True)])
    if row.kind != "exchange":
        computed = row.accumulate * (alone["compute_time"]["median"] if row.real and alone else
                                     row.compute)  # fmt: skip
        out["beyond"] = spread(
            [max(each) for each in zip(*(_beyond(f, computed) for f in found), strict=True)]
        )
        out["apply"] = spread(
            [statistics.mean(at) for at in zip(*(f["apply"] for f in found), strict=True)]
        )
    if "sent" in found[0]:
        out["sent"] = statistics.mean(statistics.mean(f["sent"]) for f in found)
        out["sent_most"] = max(statistics.mean(f["sent"]) for f in found)
    out["wire"] = sum(f["wire"] for f in found) / len(found) / row.steps
    if "phases" in found[0]:
        names = dict.fromkeys(name for f in found for name in f["phases"])
        out["phases"] = {
            name: statistics.mean(statistics.median(f["phases"].get(name, [0.0])) for f in found)
            for name in names
        }
        out["compute_time"] = spread([c for f in found for c in f["compute"]])
        out["cpu"] = spread([c for f in found for c in f["cpu"]])
    return out


def _beyond(found: dict[str, Any], computed: float) -> list[float]:
    compute = found.get("compute") or [computed] * len(found["step"])
    return [s - c - a for s, c, a in zip(found["step"], compute, found["apply"], strict=True)]


def spread(series: list[float]) -> dict[str, float]:
    """Median, least and most."""
    return {
        "median": statistics.median(series),
        "least": min(series),
        "most": max(series),
        "count": len(series),
    }


def derived(figures: dict[str, Any], accumulate: int = 8) -> dict[str, Any]:
    """DDP with accumulation from plain DDP's emulated row: the other batches are computation."""
    more = (accumulate - 1) * figures["compute"]
    moved = {name: value + more for name, value in figures["step_time"].items() if name != "count"}
    return {
        **figures,
        "accumulate": accumulate,
        "label": f"plain DDP, accumulate {accumulate}",
        "gradients": "derived",
        "step_time": {**moved, "count": figures["step_time"]["count"]},
    }


def measure(rows: list[Row], console: Any, results: list[dict[str, Any]]) -> None:
    """Add the figures of all rows to the results, each as soon as it is there; progress goes to the
    console."""
    began, done = time.monotonic(), 0
    alone: dict[tuple[Any, ...], dict[str, Any]] = {}

    def tell(line: str) -> None:
        clock = time.strftime("%M:%S", time.gmtime(time.monotonic() - began))
        print(f"{clock} [{done}/{len(rows)}] {line}", file=console, flush=True)

    for row, found in run_rows(rows, tell):
        done += 1
        key = (row.group, row.hosts, row.compute)
        figures = summed(row, found, alone.get(key))
        figures["load"] = os.getloadavg()[0]
        if row.method == "alone" and "failed" not in figures:
            alone[key] = figures
        results.append(figures)
        plain = row.kind == "ddp" and row.accumulate == 1 and not row.hook
        if plain and not row.real and "failed" not in figures:
            results.append(derived(figures))


def target_met(results: list[dict[str, Any]]) -> bool | None:
    """Whether gtopk's row in "target" without computation is within `TARGET`; None without one."""
    for figures in results:
        asked = figures["group"] == "target" and figures["method"] == "gtopk:density=0.001"
        if asked and not figures["compute"] and "failed" not in figures:
            return figures["beyond"]["median"] <= TARGET
    return None


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", default=",".join(GROUPS), help="groups, by commas; default: all")
    parser.add_argument("--quick", action="store_true", help="few rows, five steps each")
    parser.add_argument("--json", type=Path, help="write the rows here, a JSON line each")
    parser.add_argument("--list", action="store_true", help="only list the rows")
    options = parser.parse_args(arguments)
    options.groups = [name.strip() for name in options.rows.split(",") if name.strip()]
    unknown = [name for name in options.groups if name not in GROUPS]
    if unknown or not options.groups:
        parser.error(f"--rows {options.rows!r}; valid: {', '.join(GROUPS)}")
    return options


def show(results: list[dict[str, Any]], groups: list[str]) -> None:
    """Tables in Markdown, and whether the targets are met."""
    for group in groups:
        some = [figures for figures in results if figures["group"] == group]
        if not some:
            continue
        print(f"\n## {group}\n")
        print(crossover(some) if group == "crossover" else table(some))
    met = target_met(results)
    if met is not None:
        print(f"\ntarget (gtopk, 25.6M, 4 hosts, 100 Mbit/s: beyond ≤ {TARGET} s): "
              f"{'met' if met else 'MISSED'}")  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 when the target is met or was not measured, 1 when it is missed, 2 when nothing
    can be measured here."""
    options = options_of(arguments)
    rows = rows_of(options.groups, options.quick)
    if options.list:
        for row in rows:
            print(f"{row.group:10} {row.hosts} hosts {row.rate:8} {row.model or '-':9} {row.label}"
                  f" compute {row.compute:g}")  # fmt: skip
        return 0
    reason = why_not()
    if reason:
        print(f"wire: {reason}; nothing was measured", file=sys.stderr)
        return 2
    # A `with` takes the lab down on Ctrl-C; let a plain kill do the same.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print(f"{os.cpu_count()} cores, {platform.platform()}, Python {platform.python_version()}, "
          f"load {os.getloadavg()[0]:.1f}")  # fmt: skip
    if "crossover" in options.groups:
        print("\npredicted before anything runs:\n\n" + predict_exchanges())
    results: list[dict[str, Any]] = []
    try:
        measure(rows, sys.stderr, results)
    finally:  # also what was measured before it was stopped
        show(results, options.groups)
        if options.json:
            options.json.write_text("".join(json.dumps(figures) + "\n" for figures in results))
    if "crossover" in options.groups:
        print("\n" + simulate_exchanges())
    return 1 if target_met(results) is False else 0


if __name__ == "__main__":
    try:
        code = main()
    except KeyboardInterrupt:
        print("\nwire: stopped; the namespaces are removed", file=sys.stderr)
        code = 130
    sys.exit(code)
