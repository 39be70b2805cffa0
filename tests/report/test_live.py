from __future__ import annotations

import io

import pytest
from rich.console import Console

from thinwire.report import End, Eval, LiveView, Step
from thinwire.testing.records import EXAMPLE_METHODS, example_lines


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def out():
    return io.StringIO()


@pytest.fixture
def view(clock, out):
    console = Console(file=out, width=80)
    return LiveView(2, console=console, clock=clock, num_steps={"ssgd": 10}, labels=["ssgd"])


def _step(run, step):
    return Step(run=run, rank=0, step=step, time=0.1 * step, loss=1.0)


def _eval(run, accuracy):
    return Eval(run=run, step=5, time=0.5, samples=1, sent=0, accuracy=accuracy, loss=1.0)


def test_a_pipe_gets_one_line_an_interval(view, clock, out, make_run):
    with view:
        view.feed(make_run("ssgd", 0).start)
        for step in range(1, 10):
            clock.now += 1.0
            view.feed(_step("ssgd/0", step))
    assert len(out.getvalue().splitlines()) == 1
    assert "step 5" in out.getvalue()


def test_a_pipe_hears_of_a_stall_too(view, clock, out, make_run):
    with view:
        view.feed(make_run("ssgd", 0).start)
        clock.now += 6.0
        view.feed_all([])
    assert "0 of 2 runs" in out.getvalue()


def test_each_end_is_told_with_its_accuracy(view, out, make_run):
    with view:
        view.feed_all([make_run("ssgd", 0).start, _eval("ssgd/0", 0.912)])
        view.feed(End(run="ssgd/0", status="ok", time=12.0, steps=10, wall=3.0))
    assert out.getvalue() == ("ssgd, seed 0: 91.2 % test accuracy after 12 s (virtual); took 3 s\n")


def test_a_failure_is_told_with_its_reason(view, out, make_run):
    with view:
        view.feed(make_run("ssgd", 0).start)
        view.feed(End(run="ssgd/0", status="failed", time=1.0, error="[loss] is NaN"))
    assert out.getvalue() == "ssgd, seed 0: failed: [loss] is NaN\n"


def test_the_share_counts_steps_of_runs_that_go_on(view, clock, make_run):
    view.feed(make_run("ssgd", 0).start)
    view.feed(_step("ssgd/0", 5))
    assert view.share == 0.25
    clock.now += 10.0
    assert view.remaining == 30.0


def test_a_finished_run_tells_how_long_the_next_is(clock, make_run):
    view = LiveView(2, console=Console(file=io.StringIO()), clock=clock)
    view.feed_all([make_run("topk", 0).start, End(run="topk/0", status="ok", time=1.0, steps=20)])
    view.feed_all([make_run("topk", 1).start, _step("topk/1", 10)])
    assert view.share == 0.75


def test_nothing_is_promised_before_anything_is_known(view):
    assert view.remaining is None


def test_lines_of_runs_it_never_saw_begin_are_harmless(view):
    view.feed_all([_step("other/7", 1), _eval("other/7", 0.5)])
    assert view.share == 0.0


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_terminal_shows_every_method_in_eighty_columns(clock, encoding):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    console = Console(file=stream, width=80)
    labels = [method.label for method in EXAMPLE_METHODS]
    view = LiveView(18, console=console, clock=clock, labels=labels)
    for line in example_lines(num_seeds=2):
        clock.now += 0.001
        view.feed(line)
    raw.seek(0)
    raw.truncate()  # what was told plainly
    console.print(view.render())
    lines = raw.getvalue().decode(encoding).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert all(any(line.startswith(label) for line in lines) for label in labels)
    assert "12 of 18 runs, 67 %" in lines[0]


def test_entering_and_leaving_on_a_terminal_restores_it(clock, out, make_run):
    console = Console(file=out, width=80, force_terminal=True, _environ={"TERM": "xterm"})
    with LiveView(1, console=console, clock=clock) as view:
        view.feed(make_run("ssgd").start)
    assert out.getvalue().rstrip().endswith(("\x1b[?25h", "\x1b[2K"))
