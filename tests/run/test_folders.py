"""Run folders: new ones are nobody else's, used ones are not written into."""

from __future__ import annotations

from pathlib import Path

import pytest

from thinwire.errors import InputError
from thinwire.run.folders import claim_folder, refuse_used


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_folder_that_was_asked_for_is_taken_as_it_is(tmp_path):
    assert claim_folder(tmp_path / "mine", "run") == tmp_path / "mine"
    assert not (tmp_path / "mine").exists()


def test_runs_that_begin_in_the_same_second_get_folders_of_their_own():
    folders = [claim_folder(None, "run") for _ in range(12)]
    assert len(set(folders)) == 12
    for folder in folders:
        assert folder.is_dir()
        assert folder.parent == Path("runs")
        assert folder.name.startswith("run-2")


def test_a_folder_that_cannot_be_made_says_what_to_give(tmp_path):
    (tmp_path / "runs").write_text("a file stands in the way")
    with pytest.raises(InputError, match=r"--out FOLDER"):
        claim_folder(None, "compare")


def test_a_folder_with_a_record_is_refused_with_the_hint(tmp_path):
    refuse_used(None)
    refuse_used(tmp_path)
    (tmp_path / "record.jsonl").touch()
    with pytest.raises(InputError, match="already holds a record; give another folder, or so"):
        refuse_used(tmp_path, ", or so")
