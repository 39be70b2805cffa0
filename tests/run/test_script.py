"""Scripts as users start them on the virtual cluster: the bits of torchrun, well and badly."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from thinwire.batches import SampleStream
from thinwire.cluster import load_cluster
from thinwire.methods import METHODS, build_method
from thinwire.report import RunRecord, read_record
from thinwire.tasks import load_task
from thinwire.wire import Comm
from thinwire.wire.virtual import World
from thinwire.worker import Optimizer, Plan, Replica, Worker

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

EXAMPLE = Path(__file__).parents[2] / "examples/train_digits.py"
THINWIRE = [sys.executable, "-m", "thinwire"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr",
            "127.0.0.1", "--nproc-per-node"]  # fmt: skip

EVERY_METHOD = """
import sys
import torch
import thinwire as tw
from thinwire.flat import digest

for name, settings in CASES:
    torch.manual_seed(tw.rank())
    model = torch.nn.Sequential(
        torch.nn.Conv1d(1, 4, 3), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Dropout(0.2), torch.nn.Linear(24, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    # These send during backward, before any clipping.
    overlapped = name in ("wfbp", "bytescheduler", "lags")
    more = {"accumulate": 2} if overlapped else {}
    model, optimizer = tw.distribute(model, optimizer, method=name, **settings, **more)
    for step in range(7 - tw.rank()):  # of unequal length
        optimizer.zero_grad()
        for part in range(2):
            x = torch.randn(5, 1, 8)
            (torch.nn.functional.cross_entropy(model(x), x[:, 0, :3].argmax(1)) / 2).backward()
        if not overlapped:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    tw.finish()
    with open(f"result-{tw.rank()}", "a") as file:
        print(name, settings, digest(torch.cat([p.data.view(-1) for p in model.parameters()])),
              file=file)
"""

MISHAPS = """
import os, sys, time
from pathlib import Path
import torch
import thinwire as tw

how = sys.argv[1]
Path(f"pid{tw.rank()}").write_text(str(os.getpid()))
if how == "early" and tw.rank() == 1:
    raise KeyError("nothing there")
model = torch.nn.Linear(4, 2)
lr = 0.3 if (how, tw.rank()) == ("differ", 1) else 0.1
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
model, optimizer = tw.distribute(model, optimizer, method="localsgd", every=4)
for step in range(6):
    if tw.rank() == 1 and step == 4:
        if how == "raise":
            raise ValueError("a bad batch")
        if how == "kill":
            os.kill(os.getpid(), 9)
        if how == "sleep":
            Path("asleep").touch()
            time.sleep(300)
        if how == "traffic":
            import torch.distributed as dist
            dist.init_process_group("gloo")
            dist.barrier() if False else dist.all_reduce(torch.ones(1))
        if how == "graph":
            torch.cuda.CUDAGraph()
    optimizer.zero_grad()
    model(torch.randn(3, 4)).square().sum().backward()
    optimizer.step()
if how != "forget":
    tw.finish()
print("the end of", tw.rank())
"""


DRIVER = """
import json, os, sys
from thinwire.cli.main import _code
for name, words in json.loads(sys.argv[1]).items():
    for number, stream in ((1, "out"), (2, "err")):
        kept = os.open(f"{name}.{stream}", os.O_WRONLY | os.O_CREAT)
        os.dup2(kept, number)
        os.close(kept)
    sys.argv = ["thinwire", "run", "--cluster", "office", "--out", name, *words]
    code = _code()
    with open(f"{name}.code", "w") as file:
        file.write(str(code))
"""


def virtually(folder: Path, runs: dict[str, list[str]]) -> dict[str, Done]:
    """Several runs one after the other in one process, which spares imports."""
    start(folder, sys.executable, "-c", DRIVER, json.dumps(runs))
    return {
        name: Done(*(read(folder / f"{name}.{kind}") for kind in ("code", "out", "err")))
        for name in runs
    }


def read(file: Path) -> str:
    return file.read_text() if file.exists() else ""


class Done(NamedTuple):
    """What a command came to."""

    code: str
    out: str
    err: str


def start(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = list(map(str, command))
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=240)


def virtual(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return start(folder, *THINWIRE, "run", "--cluster", "office", *arguments)


def script(folder: Path, text: str) -> Path:
    file = folder / "script.py"
    file.write_text(text)
    return file


def only_run(folder: Path) -> RunRecord:
    [run] = read_record(folder).runs
    return run


# As under torchrun.


def results(folder: Path, size: int, *command: str | Path) -> list[str]:
    """What each rank of a script has written, by rank."""
    folder.mkdir()
    done = start(folder, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    return [(folder / f"result-{rank}").read_text() for rank in range(size)]


def cases() -> list[tuple[str, dict[str, object]]]:
    more = [("ssgd", {"accumulate": 3}), ("localsgd", {"every": 3}), ("lags", {"dense_below": 10})]
    names = [n for n, cls in METHODS.items() if cls.traits.synchronous and n != "alone"]
    return [*((name, {}) for name in names), *more]


@pytest.mark.parametrize("size", [2, 3])
def test_every_synchronous_method_ends_as_under_torchrun_to_the_bit(size: int, tmp_path: Path):
    file = script(tmp_path, f"CASES = {cases()!r}\n{EVERY_METHOD}")
    real = results(tmp_path / "real", size, *TORCHRUN, str(size), file)
    assert real[0].count("\n") == len(cases())
    words = [*THINWIRE, "run", "-c", "office", "--workers", str(size), file]
    assert results(tmp_path / "virtual", size, *words) == real


def test_the_example_ends_as_under_torchrun_and_learns(tmp_path: Path):
    arguments = ["--epochs", "5"]
    printed = []
    launchers = [*TORCHRUN, "3"], [*THINWIRE, "run", "-c", "office", "--workers", "3"]
    for command in launchers:
        done = start(tmp_path, *command, EXAMPLE, *arguments)
        assert done.returncode == 0, done.stderr
        printed.append(re.findall(r"epoch.*|test accuracy.*", done.stdout))
    assert printed[0] == printed[1]
    accuracy = re.findall(r"test accuracy (\S+), 3 ranks", printed[1][-1])
    assert float(accuracy[0]) > 0.85


OWN_LOOP = """
import sys, torch, thinwire as tw
from thinwire.batches import SampleStream, batch_slice
from thinwire.seeds import seed_for
from thinwire.tasks import load_task

task = load_task("digits")
x, y = task.train_data()
name, settings = sys.argv[1], eval(sys.argv[2])
stream = SampleStream(task.num_train, 0)
torch.manual_seed(seed_for(0, "model") if tw.rank() == 0 else tw.rank())
model = task.model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer = tw.distribute(model, optimizer, method=name, **settings)
for step in range(12):
    index = stream.take(*batch_slice(step, tw.rank(), (8,) * tw.size()))
    optimizer.zero_grad()
    task.loss(model, x[index], y[index]).backward()
    optimizer.step()
tw.finish()
"""


TIMED: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("ssgd", {}),
    "accumulating": ("ssgd", {"accumulate": 3}),
    "topk": ("topk", {"density": 0.02}),
    "gtopk": ("gtopk", {"density": 0.02}),
    "localsgd": ("localsgd", {"every": 4}),
    "wfbp": ("wfbp", {}),
    "wfbp-by-time": ("wfbp", {"groups": "optimal"}),
    "lags": ("lags", {"density": 0.02}),
    "lags-by-time": ("lags", {"density": 0.02, "adaptive": True, "delta_every": 3}),
}


def test_the_virtual_time_is_the_program_forms_to_the_nanosecond(tmp_path: Path):
    file = script(tmp_path, OWN_LOOP)
    runs = {
        key: ["--workers", "3", str(file), name, repr(settings)]
        for key, (name, settings) in TIMED.items()
    }
    done = virtually(tmp_path, runs)
    for key, (name, settings) in TIMED.items():
        assert done[key].code == "0", done[key]
        end = only_run(tmp_path / key).end
        assert end is not None
        time, digest, sent = program_form(name, settings)
        assert (end.time, end.digest, end.sent) == (time, digest, sent), key


def program_form(name: str, settings: dict[str, object]) -> tuple[float, str, list[int]]:
    """The same training in thinwire's own loop: virtual time, digest, bytes."""
    task, stream = load_task("digits"), SampleStream(load_task("digits").num_train, 0)
    plan = Plan(
        shares=(8,) * 3,
        steps=12,
        speeds=(1.0,) * 3,
        optimizer=Optimizer(lr=0.05),
        evaluate_at="call",
    )

    def worker(comm: Comm) -> str:
        replica = Replica(task, plan, comm, lambda kind, values: None)
        build_method(name, settings).worker(Worker(comm, replica, stream))
        return replica.digest

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        world = World(load_cluster("office").select(range(3)))
        digests = world.run(worker)
    finally:
        torch.set_num_threads(threads)
    return world.elapsed, digests[0], [e.meter.sent for e in world.endpoints]


def test_two_runs_are_identical_with_a_server_too(tmp_path: Path):
    words = ["--workers", "4", str(EXAMPLE), "--epochs", "2", "--method", "asgd", "--momentum", "0"]
    done = virtually(tmp_path, {"first": words, "second": words})
    found = []
    for name, how in done.items():
        assert how.code == "0", how
        run = only_run(tmp_path / name)
        assert run.end is not None
        assert run.end.server_sent > 0
        facts = run.end.time, run.end.sent, run.end.messages, run.end.waited, run.end.steps
        found.append((facts, run.spans, re.findall(r"epoch.*|test.*", how.out)))
    assert found[0] == found[1]


# What is left behind.


def test_output_is_labelled_and_kept_by_rank_and_the_report_can_be_made(tmp_path: Path):
    file = script(tmp_path, MISHAPS)
    done = virtual(tmp_path, "--workers", "3", "--out", "out", file, "well")
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        assert f"[{rank}] the end of {rank}\n" in done.stdout
        assert (tmp_path / f"out/rank-{rank}.log").read_text() == f"the end of {rank}\n"
    run = only_run(tmp_path / "out")
    assert (run.start.mode, run.start.label, run.status) == ("virtual", "script", "ok")
    assert run.start.num_params == 10
    assert run.end is not None
    assert len(run.end.sent) == 3
    assert run.end.steps == 6
    report = start(tmp_path, *THINWIRE, "report", "out")
    assert report.returncode == 0, report.stderr
    assert "no accuracy" in report.stdout
    assert (tmp_path / "out/report.html").stat().st_size > 10_000


PLAIN = """
import os, sys
import torch
import torch.distributed as dist
import thinwire as tw

class Net(torch.nn.Linear):
    pass

assert __name__ == "__main__" and sys.modules["__main__"].Net is Net
assert sys.argv[1:] == ["--cluster", "mine"], sys.argv
assert (tw.rank(), tw.size()) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
dist.init_process_group("gloo")
assert (dist.get_rank(), dist.get_world_size()) == (tw.rank(), tw.size())
sampler = torch.utils.data.DistributedSampler(list(range(8)))
dist.barrier()
with open(f"left-open-{tw.rank()}", "w") as kept:
    pass
unclosed = open(f"left-open-{tw.rank()}", "w")
unclosed.write("written " * len(list(sampler)))
model = Net(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
with tw.distribute(model, optimizer):
    for x in torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=4, num_workers=1):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
dist.barrier()
sys.exit(0)
"""


def test_a_script_finds_itself_where_torchrun_would_have_put_it(tmp_path: Path):
    done = virtual(tmp_path, "--workers", "2", script(tmp_path, PLAIN), "--cluster", "mine")
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        assert (tmp_path / f"left-open-{rank}").read_text() == "written " * 4


# What goes wrong.

WRONG: dict[str, tuple[int, str]] = {
    "raise": (1, "error: rank 1 failed at step 4: ValueError: a bad batch"),
    "kill": (1, "error: rank 1 was killed by SIGKILL, after 4 steps"),
    "early": (1, "error: rank 1 ended with exit code 1"),
    "differ": (2, r"error: the optimizers differ: 'lr' of parameter group 0 is 0\.\d on rank"),
    "traffic": (1, r"torch\.distributed\.all_reduce\(\) is not to be had on the virtual cluster"),
    "graph": (1, "a CUDA graph is not to be had on the virtual cluster"),
}


def test_a_failure_of_one_rank_ends_all_and_names_it(tmp_path: Path):
    file = script(tmp_path, MISHAPS)
    runs = {how: ["--workers", "3", str(file), how] for how in WRONG}
    runs["sleep"] = ["--workers", "3", "--deadline", "2", str(file), "sleep"]
    runs["forget"] = ["--workers", "2", str(file), "forget"]
    for how, done in virtually(tmp_path, runs).items():
        code, text = WRONG.get(how, (1, "error: rank 1 has been busy with its own code for 2 s"))
        if how == "forget":
            assert done.code == "0"
            assert "finish() was not called" in done.out
            continue
        assert done.code == str(code), done
        assert re.search(text, done.err), done
        assert "Traceback" not in done.err
        assert "the end of" not in done.out
        told = re.findall(r"^\[[02]\] (\w+Error): ", done.out, re.MULTILINE)
        kind = {"differ": "InputError", "sleep": "DeadlineError"}.get(how, "PeerDiedError")
        assert told == [kind] * 2, done
        assert only_run(tmp_path / how).status == "failed"
    assert alive(tmp_path) == []


def alive(folder: Path) -> list[int]:
    """The ranks of a script that still run."""
    pids = [int(file.read_text()) for file in folder.glob("pid*")]
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_the_starter_no_process_is_left(number: signal.Signals, tmp_path: Path):
    words = [*THINWIRE, "run", "-c", "office", "--workers", "3", "--out", "out"]
    process = subprocess.Popen(
        [*words, str(script(tmp_path, MISHAPS)), "sleep"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: (tmp_path / "asleep").exists())
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    until(lambda: not alive(tmp_path))
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    if number != signal.SIGKILL:
        assert "Traceback" not in err
        assert only_run(tmp_path / "out").status == "interrupted"
