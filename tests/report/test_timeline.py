from __future__ import annotations

import gzip
import itertools
import json

import pytest

from thinwire.report import Span, read_record, write_trace
from thinwire.report.timeline import trace_events


@pytest.fixture
def events(example_folder):
    return trace_events(read_record(example_folder))


def _slices(events):
    return [event for event in events if event["ph"] == "X"]


def test_every_span_becomes_a_slice_in_microseconds(example_folder, events):
    spans = [span for run in read_record(example_folder).runs for span in run.spans]
    slices = _slices(events)
    assert len(slices) == len(spans)
    total = sum(span.end - span.start for span in spans)
    assert sum(each["dur"] for each in slices) == pytest.approx(total * 1e6)


def test_slices_of_a_track_never_overlap(events):
    tracks = {}
    for event in _slices(events):
        tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    for members in tracks.values():
        members.sort(key=lambda event: event["ts"])
        for first, second in itertools.pairwise(members):
            assert first["ts"] + first["dur"] <= second["ts"] + 1e-6


def test_sends_side_by_side_get_tracks_of_their_own(make_run, make_record):
    run = make_run("gtopk")
    run.spans = [
        Span(run=run.start.run, rank=0, what="send", start=0.0, end=2.0, peer=peer, nbytes=10)
        for peer in (1, 2)
    ]
    tids = [event["tid"] for event in _slices(trace_events(make_record(run)))]
    assert len(set(tids)) == 2


def test_runs_are_processes_and_workers_named_threads(events):
    names = {e["args"]["name"] for e in events if e["ph"] == "M" and "name" in e["args"]}
    assert {"gtopk, seed 0", "worker 0 desk-0", "worker 7 in-use", "worker 0 desk-0 sends"} <= names


def test_a_server_is_named_as_one(make_run, make_record):
    run = make_run("asgd", workers=2)
    run.spans = [Span(run=run.start.run, rank=2, what="compute", start=0.0, end=1.0)]
    names = [e["args"].get("name") for e in trace_events(make_record(run)) if e["ph"] == "M"]
    assert "server 0" in names


def test_a_compressed_trace_is_the_same_bytes_each_time(example_folder, tmp_path):
    record = read_record(example_folder)
    paths = [tmp_path / "a.json.gz", tmp_path / "b.json.gz"]
    assert all(write_trace(record, path) for path in paths)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert json.loads(gzip.decompress(paths[0].read_bytes()))["traceEvents"]


def test_without_spans_nothing_is_written(make_run, make_record, tmp_path):
    assert not write_trace(make_record(make_run("ssgd")), tmp_path / "trace.json")
    assert list(tmp_path.iterdir()) == []
