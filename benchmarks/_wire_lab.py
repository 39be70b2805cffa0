"""Runs rows of `benchmarks/wire.py` on labs of network namespaces, and outlives those that fail."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _wire_rows import Row
from netns import Lab

__all__ = ["Found", "run_rows"]

HOST = Path(__file__).with_name("_wire_host.py")
POLL = 0.2
START = 120.0
"""Seconds that importing and connecting may take, on a machine with far fewer cores than hosts."""

Found = list[dict[str, Any]] | str
"""What every host measured, by rank, or why there is nothing."""


def run_rows(rows: list[Row], tell: Callable[[str], None]) -> Iterator[tuple[Row, Found]]:
    """Each row with what was found, in the order given.

    Args:
        rows: those that follow each other with equal `lab` share their processes.
        tell: given a line of progress at a time.
    """
    for (hosts, rate, delay, _), some in itertools.groupby(rows, lambda row: row.lab):
        left = list(some)
        where = f"{hosts} hosts, {rate}" + (f", {1e3 * delay:g} ms one way" if delay else "")
        tell(f"{where}: starting")
        while left:
            with Lab(hosts, rate, delay=delay) as lab, tempfile.TemporaryDirectory() as folder:
                done = 0
                for row, found in _on_lab(lab, left, Path(folder)):
                    done += 1
                    failed = f": {found}" if isinstance(found, str) else ""
                    tell(f"{where}: {row.label} {row.model}{failed}")
                    yield row, found
            left = left[done:]


def _on_lab(lab: Lab, rows: list[Row], folder: Path) -> Iterator[tuple[Row, Found]]:
    """The rows up to the first that fails, that one included."""
    asked = [{"id": i, **dataclasses.asdict(row)} for i, row in enumerate(rows)]
    (folder / "rows").write_text(json.dumps(asked))
    threads = str(max(1, (os.cpu_count() or 1) // lab.num_hosts))
    with open(folder / "errors", "wb") as errors:
        processes = lab.start(
            [sys.executable, str(HOST), str(folder / "rows"), str(folder / "found")],
            env={"OMP_NUM_THREADS": threads},
            stdout=errors.fileno(),
            stderr=errors.fileno(),
        )
    began = START
    for i, row in enumerate(rows):
        until = time.monotonic() + row.limit + began
        began = 0.0
        while True:
            found = _lines(folder, lab.num_hosts, i)
            if found is not None:
                yield row, found
                break
            codes = [process.poll() for process in processes]
            if any(codes):
                time.sleep(2 * POLL)  # for the others to say who it was
                yield row, _last_words(folder)
                return
            if time.monotonic() > until:
                yield row, f"gave no result within {row.limit:.0f} s"
                return
            time.sleep(POLL)
    for process in processes:
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:  # the lab ends it
            break


def _lines(folder: Path, num_hosts: int, row: int) -> list[dict[str, Any]] | None:
    """What all hosts found for a row, once all have."""
    found = []
    for rank in range(num_hosts):
        path = folder / f"found.{rank}"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        if len(lines) <= row or not lines[row].endswith("\n"):
            return None
        found.append(json.loads(lines[row]))
    return found


def _last_words(folder: Path) -> str:
    lines = [line for line in (folder / "errors").read_text(errors="replace").splitlines() if line]
    told = [line for line in lines if "Error: " in line] or lines
    # Errors of errors: the last one is the cause.
    return told[0].rsplit("Error: ", 1)[-1].strip()[:120] if told else "ended without a word"
