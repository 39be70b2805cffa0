"""The examples, unmodified, in all three ways: alone, under torchrun, on the virtual cluster."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from thinwire.report import RunRecord, read_record

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
CIFAR = ["--synthetic", "80", "--blocks", "1", "--epochs", "1", "--batch", "20"]
SMALL = {"train_cifar10.py": CIFAR, "train_digits.py": ["--epochs", "1", "--batch", "256"]}


def start(folder: Path, *words: str | Path, **variables: str) -> str:
    """Run to its end, which must be a good one; what it printed."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_of(folder: Path) -> RunRecord:
    (run,) = read_record(folder).runs
    assert run.status == "ok"
    return run


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("example", "method"), [("train_cifar10.py", "ssgd"), ("train_digits.py", "gtopk")]
)
def test_an_example_ends_on_real_processes_with_the_bits_of_the_virtual_cluster(
    tmp_path: Path, example: str, method: str
):
    command = [EXAMPLES / example, *SMALL[example], "--method", method]
    start(tmp_path, *TORCHRUN, "--nproc-per-node", "2", *command, THINWIRE_RECORD="real")
    start(
        tmp_path, "-m", "thinwire", "run", "--cluster", "office", "--workers", "2",
        "--out", "virtual", *command,
    )  # fmt: skip
    real, virtual = run_of(tmp_path / "real"), run_of(tmp_path / "virtual")
    assert real.end is not None
    assert virtual.end is not None
    assert len(real.end.digest) == 16
    assert (real.end.digest, real.end.steps) == (virtual.end.digest, virtual.end.steps)
    assert real.end.agree
    assert virtual.end.agree
    for kind in ("steps", "evals"):
        told, expected = getattr(real, kind), getattr(virtual, kind)
        assert [(t.step, t.loss) for t in told if t.loss == t.loss] == [
            (e.step, e.loss) for e in expected if e.loss == e.loss
        ]
    if example == "train_cifar10.py":
        assert [e.accuracy for e in real.evals] == [e.accuracy for e in virtual.evals] != []


def test_the_cifar_example_learns_alone(tmp_path: Path):
    words = ["--synthetic", "160", "--blocks", "1", "--epochs", "6", "--batch", "20"]
    told = start(tmp_path, EXAMPLES / "train_cifar10.py", *words)
    assert float(re.findall(r"1 ranks, ssgd: test accuracy (\S+)", told)[0]) > 0.5


def test_the_cifar_example_reads_the_binary_version(tmp_path: Path):
    draw = np.random.default_rng(0)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        records = draw.integers(0, 256, (8, 1 + 3 * 32 * 32), dtype=np.uint8)
        records[:, 0] %= 10
        records.tofile(tmp_path / f"{name}.bin")
    words = ["--data", tmp_path, "--blocks", "1", "--epochs", "1", "--batch", "20"]
    told = start(tmp_path, EXAMPLES / "train_cifar10.py", *words)
    assert "1 ranks, ssgd" in told
