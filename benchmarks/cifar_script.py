"""Wall time to an accuracy: a CIFAR-10 training script on hosts behind shaped links.

    sudo python benchmarks/cifar_script.py --data PLACE             about a quarter of an hour
    sudo python benchmarks/cifar_script.py --data PLACE --quick     two or three minutes
    sudo python benchmarks/cifar_script.py --data PLACE --model resnet20 --links 100mbit
    sudo python benchmarks/cifar_script.py --data PLACE --json rows.jsonl --plot curves.svg

Each host is a process in a network namespace of its own and runs an ordinary script
(`_cifar_host.py`): alone, by DistributedDataParallel over gloo, or by `tw.distribute`. All hosts
train together on batches of `--batch` images, an equal part each. First every method tries the same
learning rates on links of 10 Gbit/s, where a batch takes less time but learns the same; the rate
with the fewest batches to the accuracy counts, and is then run on the shaped links. With one rate
there is nothing to try.

* The time is that of the training: from the first batch, when everything is loaded and connected,
  to the first test at or above the accuracy, of which there is one every `--every` batches. Testing
  is left out, all hosts wait meanwhile.
* All hosts share this machine's cores, one thread each, so computation is slower than on hosts of
  their own, and communication weighs less. "One machine" trains on whole batches while the others
  do the same, so that it has as much of the cores as any host has in the other rows.
* One run a row, or --repeats. What never reaches the accuracy with any rate stays in the table.

Nothing leaves this machine. Needs Linux, root and iproute2.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from _cifar_lab import Hosts, Run, tuned
from _cifar_tables import draw, table
from netns import why_not
from thinwire.tasks.data import CIFAR10

TUNING = "10gbit"
METHODS = "alone,ddp,ddp:accumulate=8,gtopk,dgc,powersgd"
SPARSE = ("topk", "gtopk", "dgc", "oktopk", "lags")


def prepared(options: argparse.Namespace, folder: Path) -> Path:
    """The images, read once, in a file for all hosts."""
    place = CIFAR10.find(Path(options.data).expanduser() if options.data else None)
    x, y = CIFAR10.read(place, "train", options.train_limit)
    test_x, test_y = CIFAR10.read(place, "test", options.test_limit)
    file = folder / "images"
    torch.save({"x": x, "y": y, "test_x": test_x, "test_y": test_y}, file)
    return file


def runs_of(options: argparse.Namespace) -> list[Run]:
    """One for each method, without a learning rate yet."""
    runs = []
    for text in options.methods.split(","):
        name, *pairs = text.strip().split(":")
        settings = dict(pair.split("=", 1) for pair in pairs)
        if name in SPARSE:
            settings.setdefault("density", str(options.density))
        kind = name if name in ("alone", "ddp") else "ours"
        accumulate = int(settings.pop("accumulate", 1)) if kind == "ddp" else 1
        if options.every % accumulate:
            raise SystemExit(f"--every {options.every}: a multiple of {accumulate} is needed")
        common = {key: getattr(options, key) for key in ("model", "batch", "every", "target")}
        runs.append(
            Run(kind=kind, method="" if kind != "ours" else name, settings=settings, **common,
                accumulate=accumulate, most=options.most, longest=options.longest, lr=0.0)
        )  # fmt: skip
    return runs


def measure(options: argparse.Namespace, folder: Path, results: list[dict[str, Any]]) -> None:
    """Add every row to the results as soon as it is there; progress goes to the error stream."""
    began = time.monotonic()

    def tell(line: str) -> None:
        clock = time.strftime("%M:%S", time.gmtime(time.monotonic() - began))
        print(f"{clock} {line}", file=sys.stderr, flush=True)

    runs, images = runs_of(options), prepared(options, folder)
    rates = [float(rate) for rate in options.rates.split(",")]
    if len(rates) == 1:
        chosen = [(dataclasses.replace(run, lr=rates[0]), []) for run in runs]
    else:
        with Hosts(options.hosts, TUNING, images, folder / TUNING) as hosts:
            chosen = [tuned(hosts, run, rates, tell) for run in runs]
    for link in options.links.split(","):
        with Hosts(options.hosts, link, images, folder / f"at {link}") as hosts:
            for run, tries in chosen:
                for _ in range(options.repeats if run.lr else 1):
                    found = hosts.measured(run) if run.lr else "no rate reached it"
                    row = row_of(run, link, found, tries)
                    results.append(row)
                    said = row.get("failed") or f"{row['seconds']:.1f} s"
                    tell(f"{link} {run.label}: {said}")


def row_of(
    run: Run, link: str, found: list[dict[str, Any]] | str, tries: list[dict[str, Any]]
) -> dict[str, Any]:
    """What the table and the picture show of a run, and how its rate was found."""
    row = {"link": link, "label": run.label, "method": run.method or run.kind, "lr": run.lr,
           "model": run.model, "target": run.target, "tries": tries,
           "load": os.getloadavg()[0]}  # fmt: skip
    if isinstance(found, str):
        best = max((t["accuracy"] for t in tries), default=0.0)
        return {**row, "failed": found, "accuracy": best}
    history = found[0]["history"]
    batches, seconds, accuracy = history[-1]
    row |= {"batches": batches, "seconds": seconds, "accuracy": accuracy, "history": history,
            "sent": sum(f["sent"] for f in found) / len(found)}  # fmt: skip
    return row if accuracy >= run.target else {**row, "failed": f"{100 * accuracy:.1f} % at most"}


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", help="CIFAR-10; by default where THINWIRE_DATA says")
    parser.add_argument("--methods", default=METHODS, help=f"by commas; default: {METHODS}")
    parser.add_argument("--links", default="100mbit,1gbit", help="as tc writes them")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--model", default="cnn", choices=("cnn", "resnet20"))
    parser.add_argument("--batch", type=int, default=64, help="images of all hosts together")
    parser.add_argument("--rates", default="0.01,0.02,0.05", help="tried by every method")
    parser.add_argument("--density", type=float, default=0.01, help="of sparse methods")
    parser.add_argument("--target", type=float, default=0.4, help="accuracy, 0..1")
    parser.add_argument("--train-limit", type=int, default=4000)
    parser.add_argument("--test-limit", type=int, default=1000)
    parser.add_argument("--every", type=int, default=48, help="batches between two tests")
    parser.add_argument("--most", type=int, default=480, help="batches after which it is given up")
    parser.add_argument("--longest", type=float, default=150.0, help="seconds, likewise")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="few methods, one rate, one link")
    parser.add_argument("--json", type=Path, help="write the rows here, a JSON line each")
    parser.add_argument("--plot", type=Path, help="an SVG picture; the link is added to the name")
    options = parser.parse_args(arguments)
    if options.quick:
        options.methods, options.links, options.rates = "alone,ddp,gtopk", "100mbit", "0.02"
        options.train_limit, options.target, options.most = 2000, min(0.2, options.target), 192
    if options.batch % options.hosts:
        parser.error(f"--batch {options.batch}: a multiple of {options.hosts} hosts is needed")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 when everything that was run reached the accuracy, 1 when something did not, 2
    when nothing can be measured here."""
    options = options_of(arguments)
    reason = why_not()
    if reason:
        print(f"cifar_script: {reason}; nothing was measured", file=sys.stderr)
        return 2
    # A `with` takes the lab down on Ctrl-C; let a plain kill do the same.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print(f"{os.cpu_count()} cores, {platform.platform()}, torch {torch.__version__}, load "
          f"{os.getloadavg()[0]:.1f}; {options.hosts} hosts, {options.model}, batches of "
          f"{options.batch}, {options.train_limit} images, {100 * options.target:g} % of "
          f"{options.test_limit} test images")  # fmt: skip
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            measure(options, Path(folder), results)
        finally:  # also what was measured before it was stopped
            if results:
                print("\n" + table(results))
            if options.json:
                options.json.write_text("".join(json.dumps(row) + "\n" for row in results))
            if options.plot and results:
                draw(results, options.plot)
    return int(any("failed" in row for row in results))


if __name__ == "__main__":
    try:
        code = main()
    except KeyboardInterrupt:
        print("\ncifar_script: stopped; the namespaces are removed", file=sys.stderr)
        code = 130
    sys.exit(code)
