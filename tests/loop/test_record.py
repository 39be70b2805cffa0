"""What a loop of one's own leaves behind and tells meanwhile: record, view, scalars."""

from __future__ import annotations

import gc
import io
import math
import os
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

import thinwire as tw
from thinwire.errors import InputError, PeerDiedError
from thinwire.loop._interface import Counted, counters, interface_of
from thinwire.report import read_record, render
from thinwire.testing.processes import run_processes


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 2)


def train(steps: int, *, log: bool = True, fail_at: int = -1, **options) -> nn.Module:
    """A loop that logs its step's number as its loss."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tw.distribute(model, optimizer, **options):
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            model(torch.ones(8, 4)).square().mean().backward()
            if step == fail_at:
                raise ValueError("a bad batch")
            optimizer.step()
            if log:
                tw.log(loss=torch.tensor(float(step)), lr=0.1)
    return model


def test_a_record_holds_every_tenth_step_with_its_own_loss(tmp_path: Path):
    train(25, record=tmp_path)
    run = read_record(tmp_path).runs[0]
    assert [(line.step, line.loss) for line in run.steps] == [(1, 1.0), (10, 10.0), (20, 20.0)]
    assert all(line.values["lr"] == pytest.approx(0.1) for line in run.steps)
    assert all(line.values["step_time"] > 0 for line in run.steps)
    assert [line.time for line in run.steps] == sorted(line.time for line in run.steps)
    assert run.end is not None
    assert (run.status, run.end.steps, run.end.samples) == ("ok", 25, 25 * 8)
    assert run.end.phases[0]["compute"] > 0
    assert run.start.mode == "real"
    assert run.start.num_params == 10


def test_a_loss_that_is_logged_before_the_step_is_that_steps(tmp_path: Path):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tw.distribute(model, optimizer, record=tmp_path, log_every=2):
        for step in range(1, 6):
            optimizer.zero_grad()
            model(torch.ones(8, 4)).square().mean().backward()
            tw.log(loss=step)
            optimizer.step()
    run = read_record(tmp_path).runs[0]
    assert [(line.step, line.loss) for line in run.steps] == [(1, 1.0), (2, 2.0), (4, 4.0)]


def test_steps_without_a_loss_have_their_times_and_a_report(tmp_path: Path):
    train(12, log=False, record=tmp_path)
    run = read_record(tmp_path).runs[0]
    assert [math.isnan(line.loss) for line in run.steps] == [True, True]
    render(tmp_path)
    assert "nan" not in (tmp_path / "report.html").read_text().lower()


def test_an_accuracy_is_an_evaluation_also_after_the_end(tmp_path: Path):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tw.distribute(model, optimizer, record=tmp_path)
    for _ in range(3):
        model(torch.ones(8, 4)).square().mean().backward()
        optimizer.step()
    tw.log(accuracy=0.25, loss=1.5)
    tw.finish()
    tw.log(accuracy=0.75)
    run = read_record(tmp_path).runs[0]
    told = [(line.step, line.samples, line.accuracy) for line in run.evals]
    assert told == [(3, 24, 0.25), (3, 24, 0.75)]
    assert run.evals[0].loss == 1.5
    assert run.end is not None
    assert run.evals[1].time == run.end.time


@pytest.mark.slow
def test_a_record_keeps_no_model_alive(tmp_path: Path):
    model = train(2, record=tmp_path)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    tw.log(accuracy=0.5)
    assert len(read_record(tmp_path).runs[0].evals) == 1


def test_methods_that_one_folder_is_given_are_compared_there(tmp_path: Path):
    train(3, record=tmp_path)
    train(3, record=tmp_path, method="topk", density=0.5)
    train(3, record=tmp_path, method="topk", density=0.25)
    train(3, record=tmp_path, method="topk", density=0.25)
    record = read_record(tmp_path)
    assert record.labels == ["ssgd", "topk:density=0.5", "topk:density=0.25"]
    assert record.superseded == 1


def test_two_pairs_at_once_have_a_part_of_the_record_each(tmp_path: Path):
    pairs = []
    for name in ("generator", "critic"):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        pairs.append(tw.distribute(model, optimizer, name=name, record=tmp_path))
    for model, optimizer in pairs:
        model(torch.ones(8, 4)).square().mean().backward()
        optimizer.step()
    tw.log(optimizer=pairs[1].optimizer, loss=2.0)
    tw.finish()
    record = read_record(tmp_path)
    assert record.labels == ["ssgd (generator)", "ssgd (critic)"]
    assert math.isnan(record.runs[0].steps[0].loss)
    assert record.runs[1].steps[0].loss == 2.0


def test_the_environment_can_ask_for_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("THINWIRE_RECORD", str(tmp_path / "mine"))
    train(1)
    assert read_record(tmp_path / "mine").runs[0].status == "ok"


def test_a_failure_is_the_records_end(tmp_path: Path):
    with pytest.raises(ValueError, match="a bad batch"):
        train(5, record=tmp_path, fail_at=3)
    end = read_record(tmp_path).runs[0].end
    assert end is not None
    assert (end.status, end.steps, end.error, end.failed_rank) == ("failed", 2, "a bad batch", 0)


def test_logging_changes_nothing_of_the_training(tmp_path: Path):
    plain, told = train(8, log=False), train(8, record=tmp_path)
    assert all(
        torch.equal(a, b) for a, b in zip(plain.parameters(), told.parameters(), strict=True)
    )


@pytest.mark.parametrize("value", ["much", None, torch.ones(2)])
def test_what_is_no_number_is_refused_by_name(tmp_path: Path, value: object):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tw.distribute(model, optimizer, record=tmp_path), pytest.raises(InputError, match="norm"):
        tw.log(norm=value)


def test_without_a_record_a_log_is_nothing(capsys: pytest.CaptureFixture[str]):
    train(2)
    assert capsys.readouterr().err == ""


def test_the_view_tells_the_end_in_plain_lines(capsys: pytest.CaptureFixture[str]):
    train(2, progress=True)
    told = capsys.readouterr().err
    assert told.startswith("ssgd: 2 steps in ")
    assert told.endswith("\n")
    assert "\x1b" not in told


def test_a_progress_bar_of_tqdm_makes_room_for_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    class Bars:
        class tqdm:
            @staticmethod
            def external_write_mode(file):
                import contextlib

                return contextlib.nullcontext(file.write("<cleared>"))

    monkeypatch.setitem(sys.modules, "tqdm", Bars)  # pyright: ignore[reportArgumentType]
    train(1, progress=True)
    assert capsys.readouterr().err.startswith("<cleared>ssgd: 1 steps")


@pytest.mark.parametrize(("said", "shown"), [("1", True), ("0", False)])
def test_the_environment_says_whether_to_show(
    said: str, shown: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("THINWIRE_PROGRESS", said)
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    train(1)
    assert bool(terminal.getvalue()) == shown


def test_bad_wishes_are_refused_by_name(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(InputError, match="log_every = 0"):
        train(1, log_every=0)
    monkeypatch.setenv("THINWIRE_PROGRESS", "yes")
    with pytest.raises(InputError, match="THINWIRE_PROGRESS = 'yes'"):
        train(1)


def test_a_folder_that_cannot_be_written_leaves_the_pair_as_it_was(tmp_path: Path):
    (tmp_path / "file").touch()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InputError, match="cannot be written"):
        tw.distribute(model, optimizer, record=tmp_path / "file")
    assert "step" not in vars(optimizer)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    tw.distribute(model, optimizer, record=tmp_path / "folder")
    tw.finish()
    assert read_record(tmp_path / "folder").runs[0].status == "ok"


def test_missing_tensorboard_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match="pip install tensorboard"):
        train(1, tensorboard=tmp_path)


def test_scalars_are_written_for_tensorboard(tmp_path: Path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train(12, tensorboard=tmp_path)
    events = reader.EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1, 1.0), (10, 10.0)]
    assert {"step_time", "wait_share", "bytes_per_second"} <= set(events.Tags()["scalars"])


def test_interface_counters_are_read_or_said_to_be_missing(tmp_path: Path):
    folder = tmp_path / "eth0" / "statistics"
    folder.mkdir(parents=True)
    (folder / "tx_bytes").write_text("12\n")
    assert counters("eth0", tmp_path) is None
    (folder / "rx_bytes").write_text("34\n")
    assert counters("eth0", tmp_path) == Counted(12, 34)
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") is None


# Several ranks.


def recorded(rank: int, size: int, folder: str) -> tuple[str, str]:
    torch.set_num_threads(1)
    if rank == 0:
        sys.stderr = io.StringIO()
    train(12 - rank, method="topk", density=0.5, record=folder, progress=True, deadline=30)
    return sys.stderr.getvalue() if rank == 0 else "", folder


@pytest.mark.distributed
@pytest.mark.slow
def test_a_record_of_several_ranks_has_all_of_their_bytes(tmp_path: Path):
    (told, _), _ = run_processes(recorded, 2, str(tmp_path), env={"OMP_NUM_THREADS": "1"})
    run = read_record(tmp_path).runs[0]
    end = run.end
    assert end is not None
    assert (run.status, end.steps, end.samples) == ("ok", 12, (12 + 11) * 8)
    assert len(run.start.nodes) == len(end.sent) == len(end.phases) == len(end.waited) == 2
    assert all(sent > 0 for sent in end.sent)
    assert all(0 <= waited <= end.time * 1.5 for waited in end.waited)
    assert end.agree
    assert len(end.digest) == 16
    if end.interfaces:
        assert end.interfaces[0][0] == "lo"
        assert all(
            carried > sent for (_, carried, _), sent in zip(end.interfaces, end.sent, strict=True)
        )
        assert "interface lo" in told
    assert "meter" in told
    assert "meter" in run.notes[0].text


def unequal(rank: int, size: int, folder: str) -> None:
    train(2, record=folder if rank == 0 else None, deadline=30)


@pytest.mark.distributed
@pytest.mark.slow
def test_a_record_on_some_ranks_only_is_refused(tmp_path: Path):
    found = run_processes(unequal, 2, str(tmp_path), env={"OMP_NUM_THREADS": "1"})
    assert all(isinstance(each, tw.ThinwireError) and "record" in str(each) for each in found)


def failing(rank: int, size: int, folder: str) -> None:
    torch.set_num_threads(1)
    train(6, record=folder, deadline=30, fail_at=3 if rank == 1 else -1)


@pytest.mark.distributed
@pytest.mark.slow
def test_a_record_names_the_rank_that_failed(tmp_path: Path):
    found = run_processes(failing, 2, str(tmp_path), env={"OMP_NUM_THREADS": "1"})
    assert isinstance(found[0], PeerDiedError)
    end = read_record(tmp_path).runs[0].end
    assert end is not None
    assert (end.status, end.failed_rank) == ("failed", 1)
    assert "a bad batch" in end.error


def lagging(rank: int, size: int, folder: str) -> list[str]:
    """Rank 1 goes on once rank 0 has been warned, so nobody sleeps."""
    import logging

    said: list[str] = []
    line = os.open(Path(folder) / "warned", os.O_RDWR)  # which waits for nobody

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())
            if rank == 0 and "step 3" in said[-1]:
                os.write(line, b"go on")

    logging.getLogger("thinwire.wire").addHandler(Listener())
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tw.distribute(model, optimizer, deadline=60, warn_after=0.3):
        for step in range(3):
            if rank == 1 and step == 2:
                os.read(line, 1)
            model(torch.ones(8, 4)).square().mean().backward()
            optimizer.step()
    return said


@pytest.mark.distributed
@pytest.mark.slow
def test_who_is_missing_is_named_long_before_the_deadline(tmp_path: Path):
    os.mkfifo(tmp_path / "warned")
    said, _ = run_processes(lagging, 2, str(tmp_path), env={"OMP_NUM_THREADS": "1"})
    assert any("step 3" in text and "Missing: rank 1" in text for text in said), said
