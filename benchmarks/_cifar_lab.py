"""Runs of `benchmarks/cifar_script.py` on a lab of network namespaces, and the choice of rates."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from netns import Lab

__all__ = ["Hosts", "Run", "tuned"]

HOST = Path(__file__).with_name("_cifar_host.py")
POLL = 0.1
START = 120.0
"""Seconds that importing and connecting may take, on a machine with fewer cores than hosts."""

FIRST_PORT = 29600
"""Of the runs' meetings; the next run takes the next one."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training.

    Args:
        kind: "alone", "ddp" or "ours".
        method: of ours, with `settings`.
        model: a key of `_cifar_host.MODELS`.
        lr: learning rate.
        batch: images of all hosts together.
        accumulate: batches of one update.
        every: batches between two tests.
        target: accuracy at which it ends, 0..1.
        most: batches after which it is given up.
        longest: seconds after which it is given up.
    """

    kind: str
    method: str
    model: str
    lr: float
    batch: int
    every: int
    target: float
    most: int
    longest: float
    accumulate: int = 1
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What tables call it."""
        if self.kind == "alone":
            return "one machine"
        if self.kind == "ddp":
            more = f", accumulate {self.accumulate}" if self.accumulate > 1 else ""
            return f"DDP (gloo){more}"
        settings = ", ".join(f"{key} {value}" for key, value in self.settings.items())
        return f"{self.method} ({settings})" if settings else self.method


def tuned(
    hosts: Hosts, run: Run, rates: Sequence[float], tell: Callable[[str], None]
) -> tuple[Run, list[dict[str, Any]]]:
    """The run with the learning rate that takes the fewest batches, 0 where none gets there; and
    what was tried. What cannot be better than another rate any more is given up."""
    tries: list[dict[str, Any]] = []
    best, most = 0.0, run.most
    for lr in rates:
        found = hosts.measured(dataclasses.replace(run, lr=lr, most=most), beside=False)
        if isinstance(found, str):
            tries.append({"lr": lr, "failed": found, "accuracy": 0.0})
            tell(f"trying {run.label} at {lr:g}: {found}")
            continue
        batches, _, accuracy = found[0]["history"][-1]
        reached = accuracy >= run.target
        tries.append({"lr": lr, "batches": batches, "accuracy": accuracy, "reached": reached})
        said = "reached" if reached else "given up"
        tell(f"trying {run.label} at {lr:g}: {100 * accuracy:.1f} % after {batches}, {said}")
        if reached:
            best, most = lr, max(run.every, batches - run.every)
    return dataclasses.replace(run, lr=best), tries


class Hosts:
    """A lab whose hosts have loaded everything and wait for runs.

    Args:
        num_hosts: how many.
        rate: of every link, as tc writes it.
        images: file with the images.
        folder: for this lab's runs.
    """

    def __init__(self, num_hosts: int, rate: str, images: Path, folder: Path):
        self.num_hosts, self._folder = num_hosts, folder
        self._number = 0
        folder.mkdir()
        self._lab = Lab(num_hosts, rate)
        try:
            with open(folder / "errors", "wb") as errors:
                self._lab.start(
                    [sys.executable, str(HOST), str(folder), str(images)],
                    env={"OMP_NUM_THREADS": "1", "THINWIRE_PROGRESS": "0"},
                    stdout=errors.fileno(),
                    stderr=errors.fileno(),
                )
        except BaseException:
            self._lab.close()
            raise

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        self._lab.close()

    def measured(self, run: Run, beside: bool = True) -> list[dict[str, Any]] | str:
        """What every host found, by rank (alone: the first only), or why there is nothing.

        Args:
            run: what is trained.
            beside: whether the other hosts do the same beside one that trains alone.
        """
        place = self._folder / f"run{self._number}"
        place.mkdir()
        wanted = 1 if run.kind == "alone" else self.num_hosts
        for rank in range(wanted if not beside else self.num_hosts, self.num_hosts):
            (place / f"without.{rank}").touch()
        asked = {**dataclasses.asdict(run), "port": FIRST_PORT + self._number}
        self._number += 1
        (place / "draft").write_text(json.dumps(asked))
        (place / "draft").rename(place / "asked")
        try:
            return self._wait(place, wanted, run)
        finally:
            (place / "over").touch()

    def _wait(self, place: Path, wanted: int, run: Run) -> list[dict[str, Any]] | str:
        # Tests are not in `longest`: there may be as many of them as there are batches to do.
        until = time.monotonic() + START + 3 * run.longest + 5.0 * run.most / run.every
        while True:
            ended = [place / f"ended.{rank}" for rank in range(wanted)]
            codes = [int(file.read_text() or 1) for file in ended if file.exists()]
            if any(codes):
                time.sleep(5 * POLL)  # for the others to say who it was
                return self._last_words()
            if len(codes) == wanted:
                found = [place / f"found.{rank}" for rank in range(wanted)]
                return [json.loads(file.read_text()) for file in found]
            if time.monotonic() > until:
                return "gave no result in time"
            time.sleep(POLL)

    def _last_words(self) -> str:
        said = (self._folder / "errors").read_text(errors="replace").splitlines()
        lines = [line for line in said if line]
        told = [line for line in lines if "Error: " in line] or lines
        return told[-1].rsplit("Error: ", 1)[-1].strip()[:160] if told else "ended without a word"
