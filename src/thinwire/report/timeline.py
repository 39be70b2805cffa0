"""The recorded spans as a trace that ui.perfetto.dev and chrome://tracing open.

A process per run, and per worker a track for what it computed and waited and one for what it sent;
slices of one track that overlap without nesting, which a trace may not hold, get a further track.
Time is the run's own clock, in microseconds as the format asks.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import msgspec

from thinwire.report.reader import Record, RunRecord
from thinwire.report.record import Span
from thinwire.report.whole import write_whole
from thinwire.units import format_size

__all__ = ["trace_events", "write_trace"]

_TRACKS = {"compute": 0, "wait": 0, "send": 1}
_LANES = 1000
_MICROSECONDS = 1e6


def write_trace(record: Record, path: str | os.PathLike[str]) -> bool:
    """Write the trace, compressed if the name ends in .gz.

    Args:
        record: as read.
        path: overwritten.

    Returns:
        False if no run holds spans; nothing is written then.
    """
    events = trace_events(record)
    if not events:
        return False
    data = msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": events})
    if str(path).endswith(".gz"):
        data = gzip.compress(data, mtime=0)
    write_whole(Path(path), data)
    return True


def trace_events(record: Record) -> list[dict[str, Any]]:
    """The events of every run that holds spans, in the trace event format."""
    events: list[dict[str, Any]] = []
    runs = [run for run in record.runs if run.spans]
    for place, run in enumerate(runs, start=1):
        name = f"{run.start.label}, seed {run.start.seed}"
        events += [
            _named("process_name", place, 0, name),
            {"ph": "M", "name": "process_sort_index", "pid": place, "args": {"sort_index": place}},
            *_run_events(run, place),
        ]
    return events


def _run_events(run: RunRecord, pid: int) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    tracks: dict[tuple[int, int], list[Span]] = {}
    for span in run.spans:
        tracks.setdefault((span.rank, _TRACKS.get(span.what, 1)), []).append(span)
    for (rank, track), spans in sorted(tracks.items()):
        for lane, members in enumerate(_lanes(spans)):
            tid = (2 * rank + track) * _LANES + lane + 1
            name = _endpoint(run, rank) + (" sends" if track else "")
            events.append(_named("thread_name", pid, tid, f"{name} ({lane + 1})" if lane else name))
            sort = {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid}
            events.append({**sort, "args": {"sort_index": tid}})
            events += [_slice(run, span, pid, tid) for span in members]
    for line in run.evals:
        at = line.time * _MICROSECONDS
        args = {"accuracy": line.accuracy}
        events.append({"ph": "C", "name": "test accuracy", "pid": pid, "ts": at, "args": args})
    return events


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _endpoint(run: RunRecord, rank: int) -> str:
    nodes = run.start.nodes
    if rank < len(nodes):
        return f"worker {rank} {nodes[rank]}"
    return f"server {rank - len(nodes)}"


def _lanes(spans: list[Span]) -> list[list[Span]]:
    """Slices on as few tracks as keep any two of a track from overlapping."""
    lanes: list[list[Span]] = []
    for span in sorted(spans, key=lambda each: (each.start, each.end)):
        lane = next((lane for lane in lanes if lane[-1].end <= span.start), None)
        if lane is None:
            lanes.append([span])
        else:
            lane.append(span)
    return lanes


def _slice(run: RunRecord, span: Span, pid: int, tid: int) -> dict[str, Any]:
    args: dict[str, Any] = {}
    name = span.what
    if span.peer >= 0:
        args["peer"] = _endpoint(run, span.peer)
        name = f"{name} {'to' if span.what == 'send' else 'for'} {span.peer}"
    if span.nbytes:
        args["size"] = format_size(span.nbytes)
        args["bytes"] = span.nbytes
    return {
        "ph": "X",
        "name": name,
        "cat": span.what,
        "pid": pid,
        "tid": tid,
        "ts": span.start * _MICROSECONDS,
        "dur": max(span.end - span.start, 0.0) * _MICROSECONDS,
        "args": args,
    }
