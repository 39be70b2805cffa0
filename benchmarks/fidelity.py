"""Steps predicted beside steps measured, on real shaped links of this machine.

    sudo python benchmarks/fidelity.py --out fidelity            about ten minutes
    sudo python benchmarks/fidelity.py --out fidelity --quick    two minutes

Hosts are processes in network namespaces of their own. For each situation, in this order: `thinwire
probe` measures the hosts and writes a cluster file; every method is predicted from that file alone
(`thinwire.planner.simulate`), and `predicted.json` is written; then the same methods run and are
measured. Nothing is fitted on these runs. Four hosts share this machine's cores, which could not
compute for all of them: they sleep for a time that the prediction is told, layer by layer, and a
slow host sleeps longer. Selecting, merging, sending and the optimizer's step are real. Two hosts,
with a core each, compute for real. The machine should do nothing else. Needs Linux, root and
iproute2. Exit code 3 where a target is missed.

Measured: of each period of a method (one step, or the steps between two averages) the mean step of
the slowest host, and the median of that over the periods; of asynchronous methods the time in which
all hosts together have taken as many steps as there are hosts. Bytes are a host's per step: what
its interface has counted, without the headers of as many frames, which leaves what TCP carried.
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

from _wire_models import FORWARD, load_shapes, mlp
from netns import Lab, why_not
from thinwire.cluster import load_cluster
from thinwire.models import describe, load_layer_times
from thinwire.planner.simulate import Scene, simulate
from thinwire.planner.timed import Load, load_of_table, measured_paces, paces_of
from thinwire.run.probe.run import layers_beside

BATCH, MODEL = 256, "mlp"
HERE = Path(__file__).parent
MEDIAN, WORST, BYTES = 0.10, 0.20, 0.02
"""What is aimed at: errors of step times, and of bytes by the interface's counters."""

METHODS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ssgd", {}),
    ("wfbp", {"groups": "buckets", "bucket_bytes": 4 << 20}),
    ("topk", {"density": 0.01}),
    ("gtopk", {"density": 0.01}),
    ("lags", {"density": 0.01}),
    ("localsgd", {"every": 4}),
    ("asgd", {}),
)
HEADERS = 14 + 20 + 32
"""Bytes of Ethernet, IP and TCP, with time stamps, in each frame that an interface counts."""

COMPUTE = 0.5
"""Seconds of an emulated step: about what a batch takes on one core of a small machine."""

DENSE = ("ssgd", "wfbp")
"""Take seconds a step, and so get fewer."""

ASYNCHRONOUS = ("asgd",)
"""Their parameter server is beside host 0, and ends with them: each has a run of its own."""

QUICK = ("topk", "gtopk", "lags")

PLAIN = {name: {"packing": "plain"} for name in ("topk", "gtopk")}
"""How real gradients' entries travel: their code is as long as they are uneven, which no one knows
beforehand (they are predicted as uniform: 3 % too many bytes here)."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """A network and its hosts.

    Args:
        name: for the table.
        rate: of every link, as tc writes it.
        rates: of single hosts, by host.
        delay: seconds one way, added by the relay.
        computes: seconds of forward and backward that each host sleeps; where `real`, of no
            account but for their number.
        real: whether gradients are computed.
        without: methods that are left out.
        quick: whether `--quick` keeps it.
    """

    name: str
    rate: str
    rates: dict[int, str] = field(default_factory=dict)
    delay: float = 0.0
    computes: tuple[float, ...] = (COMPUTE,) * 4
    real: bool = False
    without: tuple[str, ...] = ("asgd",)
    quick: bool = False

    @property
    def hosts(self) -> int:
        """How many."""
        return len(self.computes)

    @property
    def network(self) -> tuple[Any, ...]:
        """Situations with equal ones share a lab and its probe."""
        return self.hosts, self.rate, tuple(self.rates.items()), self.delay, self.real

    def lab(self) -> Lab:
        """Its network."""
        return Lab(self.hosts, self.rate, self.rates, self.delay)

    def methods(self, quick: bool) -> list[tuple[str, dict[str, Any]]]:
        """What is tried on it."""
        kept = [each for each in METHODS if each[0] in QUICK or not quick]
        kept = [each for each in kept if each[0] not in self.without]
        if not self.real:
            return kept
        return [(name, PLAIN[name] | settings if name in PLAIN else settings)
                for name, settings in kept]  # fmt: skip


SITUATIONS = (
    Situation(name="100 Mbit/s", rate="100mbit", quick=True),
    Situation(name="one slow host", rate="100mbit", computes=(*(COMPUTE,) * 3, 2.5 * COMPUTE),
              quick=True),
    Situation(name="one slow link", rate="100mbit", rates={3: "50mbit"}),
    Situation(name="20 ms one way", rate="100mbit", delay=0.02),
    Situation(name="1 Gbit/s", rate="1gbit", without=()),
    Situation(name="2 real hosts", rate="100mbit", computes=(0.0,) * 2, real=True),
)  # fmt: skip


def probe(lab: Lab, folder: Path, batch: int) -> Path:
    """The cluster file that `thinwire probe` writes of a lab, of the model that is predicted."""
    target = folder / "cluster.toml"
    command = [sys.executable, "-m", "thinwire", "probe", "-o", str(target)]
    command += ["--model", f"_wire_models:{MODEL}", "--batch", str(batch)]
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


def scene_of(situation: Situation, cluster: Path) -> Scene:
    """What the probe's files say. The jitter that it saw is that of real computing: it is of no
    account where computing is emulated."""
    measured = load_cluster(str(cluster))
    if situation.real:
        load = load_of_table(describe(mlp(), batch=BATCH))
        times = load_layer_times(layers_beside(cluster))
        paces = measured_paces(load, times, [node.name for node in measured.nodes], BATCH)
        return Scene(cluster=measured, load=load, paces=tuple(paces), batch=BATCH)
    load = load_of_shapes()
    nodes = tuple(dataclasses.replace(node, jitter=0.0) for node in measured.nodes)
    return Scene(
        cluster=dataclasses.replace(measured, nodes=nodes),
        load=load,
        paces=tuple(paces_of(load, situation.computes, FORWARD)),
        batch=BATCH,
    )


def predict(situation: Situation, cluster: Path, methods: Sequence[Any]) -> list[dict[str, Any]]:
    """Every method's step."""
    scene = scene_of(situation, cluster)
    rows = []
    for name, settings in methods:
        found = simulate(scene, name, settings)
        rows.append(
            {
                "situation": situation.name,
                "gradients": "real" if situation.real else "emulated",
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
            "real": situation.real,
            "batch": BATCH,
            "serial": True,
            "computes": situation.computes,
            "warmup": settings.get("every", 2),
            "steps": steps_of(name, settings, steps),
        }
        for i, (name, settings) in enumerate(methods)
    ]
    # A server ends with its method, so each has a run of its own.
    alone = [[row] for row in asked if row["method"] in ASYNCHRONOUS]
    runs = [[row for row in asked if row["method"] not in ASYNCHRONOUS], *alone]
    found: dict[int, list[dict[str, Any]]] = {}
    for number, rows in enumerate(runs):
        where = folder / f"run-{number}"
        where.mkdir()
        for host in run_hosts(lab, rows, where):
            for row in host:
                found.setdefault(row["id"], []).append(row)
    for row, (name, settings) in zip(asked, methods, strict=True):
        hosts = found.get(row["id"], [])
        if len(hosts) < situation.hosts:
            yield {"method": name, "failed": f"no result; see {folder}/run-*/hosts.log"}
        elif name in ASYNCHRONOUS:
            yield {"method": name, **together(hosts)}
        else:
            yield {"method": name, **summed(hosts, settings.get("every", 1))}


def steps_of(name: str, settings: dict[str, Any], steps: int) -> int:
    """How many are measured: whole periods; few of those that take seconds, more of short ones,
    most where the first and the last are not like the others, since they send less."""
    if name in ASYNCHRONOUS:
        return 10 * steps
    if name in QUICK:
        return 2 * steps - 1
    return 2 * settings["every"] if "every" in settings else steps - 2 * (name in DENSE)


def run_hosts(lab: Lab, rows: Sequence[Any], folder: Path) -> list[list[dict[str, Any]]]:
    """What every host found of some rows, as far as it came."""
    (folder / "rows.json").write_text(json.dumps(rows))
    threads = str(max(1, (os.cpu_count() or 1) // lab.num_hosts))
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
    paths = [folder / f"found.{rank}" for rank in range(lab.num_hosts)]
    return [
        [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        for path in paths
    ]


def summed(hosts: Sequence[dict[str, Any]], period: int) -> dict[str, Any]:
    """A row's figures over hosts and steps."""
    slowest = [max(at) for at in zip(*(host["step"] for host in hosts), strict=True)]
    if period > 1:  # hosts meet once in a period only
        sums = [_sums(host["step"], period) for host in hosts]
        slowest = [max(at) / period for at in zip(*sums, strict=True)]
    return {
        "step_time": statistics.median(slowest),
        "least": min(slowest),
        "most": max(slowest),
        **_counted(hosts, len(hosts[0]["step"])),
    }


def together(hosts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The same where no host waits for another: by how many steps all take in a time."""
    each = [sum(host["step"]) / len(host["step"]) for host in hosts]
    return {
        "step_time": len(hosts) / sum(1 / seconds for seconds in each),
        "least": min(each),
        "most": max(each),
        **_counted(hosts, sum(len(host["step"]) for host in hosts) / len(hosts)),
    }


def _counted(hosts: Sequence[dict[str, Any]], steps: float) -> dict[str, Any]:
    """Bytes of a host and step, and the part of their time in which hosts wait."""
    waits = [sum(host["phases"].get("wait", [0.0])) / sum(host["step"]) for host in hosts]
    carried = sum(host["wire"] - HEADERS * host["frames"] for host in hosts)
    return {
        "bytes_per_step": sum(sum(host["sent"]) for host in hosts) / len(hosts) / steps,
        "wire_bytes_per_step": carried / len(hosts) / steps,
        "waiting": statistics.mean(waits),
    }


def _sums(series: Sequence[float], period: int) -> list[float]:
    return [sum(series[i : i + period]) for i in range(0, len(series), period)]


def compared(predicted: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    """One line of the table."""
    row = {**predicted, "measured": measured}
    if "failed" not in measured:
        row["error"] = predicted["step_time"] / measured["step_time"] - 1
        row["bytes_error"] = predicted["bytes_per_step"] / measured["wire_bytes_per_step"] - 1
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
    predicted: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for number, (_, some) in enumerate(itertools.groupby(chosen, lambda each: each.network)):
        folder = out / f"network-{number}"
        folder.mkdir(parents=True)
        situations = list(some)
        with situations[0].lab() as lab:
            tell(f"{situations[0].name}: probing")
            cluster = probe(lab, folder, BATCH if situations[0].real else 4)
            for at, situation in enumerate(situations):
                own = folder / str(at)
                own.mkdir()
                methods = situation.methods(quick)
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
