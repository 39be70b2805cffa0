from __future__ import annotations

import pytest

from thinwire.errors import InputError
from thinwire.report import Note, Recorder, read_record
from thinwire.report.recorder import part_name


def _notes(folder):
    return [note.text for run in read_record(folder).runs for note in run.notes]


def _begin(recorder, make_header, make_run):
    recorder.write(make_header())
    recorder.write(make_run("ssgd").start)


def test_lines_are_in_the_file_as_soon_as_write_returns(tmp_path, make_header, make_run):
    with Recorder(tmp_path) as recorder:
        _begin(recorder, make_header, make_run)
        recorder.write(Note(run="ssgd/0", time=1.0, text="seen"))
        assert _notes(tmp_path) == ["seen"]


def test_a_second_session_appends(tmp_path, make_header, make_run):
    with Recorder(tmp_path) as recorder:
        _begin(recorder, make_header, make_run)
    before = (tmp_path / "record.jsonl").read_bytes()
    with Recorder(tmp_path) as recorder:
        recorder.write(Note(run="ssgd/0", time=1.0, text="later"))
    assert (tmp_path / "record.jsonl").read_bytes().startswith(before)
    assert _notes(tmp_path) == ["later"]


def test_a_kill_at_any_byte_loses_at_most_the_line_being_written(tmp_path, make_header, make_run):
    texts = ["one", "zwölf \u2028 and a \n break", "three"]
    with Recorder(tmp_path / "whole") as recorder:
        _begin(recorder, make_header, make_run)
        first = (tmp_path / "whole" / "record.jsonl").stat().st_size
        recorder.write_many(Note(run="ssgd/0", time=0.0, text=text) for text in texts)
    data = (tmp_path / "whole" / "record.jsonl").read_bytes()
    for cut in range(first, len(data) + 1):
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / "record.jsonl").write_bytes(data[:cut])
        # A last line that lacks only its newline is whole.
        complete = data[:cut].count(b"\n") - 2 + (data[cut : cut + 1] == b"\n")
        assert _notes(folder) == texts[:complete]
        with Recorder(folder) as recorder:
            recorder.write(Note(run="ssgd/0", time=0.0, text="continued"))
        assert _notes(folder) == [*texts[:complete], "continued"]


def test_a_part_is_written_by_one_process_only(tmp_path):
    first, second = Recorder(tmp_path, 1), Recorder(tmp_path, 2)
    with pytest.raises(InputError, match="being written by another run"):
        Recorder(tmp_path, 1)
    first.close()
    second.close()
    Recorder(tmp_path, 1).close()


def test_parts_have_names_of_their_own(tmp_path):
    with Recorder(tmp_path, 3) as recorder:
        assert recorder.path == tmp_path / part_name(3)
        assert recorder.path.name == "record-3.jsonl"


def test_closing_twice_is_harmless(tmp_path):
    recorder = Recorder(tmp_path)
    recorder.close()
    recorder.close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match=r"file.*cannot be written"):
        Recorder(tmp_path / "file")
