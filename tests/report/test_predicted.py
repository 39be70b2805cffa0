"""Predicted beside measured."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from thinwire.report import Recorder, read_record, render
from thinwire.report.predicted import held, predicted_rows, predicted_table
from thinwire.report.reader import Record, RunRecord
from thinwire.report.record import End, Header, Run

HEADER = Header(created="2026-01-01", command=["thinwire", "run"], settings={}, cluster="",
                versions={}, machine={})  # fmt: skip
TOLD = {"step_time": 0.1, "bytes_per_step": 1000.0, "waiting": 0.25}


def start(predicted: dict[str, float]) -> Run:
    return Run(run="gtopk/0", label="gtopk", method="gtopk", seed=0, mode="real", settings={},
               nodes=["a", "b"], num_params=10, predicted=predicted)  # fmt: skip


def end(status: str = "ok") -> End:
    """Ten steps in 1.5 s, 0.5 of which rank 0 tested and rank 1 waited for it."""
    phases = [{"compute": 0.8, "wait": 0.2, "evaluate": 0.5}, {"compute": 0.8, "wait": 0.7}]
    return End(run="gtopk/0", status=status, time=1.5, steps=10, sent=[9_000, 11_000],
               messages=[1, 1], waited=[0.2, 0.7], computed=[0.8, 0.8], phases=phases)  # fmt: skip


def record_of(run: Run, last: End | None) -> Record:
    return Record(folder=Path("nowhere"), headers=[HEADER], runs=[RunRecord(start=run, end=last)])


def test_testing_the_model_is_no_part_of_a_measured_step():
    found = {each.what: each for each in held(record_of(start(TOLD), end()))}
    assert found["step_time"].measured == pytest.approx(0.1)
    assert found["step_time"].error == pytest.approx(0.0)
    assert found["bytes_per_step"].error == pytest.approx(0.0)
    assert found["waiting"].measured == pytest.approx(0.2)
    assert found["waiting"].error == pytest.approx(0.05)


def test_an_error_is_positive_where_too_much_was_predicted():
    found = held(record_of(start({"step_time": 0.12}), end()))
    assert [(each.what, each.error) for each in found] == [("step_time", pytest.approx(0.2))]


@pytest.mark.parametrize("last", [None, end("failed")])
def test_a_run_that_did_not_end_well_is_compared_with_nothing(last: End | None):
    assert held(record_of(start(TOLD), last)) == []


def test_nothing_is_shown_where_nothing_was_predicted():
    assert predicted_table(record_of(start({}), end()), Console()) is None


def test_a_line_of_an_older_record_reads_as_one_without_a_prediction():
    fields = msgspec.to_builtins(start(TOLD))
    del fields["predicted"]
    assert msgspec.convert(fields, Run).predicted == {}


def test_the_report_of_a_folder_holds_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with Recorder(tmp_path) as recorder:
        for line in (HEADER, start(TOLD), end()):
            recorder.write(line)
    render(tmp_path, console=Console(width=80))
    told = capsys.readouterr().out
    assert "predicted" in told
    assert "100 ms" in told
    rows = json.loads((tmp_path / "summary.json").read_text())["predicted"]
    assert rows == predicted_rows(read_record(tmp_path))
    assert [row["what"] for row in rows] == ["step_time", "bytes_per_step", "waiting"]
