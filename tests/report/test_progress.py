from __future__ import annotations

import io

import pytest
from rich.console import Console

from thinwire.report import End, Eval, RunView, Step


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Training:
    """What rank 0 could be asked."""

    def __init__(self):
        self.step = 1
        self.sent = 0
        self.phases = {}

    def __call__(self):
        return self.step, self.sent, dict(self.phases)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def out():
    return io.StringIO()


@pytest.fixture
def view(clock, out):
    return RunView("ssgd", 100, 64, console=Console(file=out, width=80), clock=clock)


def test_who_has_come_and_who_is_waited_for_is_told(view, clock, out):
    view.gather([0, 2], 4)
    assert out.getvalue() == ""
    clock.now += 3.0
    view.tick()
    view.gather([0, 1, 2, 3], 4)
    assert out.getvalue().splitlines() == [
        "2 of 4 ranks connected; waiting for rank 1, 3",
        "4 of 4 ranks connected",
    ]


def test_a_long_list_of_absent_ranks_is_cut(view, clock, out):
    view.gather([0], 64)
    clock.now += 3.0
    view.tick()
    assert out.getvalue().strip().endswith("waiting for rank 1, 2, 3, 4, 5, 6, 7, 8 and 55 more")


def test_step_loss_rates_and_time_left_are_told_before_the_first_evaluation(view, clock, out):
    training = Training()
    view.begin(training)
    for _ in range(3):
        clock.now += 1.0
        training.step += 10
        training.sent += 5_000_000
        view.tick()
    view.feed(Step(run="ssgd/0", rank=0, step=31, time=3.0, loss=0.512))
    assert view.step == 30
    assert out.getvalue().splitlines() == [
        "ssgd: step 30 of 100, 640 samples/s, rank 0 sends 5 MB/s, about 7 s left"
    ]
    view.feed(Eval(run="ssgd/0", step=30, time=3, samples=1, sent=0, accuracy=0.5, loss=1.0))
    assert "loss 0.512, 50.0 % test accuracy" in view.text()


def test_where_the_time_of_the_last_seconds_went_is_told(view, clock):
    training = Training()
    view.begin(training)
    for wait in [0.1] * 20 + [0.6] * 20:
        clock.now += 1.0
        spent = {"compute": 0.95 - wait, "wait": wait, "select": 0.04, "send": 0.006}
        training.phases = {k: training.phases.get(k, 0.0) + v for k, v in spent.items()}
        view.tick()
    assert "its time: 60 % wait + 35 % compute + 4.0 % select" in view.text()


def test_rates_are_those_of_the_last_seconds(view, clock):
    training = Training()
    view.begin(training)
    for speed in [1.0] * 20 + [2.0] * 20:
        clock.now += 1.0
        training.step += speed
        view.tick()
    assert view.remaining == pytest.approx((100 - 60) / 2.0)


def test_a_pipe_gets_one_line_an_interval_also_when_nothing_moves(view, clock, out):
    view.begin(Training())
    for _ in range(9):
        clock.now += 1.0
        view.tick()
    assert len(out.getvalue().splitlines()) == 3
    assert "step 0 of 100" in out.getvalue()
    assert "left" not in out.getvalue()  # nothing is promised before anything is known


def test_the_end_is_told(view, out):
    view.begin(Training())
    view.feed(Eval(run="ssgd/0", step=100, time=9, samples=1, sent=0, accuracy=0.97, loss=0.1))
    view.feed(End(run="ssgd/0", status="ok", time=9.0, steps=100, wall=10.0))
    assert out.getvalue() == "ssgd: 97.0 % test accuracy after 9 s; took 10 s\n"


def test_a_failure_is_told_with_its_reason(view, out):
    view.begin(Training())
    view.feed(End(run="ssgd/0", status="failed", time=9.0, error="[rank 2] died"))
    assert out.getvalue() == "ssgd: failed: [rank 2] died\n"


def test_a_terminal_shows_a_bar_and_is_restored(clock, out):
    console = Console(file=out, width=80, force_terminal=True, _environ={"TERM": "xterm"})
    with RunView("ssgd", 100, 64, console=console, clock=clock) as view:
        view.gather([0], 2)
        view.begin(Training())
        console.print(view.render())
    assert "step 0 of 100" in out.getvalue()
    assert out.getvalue().rstrip().endswith(("\x1b[?25h", "\x1b[2K"))


def test_a_loop_of_unknown_length_tells_steps_a_second_and_promises_no_end(clock, out):
    view = RunView("mine", None, 0, console=Console(file=out, width=80), clock=clock)
    training = Training()
    view.begin(training)
    for _ in range(3):
        clock.now += 1.0
        training.step += 10
        view.tick()
    assert out.getvalue() == "mine: step 30, 10.0 steps/s, rank 0 sends 0 B/s\n"
    view.step_samples = 32
    view.feed(Step(run="mine/0", rank=0, step=30, time=3.0, loss=float("nan")))
    assert view.text() == "mine: step 30, 320 samples/s, rank 0 sends 0 B/s"
    assert view.remaining is None
