from __future__ import annotations

import csv
import io
import json
import os

import pytest
from rich.console import Console

from thinwire.errors import InputError
from thinwire.report import Recorder, read_record, render
from thinwire.testing.records import EXAMPLE_METHODS, write_example_record


@pytest.fixture
def folder(tmp_path):
    return write_example_record(tmp_path / "run", num_seeds=2)


def _render(folder, **options):
    out = io.StringIO()
    rendered = render(folder, console=Console(file=out, width=80), **options)
    return rendered, out.getvalue()


def test_everything_is_written_and_the_record_is_left_as_it_was(folder):
    before = (folder / "record.jsonl").read_bytes()
    rendered, _ = _render(folder)
    names = {"report.html", "summary.json", "summary.csv", "curves.csv", "trace.json.gz"}
    assert {path.name for path in rendered.files} == names
    assert {path.name for path in folder.iterdir()} == names | {"record.jsonl"}
    assert (folder / "record.jsonl").read_bytes() == before


def test_the_verdict_is_the_first_thing_said_and_the_page_the_last(folder):
    rendered, said = _render(folder)
    flat = " ".join(said.split())
    assert flat.startswith(rendered.verdict)
    assert flat.endswith(f"Report: {folder / 'report.html'}")


def test_the_target_may_be_changed_afterwards(folder):
    assert "90.0 % test accuracy" in _render(folder, target="0.9")[0].verdict


def test_the_summary_holds_each_method_with_unrounded_numbers(folder):
    rendered, _ = _render(folder)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["verdict"] == rendered.verdict
    assert [row["label"] for row in summary["methods"]] == [m.label for m in EXAMPLE_METHODS]
    for told, row in zip(summary["methods"], rendered.comparison.rows, strict=True):
        assert told["times_to_target"] == list(row.times)
        assert (told["time_to_target"] is None) == (row.time is None)


def test_a_miss_is_an_empty_cell_not_a_zero(folder):
    _render(folder, target="0.97")
    rows = {row["label"]: row for row in csv.DictReader((folder / "summary.csv").open())}
    assert rows["topk"]["time_to_target"] == ""
    assert (rows["topk"]["reached"], rows["topk"]["seeds"]) == ("1", "2")
    assert float(rows["gtopk"]["time_to_target"]) > 0


def test_the_curves_hold_every_evaluation(folder):
    _render(folder)
    rows = list(csv.DictReader((folder / "curves.csv").open()))
    runs = read_record(folder).runs
    assert len(rows) == sum(len(run.evals) for run in runs)
    assert float(rows[0]["accuracy"]) == runs[0].evals[0].accuracy


def test_rendering_again_gives_the_same_bytes(folder):
    files = _render(folder)[0].files
    before = [path.read_bytes() for path in files]
    assert [path.read_bytes() for path in _render(folder)[0].files] == before


@pytest.mark.slow
def test_a_record_cut_anywhere_still_gives_a_report(folder):
    data = (folder / "record.jsonl").read_bytes()
    for share in (0.1, 0.33, 0.5, 0.77, 0.99):
        (folder / "record.jsonl").write_bytes(data[: int(len(data) * share)])
        rendered, said = _render(folder)
        assert rendered.files
        assert "record.jsonl:" in " ".join(said.split())  # the torn line is named


def test_a_record_without_runs_says_so(tmp_path, make_header):
    with Recorder(tmp_path) as recorder:
        recorder.write(make_header())
    with pytest.raises(InputError, match="holds no run"):
        render(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_says_so(folder):
    folder.chmod(0o500)
    try:
        with pytest.raises(InputError, match="cannot be written"):
            _render(folder)
    finally:
        folder.chmod(0o700)
