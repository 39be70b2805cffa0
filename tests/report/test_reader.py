from __future__ import annotations

import json
import math

import pytest

from thinwire.errors import InputError
from thinwire.report import SCHEMA, End, Eval, Follower, Note, Recorder, Step, read_record


@pytest.fixture
def folder(tmp_path, make_header, make_run):
    with Recorder(tmp_path) as recorder:
        recorder.write(make_header())
        run = make_run("ssgd")
        recorder.write_many([run.start, *run.evals, run.end])
    return tmp_path


def _append(folder, text, part="record.jsonl"):
    with (folder / part).open("a") as stream:
        stream.write(text)


def test_lines_come_back_typed_and_grouped(folder, make_run):
    (run,) = read_record(folder).runs
    expected = make_run("ssgd")
    assert (run.start, run.evals, run.end) == (expected.start, expected.evals, expected.end)
    assert run.status == "ok"


def test_the_record_file_itself_may_be_named(folder):
    assert read_record(folder / "record.jsonl").folder == folder


def test_a_torn_last_line_is_dropped_and_named(folder):
    _append(folder, '{"kind":"note","run":"ssgd/0","ti')
    record = read_record(folder)
    assert record.warnings == ["record.jsonl:6: the last line is torn and was dropped"]
    assert record.runs[0].status == "ok"


def test_a_line_of_wrong_type_is_dropped_and_named(folder):
    _append(folder, '{"kind":"note","run":"ssgd/0","time":"soon","text":"x"}\n')
    (warning,) = read_record(folder).warnings
    assert warning.startswith("record.jsonl:6: the line was dropped")
    assert "time" in warning


def test_unknown_kinds_and_fields_are_skipped_silently(folder):
    _append(folder, '{"kind":"hologram","run":"ssgd/0","x":1}\n')
    _append(folder, '{"kind":"note","run":"ssgd/0","time":1.0,"text":"kept","colour":"red"}\n')
    record = read_record(folder)
    assert record.warnings == []
    assert [note.text for note in record.runs[0].notes] == ["kept"]


def test_a_line_without_a_kind_is_no_newer_thinwire(folder):
    _append(folder, "[1, 2]\n")
    assert len(read_record(folder).warnings) == 1


def test_nan_survives_the_file(folder):
    with Recorder(folder) as recorder:
        recorder.write(Step(run="ssgd/0", rank=0, step=1, time=1.0, loss=math.nan))
    (step,) = read_record(folder).runs[0].steps
    assert math.isnan(step.loss)


@pytest.mark.parametrize("other", [SCHEMA + 1, 0])
def test_another_schema_is_refused_with_what_to_do(folder, other):
    text = (folder / "record.jsonl").read_text()
    (folder / "record.jsonl").write_text(text.replace('"schema":1', f'"schema":{other}'))
    with pytest.raises(InputError, match=rf"record\.jsonl:1: schema = {other}.*thinwire"):
        read_record(folder)


def test_another_schema_is_refused_even_when_its_header_looks_different(folder):
    lines = (folder / "record.jsonl").read_text().splitlines()
    header = json.dumps({"kind": "header", "schema": 9, "who": "knows"})
    (folder / "record.jsonl").write_text("\n".join([header, *lines[1:]]))
    with pytest.raises(InputError, match="schema = 9"):
        read_record(folder)


def test_a_missing_folder_says_which(tmp_path):
    with pytest.raises(InputError, match=r"nowhere.*does not exist"):
        read_record(tmp_path / "nowhere")


def test_a_folder_without_a_record_says_so(tmp_path):
    with pytest.raises(InputError, match="holds no record"):
        read_record(tmp_path)


def test_a_record_without_a_header_says_so(tmp_path):
    (tmp_path / "record.jsonl").write_text('{"kind":"header","sche')
    with pytest.raises(InputError, match="no header line"):
        read_record(tmp_path)


def test_parts_are_merged_in_the_order_asked_for(tmp_path, make_header, make_run):
    with Recorder(tmp_path) as recorder:
        recorder.write(make_header(settings={"methods": ["alone", "ssgd", "topk"]}))
    for part, labels in ((1, ["topk", "alone"]), (2, ["ssgd", "topk"]), (10, ["alone"])):
        with Recorder(tmp_path, part) as recorder:
            for label in labels:
                run = make_run(label, seed=part)
                recorder.write_many([run.start, run.end])
    runs = read_record(tmp_path).runs
    assert [(run.start.label, run.start.seed) for run in runs] == [
        ("alone", 1),
        ("alone", 10),
        ("ssgd", 2),
        ("topk", 1),
        ("topk", 2),
    ]


def test_of_several_tries_the_one_that_ended_well_counts(tmp_path, make_header, make_run):
    tries = [make_run("ssgd", status=None), make_run("ssgd", every=2.0), make_run("ssgd")]
    tries[2].end = End(run="ssgd/0", status="failed", time=3.0)
    with Recorder(tmp_path) as recorder:
        recorder.write(make_header())
        for each in tries:
            recorder.write(each.start)
            recorder.write_many(line for line in [*each.evals, each.end] if line)
    record = read_record(tmp_path)
    assert [(run.status, run.time) for run in record.runs] == [("ok", 4.0)]
    assert record.superseded == 2


def test_a_run_without_an_end_was_interrupted_and_is_not_done(tmp_path, make_header, make_run):
    with Recorder(tmp_path) as recorder:
        recorder.write(make_header())
        done, cut = make_run("ssgd", 0), make_run("ssgd", 1)
        recorder.write_many([done.start, done.end, cut.start, *cut.evals])
    record = read_record(tmp_path)
    assert [run.status for run in record.runs] == ["ok", "interrupted"]
    assert record.done() == {("ssgd", 0)}
    assert record.runs[1].time == 2.0


def test_a_follower_sees_each_complete_line_once(folder):
    follower = Follower(folder)
    assert len(follower.poll()) == 5
    assert follower.poll() == []
    with Recorder(folder, 1) as recorder:
        recorder.write(Note(run="ssgd/0", time=1.0, text="part"))
    _append(folder, '{"kind":"note","run":"ssgd/0","time":2.0,')
    assert [line.text for line in follower.poll() if isinstance(line, Note)] == ["part"]
    _append(folder, '"text":"later"}\n')
    assert [line.text for line in follower.poll() if isinstance(line, Note)] == ["later"]


def test_a_follower_may_begin_at_the_end(folder):
    follower = Follower(folder, from_end=True)
    with Recorder(folder) as recorder:
        line = Eval(run="x", step=1, time=1.0, samples=1, sent=0, accuracy=0.5, loss=1.0)
        recorder.write(line)
    assert follower.poll() == [line]


def test_a_follower_of_a_folder_to_come_waits(tmp_path):
    assert Follower(tmp_path / "later").poll() == []
