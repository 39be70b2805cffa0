"""What each host of `benchmarks/cifar_script.py` runs: an ordinary training script.

It trains alone, by PyTorch's DistributedDataParallel over gloo, or by `tw.distribute`; all else is
the same text. After every so many batches rank 0 tests, with the clock stopped; the hosts wait for
each other there, and for the word to go on or to stop, through files that are no part of the
network under test. Each run is a process of its own, forked from one that has loaded everything.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import thinwire as tw
from netns import on_the_wire
from thinwire.compress._native import kernels
from thinwire.tasks.models import ResNet20, cifar_cnn

MODELS = {"cnn": cifar_cnn, "resnet20": ResNet20}
OWN_MOMENTUM = ("dgc",)
"""Methods that have momentum themselves."""

SEED, MOMENTUM, POLL, PATIENCE = 0, 0.9, 0.002, 300.0
PR_SET_PDEATHSIG = 1


class Clock:
    """Seconds that the training takes; stands still while tests are made."""

    def __init__(self) -> None:
        self.seconds, self._began = 0.0, 0.0

    def start(self) -> None:
        """Go on."""
        self._began = time.perf_counter()

    def stop(self) -> float:
        """Stand still; the seconds so far."""
        self.seconds += time.perf_counter() - self._began
        return self.seconds


class Gate:
    """Where the hosts wait for each other, and for rank 0's word.

    Args:
        folder: that all hosts of the run see.
        rank: of this host.
        size: hosts that train together; 1: nobody is waited for.
    """

    def __init__(self, folder: Path, rank: int, size: int):
        self._folder, self._rank, self._size = folder, rank, size

    def arrive(self, batches: int) -> None:
        """Block, on rank 0 until all are here; on the others not."""
        if self._size == 1:
            return
        (self._folder / f"here.{batches}.{self._rank}").touch()
        if self._rank == 0:
            for rank in range(self._size):
                _wait_for(self._folder / f"here.{batches}.{rank}")

    def say(self, batches: int, go_on: bool) -> None:
        """Rank 0's word; appears at once and whole."""
        draft = self._folder / "word"
        draft.write_text("go" if go_on else "stop")
        draft.rename(self._folder / f"word.{batches}")

    def word(self, batches: int) -> bool:
        """Block until rank 0 has said whether to go on."""
        path = self._folder / f"word.{batches}"
        _wait_for(path)
        return path.read_text() == "go"


def _wait_for(path: Path) -> None:
    until = time.monotonic() + PATIENCE
    while not path.exists():
        if time.monotonic() > until:
            raise TimeoutError(f"{path.name} was not there within {PATIENCE:.0f} s")
        time.sleep(POLL)


def batches_of(
    x: torch.Tensor, y: torch.Tensor, batch: int, rank: int, size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's part of batch after batch, epoch after epoch, images mirrored at random."""
    own = batch // size
    for epoch in range(1_000_000):
        draw = torch.Generator().manual_seed(1000 * SEED + epoch)
        order = torch.randperm(len(y), generator=draw)
        mirrored = torch.rand(len(y), generator=draw) < 0.5
        for start in range(0, len(y) - batch + 1, batch):
            at = order[start + rank * own : start + (rank + 1) * own]
            images = x[at]
            flip = mirrored[at]
            images[flip] = images[flip].flip(3)
            yield images, y[at]


def accuracy_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Part of the test images that are named right."""
    model.eval()
    with torch.no_grad():
        right = sum(
            int((model(images).argmax(dim=1) == labels).sum())
            for images, labels in zip(x.split(250), y.split(250), strict=True)
        )
    model.train()
    return right / len(y)


class Script:
    """The training script.

    Args:
        asked: of a run, see `cifar_script.Run`.
        folder: of the run.
    """

    def __init__(self, asked: dict[str, Any], folder: Path):
        self.asked, self.folder = asked, folder
        self.kind, self.accumulate = asked["kind"], asked["accumulate"]
        self.rank, self.size = (0, 1) if self.kind == "alone" else (tw.rank(), tw.size())
        torch.manual_seed(SEED)
        self.model: nn.Module = MODELS[asked["model"]]()
        momentum = 0.0 if asked["method"] in OWN_MOMENTUM else MOMENTUM
        self.optimizer = torch.optim.SGD(self.model.parameters(), asked["lr"], momentum)
        self.train_on: nn.Module = self.model
        if self.kind == "ddp":
            dist.init_process_group("gloo", timeout=timedelta(seconds=PATIENCE))
            self.train_on = nn.parallel.DistributedDataParallel(self.model)
        elif self.kind == "ours":
            tw.distribute(self.model, self.optimizer, method=asked["method"], **asked["settings"])

    def step(self, number: int, images: torch.Tensor, labels: torch.Tensor) -> None:
        """One batch; of `accumulate` batches the last one updates."""
        last = number % self.accumulate == 0
        quiet = self.kind == "ddp" and not last
        with self.train_on.no_sync() if quiet else contextlib.nullcontext():  # pyright: ignore
            loss = nn.functional.cross_entropy(self.train_on(images), labels)
            (loss / self.accumulate).backward()
        if last:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def train(self, data: dict[str, torch.Tensor]) -> dict[str, Any]:
        """Until rank 0 says stop; what it took."""
        gate, clock = Gate(self.folder, self.rank, self.size), Clock()
        mirror = batches_of(data["x"], data["y"], self.asked["batch"], self.rank, self.size)
        history: list[tuple[int, float, float]] = []
        gate.arrive(0)  # everything is loaded and connected
        if self.rank == 0:
            gate.say(0, True)
        gate.word(0)
        before = on_the_wire()
        clock.start()
        number = 0
        while True:
            number += 1
            self.step(number, *next(mirror))
            if number % self.asked["every"]:
                continue
            gate.arrive(number)
            seconds = clock.stop()
            if self.rank == 0:
                history.append((number, seconds, self._tested(data)))
                gate.say(number, self._go_on(*history[-1]))
            if not gate.word(number):
                break
            clock.start()
        return {"history": history, "sent": on_the_wire() - before, "batches": number}

    def _tested(self, data: dict[str, torch.Tensor]) -> float:
        # Nobody else computes while this is done; it is not in the times.
        torch.set_num_threads(2)
        accuracy = accuracy_of(self.model, data["test_x"], data["test_y"])
        torch.set_num_threads(1)
        return accuracy

    def _go_on(self, batches: int, seconds: float, accuracy: float) -> bool:
        asked = self.asked
        over = batches + asked["every"] > asked["most"] or seconds > asked["longest"]
        return accuracy < asked["target"] and not over

    def close(self) -> None:
        """The end of the script."""
        if self.kind == "ddp":
            dist.destroy_process_group()
        elif self.kind == "ours":
            tw.finish()


def train(place: Path, data: dict[str, torch.Tensor]) -> None:
    """One run; what it took goes to a file with the host's rank at the end of its name."""
    asked = json.loads((place / "asked").read_text())
    os.environ["MASTER_PORT"] = str(asked["port"])
    script = Script(asked, place)
    if asked["kind"] == "alone" and tw.rank():  # the same work beside it, until it is ended
        for number, batch in enumerate(batches_of(data["x"], data["y"], asked["batch"], 0, 1), 1):
            script.step(number, *batch)
    found = script.train(data)
    script.close()
    draft = place / f"draft.{script.rank}"
    draft.write_text(json.dumps(found))
    draft.rename(place / f"found.{script.rank}")


def in_a_process_of_its_own(place: Path, data: dict[str, torch.Tensor]) -> int:
    """A run in a process that has everything loaded; its number."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # not to outlive the lab
        train(place, data)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def ended(child: int) -> int | None:
    """The exit code of a child, None while it runs."""
    done, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def main(folder: Path, images: Path) -> None:
    """Runs one after the other, as they are asked for, until the lab is taken down."""
    torch.set_num_threads(1)
    kernels()
    parent = os.getppid()
    data = torch.load(images, weights_only=True)
    for number in itertools.count():
        place = folder / f"run{number}"
        while not (place / "asked").exists():
            if os.getppid() != parent:
                return
            time.sleep(POLL)
        child = None
        if not (place / f"without.{tw.rank()}").exists():
            child = in_a_process_of_its_own(place, data)
        while not (place / "over").exists():
            code = ended(child) if child else None
            if code is not None:
                (place / f"ended.{tw.rank()}").write_text(str(code))
                child = None
            time.sleep(POLL)
        if child and ended(child) is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
