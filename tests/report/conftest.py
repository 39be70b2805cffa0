"""Records built by hand, with numbers a test can check in its head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from thinwire.report import End, Eval, Header, Record, Run, RunRecord
from thinwire.testing.records import write_example_record


def _header(**changes: Any) -> Header:
    fields: dict[str, Any] = {
        "created": "2026-01-05T09:00:00+00:00",
        "command": ["thinwire", "compare"],
        "settings": {},
        "cluster": "",
        "versions": {"thinwire": "0.1.0"},
        "machine": {"cores": 2},
    }
    return Header(**{**fields, **changes})


def _run(
    label: str,
    seed: int = 0,
    *,
    accuracies: Sequence[float] = (0.5, 0.9),
    every: float = 1.0,
    status: str | None = "ok",
    workers: int = 2,
    **end: Any,
) -> RunRecord:
    """A run evaluated every `every` seconds; `status` None never ended."""
    name = f"{label}/{seed}"
    start = Run(
        run=name,
        label=label,
        method=label.split()[0],
        seed=seed,
        mode="virtual",
        settings={},
        nodes=[f"n{rank}" for rank in range(workers)],
        num_params=10,
    )
    evals = [
        Eval(
            run=name,
            step=10 * (i + 1),
            time=every * (i + 1),
            samples=320 * (i + 1),
            sent=100 * (i + 1),
            accuracy=accuracy,
            loss=1.0 - accuracy,
        )
        for i, accuracy in enumerate(accuracies)
    ]
    time = every * len(accuracies)
    fields = {"steps": 10 * len(accuracies), "wall": 1.0, **end}
    ended = None if status is None else End(run=name, status=status, time=time, **fields)
    return RunRecord(start=start, evals=evals, end=ended)


def _record(*runs: RunRecord, **header: Any) -> Record:
    return Record(folder=Path("somewhere"), headers=[_header(**header)], runs=list(runs))


@pytest.fixture
def make_header() -> Callable[..., Header]:
    return _header


@pytest.fixture
def make_run() -> Callable[..., RunRecord]:
    return _run


@pytest.fixture
def make_record() -> Callable[..., Record]:
    return _record


@pytest.fixture(scope="session")
def example_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The made-up record of six methods with three seeds; not to be written to."""
    return write_example_record(tmp_path_factory.mktemp("example"))
