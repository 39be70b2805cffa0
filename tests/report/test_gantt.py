from __future__ import annotations

import re

import pytest

from thinwire.report import Span, Step
from thinwire.report.gantt import first_steps, gantt


def _synchronous(run, rounds, compute=1.0, wait=2.0):
    """Worker 0 computes, then waits, and so on."""
    run.spans, now = [], 0.0
    for step in range(1, rounds + 1):
        for what, took in (("compute", compute), ("wait", wait)):
            run.spans.append(Span(run=run.start.run, rank=0, what=what, start=now, end=now + took))
            now += took
        run.steps.append(Step(run=run.start.run, rank=0, step=step, time=now, loss=1.0))
    return run


def test_the_picture_ends_after_a_few_steps(make_run):
    assert first_steps(_synchronous(make_run("ssgd"), 50)) == pytest.approx(12.0, rel=0.05)


def test_the_picture_holds_two_exchanges_of_a_method_that_seldom_speaks(make_run):
    run = make_run("localsgd")
    now = 0.0
    for step in range(1, 33):
        run.spans.append(Span(run="r", rank=0, what="compute", start=now, end=now + 1.0))
        now += 1.0
        if step % 8 == 0:
            run.spans.append(Span(run="r", rank=0, what="wait", start=now, end=now + 2.0))
            now += 2.0
        run.steps.append(Step(run="r", rank=0, step=step, time=now, loss=1.0))
    assert first_steps(run) == pytest.approx(20.0, rel=0.05)


def test_the_picture_never_outlasts_the_recording(make_run):
    run = _synchronous(make_run("ssgd"), 2)
    assert first_steps(run) == 6.0


def test_without_spans_there_is_no_picture(make_run):
    assert gantt(make_run("ssgd"), ["a"], [1.0], width=900) == ""


def test_slower_workers_are_marked(make_run):
    run = _synchronous(make_run("ssgd"), 5)
    picture = gantt(run, ["new", "old"], [1.0, 2.0], width=900)
    assert re.search(r'class="name slow"[^>]*>old <tspan class="tick">2× slower', picture)
    assert picture.count("name slow") == 1


def test_slices_closer_than_the_eye_are_drawn_as_one(make_run):
    run = _synchronous(make_run("ssgd"), 4, compute=1e-6, wait=100.0)
    run.spans += [
        Span(run="r", rank=0, what="send", start=i * 1e-4, end=i * 1e-4 + 5e-5) for i in range(500)
    ]
    picture = gantt(run, ["a"], [1.0], width=900)
    (send,) = re.findall(r'class="send" d="([^"]*)"', picture)
    assert send.count("M") == 1
