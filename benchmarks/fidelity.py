"""Steps predicted beside steps measured, on real shaped links of this machine.

    sudo python benchmarks/fidelity.py --out fidelity            about six minutes
    sudo python benchmarks/fidelity.py --out fidelity --quick    a minute or two

Four hosts, each a process in a network namespace of its own. For each situation, in this order:
`thinwire probe` measures the hosts and writes a cluster file; every method is predicted from that
file alone (`thinwire.planner.simulate`), and `predicted.json` is written; then the same methods run
and are measured. Nothing is fitted on these runs. Gradients are emulated: hosts sleep for a time
that the prediction is told, layer by layer, and a slow host sleeps longer. Selecting, merging,
sending and the optimizer's step are real; the hosts share this machine's cores, so it should do
nothing else. Needs Linux, root and iproute2. Exit code 3 where a target is missed.

Measured: of each period of a method (one step, or the steps between two averages) the mean step of
the slowest host, and the median of that over the periods. Bytes are a host's per step, by the
interface's counter, for which the prediction is multiplied by what frames of 1500 bytes add; the
counter holds acknowledgements, too, which are not in the prediction.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _wire_models import FORWARD, load_shapes
from netns import Lab, why_not
from thinwire.cluster import load_cluster
from thinwire.planner.simulate import Scene, simulate
from thinwire.planner.timed import Load, paces_of

HOSTS, BATCH, MODEL = 4, 32, "mlp"
HERE = Path(__file__).parent
MEDIAN, WORST, BYTES = 0.10, 0.20, 0.02
"""What is aimed at: errors of step times, and of bytes by the interface's counters."""

METHODS = (
    ("ssgd", {}),
    ("wfbp", {"groups": "buckets", "bucket_bytes": 4 << 20}),
    ("topk", {"density": 0.01}),
    ("gtopk", {"density": 0.01}),
    ("lags", {"density": 0.01}),
    ("localsgd", {"every": 4}),
)
FRAMED = 1514 / 1448
"""Bytes on the wire for a byte sent: Ethernet, IP and TCP with time stamps, in frames of 1500."""

DENSE = ("ssgd", "wfbp")
"""Take seconds a step, and so get fewer."""

QUICK = ("topk", "gtopk", "lags")


@dataclass(frozen=True, kw_only=True)
class Situation:
    """A network and the hosts' paces: seconds of forward and backward that they sleep."""

    name: str
    rate: str
    rates: dict[int, str] = field(default_factory=dict)
    computes: tuple[float, ...] = (0.2,) * HOSTS
    quick: bool = False

    @property
    def network(self) -> tuple[str, tuple[tuple[int, str], ...]]:
        """Situations with equal ones share a lab and its probe."""
        return self.rate, tuple(self.rates.items())


SITUATIONS = (
    Situation(name="100 Mbit/s", rate="100mbit", quick=True),
    Situation(name="one slow host", rate="100mbit", computes=(0.2, 0.2, 0.2, 0.5), quick=True),
    Situation(name="one slow link", rate="100mbit", rates={3: "50mbit"}),
    Situation(name="1 Gbit/s", rate="1gbit"),
)


def probe(lab: Lab, folder: Path) -> Path:
    """The cluster file that `thinwire probe` writes of a lab, of the model that is predicted."""
    target = folder / "cluster.toml"
    command = [sys.executable, "-m", "thinwire", "probe", "-o", str(target)]
    command += ["--model", f"_wire_models:{MODEL}", "--batch", "4"]
    command += ["--threads", "1", "--seconds", "0.5", "--force"]
    with open(folder / "probe.log", "wb") as log:
        paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        processes = lab.start(command, env=env, stdout=log.fileno(), stderr=log.fileno())
        for process in processes:
            process.wait(timeout=180)
    if not target.exists():
        raise RuntimeError(f"the probe wrote no cluster; see {folder / 'probe.log'}")
    return target


def load_of_shapes() -> Load:
    """The emulated model, as `_wire_models.Emulated` passes through it."""
    shapes = load_shapes(MODEL)
    backward, before = [0.0] * len(shapes.layers), 0.0
    for i in shapes.order:
        backward[i] = shapes.ready[i] - before
        before = shapes.ready[i]
    forward = tuple(layer.numel / shapes.numel for layer in shapes.layers)
    return Load(layers=shapes.layers, order=shapes.order, forward=forward, backward=tuple(backward))


def predict(situation: Situation, cluster: Path, methods: Sequence[Any]) -> list[dict[str, Any]]:
    """Every method's step from the probe's file and the paces.

    The jitter that the probe saw is that of real computing, which is emulated here.
    """
    load, measured = load_of_shapes(), load_cluster(str(cluster))
    nodes = tuple(dataclasses.replace(node, jitter=0.0) for node in measured.nodes)
    scene = Scene(
        cluster=dataclasses.replace(measured, nodes=nodes),
        load=load,
        paces=tuple(paces_of(load, situation.computes, FORWARD)),
        batch=BATCH,
    )
    rows = []
    for name, settings in methods:
        found = simulate(scene, name, settings)
        rows.append(
            {
                "situation": situation.name,
                "method": name,
                "settings": settings,
                "step_time": found.step_time,
                "bytes_per_step": found.bytes_per_step,
                "waiting": found.waiting,
                "limit": found.limit,
            }
        )
    return rows


def measure(
    lab: Lab, situation: Situation, methods: Sequence[Any], folder: Path, steps: int
) -> Iterator[dict[str, Any]]:
    """Every method's step on the lab's hosts; `failed` where there is none."""
    asked = [
        {
            "id": i,
            "kind": "ours",
            "method": ":".join([name, *(f"{k}={v}" for k, v in settings.items())]),
            "model": MODEL,
            "real": False,
            "computes": situation.computes,
            "warmup": settings.get("every", 2),
            "steps": 2 * settings["every"] if "every" in settings else steps - 2 * (name in DENSE),
        }
        for i, (name, settings) in enumerate(methods)
    ]
    (folder / "rows.json").write_text(json.dumps(asked))
    threads = str(max(1, (os.cpu_count() or 1) // HOSTS))
    with open(folder / "hosts.log", "wb") as log:
        command = [sys.executable, str(HERE / "_fidelity_host.py"), str(folder / "rows.json")]
        processes = lab.start([*command, str(folder / "found")], port=29522,
                              env={"OMP_NUM_THREADS": threads}, stdout=log.fileno(),
                              stderr=log.fileno())  # fmt: skip
        for process in processes:
            try:
                process.wait(timeout=300)
            except subprocess.TimeoutExpired:
                process.kill()
    found = [
        [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        for path in (folder / f"found.{rank}" for rank in range(HOSTS))
    ]
    for row, (name, settings) in zip(asked, methods, strict=True):
        hosts = [each[row["id"]] for each in found if len(each) > row["id"]]
        if len(hosts) < HOSTS:
            yield {"method": name, "failed": f"no result; see {folder / 'hosts.log'}"}
        else:
            yield {"method": name, **summed(hosts, settings.get("every", 1))}


def summed(hosts: Sequence[dict[str, Any]], period: int) -> dict[str, Any]:
    """A row's figures over hosts and steps."""
    slowest = [max(at) for at in zip(*(host["step"] for host in hosts), strict=True)]
    if period > 1:  # hosts meet once in a period only
        sums = [_sums(host["step"], period) for host in hosts]
        slowest = [max(at) / period for at in zip(*sums, strict=True)]
    steps = len(hosts[0]["step"])
    waits = [sum(host["phases"].get("wait", [0.0])) / sum(host["step"]) for host in hosts]
    return {
        "step_time": statistics.median(slowest),
        "least": min(slowest),
        "most": max(slowest),
        "bytes_per_step": sum(sum(host["sent"]) for host in hosts) / HOSTS / steps,
        "wire_bytes_per_step": sum(host["wire"] for host in hosts) / HOSTS / steps,
        "waiting": statistics.mean(waits),
    }


def _sums(series: Sequence[float], period: int) -> list[float]:
    return [sum(series[i : i + period]) for i in range(0, len(series), period)]


def compared(predicted: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    """One line of the table."""
    row = {**predicted, "measured": measured}
    if "failed" not in measured:
        row["error"] = predicted["step_time"] / measured["step_time"] - 1
        row["bytes_error"] = (
            FRAMED * predicted["bytes_per_step"] / measured["wire_bytes_per_step"] - 1
        )
    return row


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Errors over all rows, and pairs of methods in the wrong order though > 10 % apart."""
    good = [row for row in rows if "error" in row]
    errors = [abs(row["error"]) for row in good]
    wrong = [
        f"{a['situation']}: {a['method']} and {b['method']}"
        for a, b in itertools.combinations(good, 2)
        if a["situation"] == b["situation"]
        and max(a["measured"]["step_time"], b["measured"]["step_time"])
        > 1.1 * min(a["measured"]["step_time"], b["measured"]["step_time"])
        and (a["step_time"] < b["step_time"])
        != (a["measured"]["step_time"] < b["measured"]["step_time"])
    ]
    return {
        "rows": len(good),
        "failed": len(rows) - len(good),
        "median_error": statistics.median(errors) if errors else None,
        "worst_error": max(errors, default=None),
        "worst_bytes_error": max((abs(row["bytes_error"]) for row in good), default=None),
        "wrong_order": wrong,
    }


def show(rows: Sequence[dict[str, Any]], total: dict[str, Any]) -> None:
    """The table and its summary."""
    print(f"{'situation':15} {'method':9} {'predicted':>10} {'measured':>10} {'spread':>17} "
          f"{'error':>7} {'sent':>10} {'counter':>8} {'waits':>11}")  # fmt: skip
    for row in rows:
        found = row["measured"]
        start = f"{row['situation']:15} {row['method']:9} {1e3 * row['step_time']:7.1f} ms"
        if "failed" in found:
            print(f"{start} {found['failed']}")
            continue
        spread = f"{1e3 * found['least']:.0f}-{1e3 * found['most']:.0f} ms"
        print(f"{start} {1e3 * found['step_time']:7.1f} ms {spread:>17} "
              f"{100 * row['error']:+6.1f}% {row['bytes_per_step'] / 1e6:7.2f} MB "
              f"{100 * row['bytes_error']:+7.1f}% "
              f"{100 * row['waiting']:4.0f}/{100 * found['waiting']:.0f} %")  # fmt: skip
    if total["median_error"] is not None:
        print(f"step times: median error {100 * total['median_error']:.1f} %, worst "
              f"{100 * total['worst_error']:.1f} %; bytes by counters: worst "
              f"{100 * total['worst_bytes_error']:.1f} %; failed: {total['failed']}")  # fmt: skip
    for pair in total["wrong_order"]:
        print(f"wrong order: {pair}")


def run(out: Path, quick: bool, tell: Any) -> list[dict[str, Any]]:
    """All situations, each predicted before it is measured."""
    chosen = [each for each in SITUATIONS if each.quick or not quick]
    methods = [each for each in METHODS if each[0] in QUICK or not quick]
    predicted: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for number, (_, some) in enumerate(itertools.groupby(chosen, lambda each: each.network)):
        folder = out / f"network-{number}"
        folder.mkdir(parents=True)
        situations = list(some)
        with Lab(HOSTS, situations[0].rate, situations[0].rates) as lab:
            tell(f"{situations[0].name}: probing")
            cluster = probe(lab, folder)
            for at, situation in enumerate(situations):
                own = folder / str(at)
                own.mkdir()
                foreseen = predict(situation, cluster, methods)
                predicted += foreseen
                (out / "predicted.json").write_text(json.dumps(predicted, indent=2) + "\n")
                tell(f"{situation.name}: predicted; measuring")
                found = measure(lab, situation, methods, own, 3 if quick else 5)
                rows += [compared(p, m) for p, m in zip(foreseen, found, strict=True)]
                (out / "rows.json").write_text(json.dumps(rows, indent=2) + "\n")
    return rows


def main() -> int:
    """The command; 3 where a target is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="a folder that is not there yet")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    reason = why_not()
    if reason:
        print(f"fidelity: {reason}", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the lab is to be taken down
    began = time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - began:5.0f} s  {text}", file=sys.stderr, flush=True)

    rows = run(options.out, options.quick, tell)
    total = summary(rows)
    show(rows, total)
    machine = {"cores": os.cpu_count(), "system": platform.platform(), "load": os.getloadavg()}
    told = {"machine": machine, "summary": total, "rows": rows}
    (options.out / "fidelity.json").write_text(json.dumps(told, indent=2) + "\n")
    missed = (
        bool(total["failed"] or total["wrong_order"])
        or total["median_error"] is None
        or total["median_error"] > MEDIAN
        or total["worst_error"] > WORST
        or total["worst_bytes_error"] > BYTES
    )
    return 3 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
