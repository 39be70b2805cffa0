"""Scripts as users start them: alone and under torchrun, ending well and badly."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/train_digits.py"

SCRIPT = """
import sys, time
import torch
import thinwire as tw

how = sys.argv[1]
torch.manual_seed(tw.rank())
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = tw.distribute(model, optimizer, method="localsgd", every=4, deadline=30)
for step in range(6 - tw.rank()):
    if how == "raise" and tw.rank() == 1 and step == 4:
        raise ValueError("a bad batch")
    optimizer.zero_grad()
    model(torch.randn(3, 4)).square().sum().backward()
    optimizer.step()
if how != "forget":
    tw.finish()
print("the end of", tw.rank(), model.weight.sum().item())
"""


def start(
    *command: str | Path, processes: int = 0, logs: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run to its end; with `logs`, each rank's standard error goes into a file there."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    launcher += ["--nproc-per-node", str(processes)]
    launcher += ["--log-dir", str(logs), "--redirects", "2"] if logs else []
    words = [sys.executable, *(launcher if processes else []), *map(str, command)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(words, capture_output=True, text=True, timeout=120, env=env)


@pytest.mark.slow
def test_the_example_learns_alone():
    done = start(EXAMPLE, "--epochs", "4")
    assert done.returncode == 0, done.stderr
    accuracy, ranks = re.findall(r"test accuracy (\S+), (\d) ranks", done.stdout)[0]
    assert float(accuracy) > 0.9
    assert ranks == "1"
    assert done.stdout.count("epoch") == 4


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("method", ["ssgd", "localsgd"])
def test_the_same_example_learns_under_torchrun(method: str):
    done = start(EXAMPLE, "--epochs", "6", "--method", method, processes=3)
    assert done.returncode == 0, done.stderr
    accuracy, ranks = re.findall(r"test accuracy (\S+), (\d) ranks", done.stdout)[0]
    assert float(accuracy) > 0.9
    assert ranks == "3"
    assert done.stdout.count("epoch") == 6


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    return file


@pytest.mark.slow
@pytest.mark.distributed
def test_an_exception_without_a_with_block_is_told_to_all(script: Path, tmp_path: Path):
    done = start(script, "raise", processes=3, logs=tmp_path / "logs")
    assert done.returncode == 1
    text = r"PeerDiedError: rank 1 .*failed at step \d: ValueError: a bad batch"
    said = [log.read_text() for log in sorted(tmp_path.glob("logs/*/attempt_0/*/stderr.log"))]
    assert [bool(re.search(text, one)) for one in said] == [True, False, True], said
    root = done.stderr[done.stderr.index("Root Cause") :]
    assert re.search(r"rank\s*: 1", root), root
    assert "SIGABRT" not in done.stderr
    assert "the end" not in done.stdout


@pytest.mark.slow
@pytest.mark.distributed
def test_a_forgotten_finish_is_made_good_at_the_end_of_the_program(script: Path):
    done = start(script, "forget", processes=2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the end of") == 2
    assert "finish() was not called" in done.stderr
