"""Every moment of a program belongs to one phase, and none is lost in between."""

from __future__ import annotations

import pytest

from thinwire import phases
from thinwire.errors import InputError
from thinwire.phases import PHASES, Phases, Stopwatch, within


@pytest.fixture
def clock(monkeypatch) -> list[int]:
    """What the wall clock shows, in ns; tests move it."""
    now = [1000]
    monkeypatch.setattr(phases, "perf_counter_ns", lambda: now[0])
    return now


def spent(watch: Phases) -> dict[str, int]:
    return {name: ns for name, ns in watch.so_far().items() if ns}


def test_an_inner_block_takes_its_time_out_of_the_outer_one(clock):
    watch = Stopwatch()
    clock[0] += 1
    with within(watch, "select"):
        clock[0] += 10
        with within(watch, "wait"):
            clock[0] += 100
        clock[0] += 20
        with within(watch, "select"):
            clock[0] += 3
    clock[0] += 5
    assert spent(watch) == {"select": 33, "wait": 100, "other": 6}


def test_a_block_that_raises_ends(clock):
    watch = Stopwatch()

    def fail() -> None:
        with within(watch, "merge"):
            clock[0] += 7
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    clock[0] += 1
    assert spent(watch) == {"merge": 7, "other": 1}


def test_a_look_counts_what_has_not_ended_yet(clock):
    watch = Stopwatch()
    with within(watch, "wait"):
        clock[0] += 2_000_000_000
        assert watch.seconds() == {"wait": 2.0}


def test_what_lies_before_the_program_and_after_it_is_not_counted(clock):
    watch = Stopwatch()
    clock[0] += 50
    watch.restart()
    clock[0] += 4
    watch.stop()
    with within(watch, "apply"):
        clock[0] += 60
    assert spent(watch) == {"other": 4}


@pytest.mark.parametrize("elapsed", [0, 1, 7, 10**9 + 1])
def test_shared_out_time_adds_up_to_the_nanosecond(elapsed):
    found = Phases()
    found.share_out(elapsed, {"compute": 1.0, "select": 1e-9, "apply": 1 / 3})
    found.share_out(elapsed, {"merge": 0.0, "encode": 0.0})
    found.share_out(elapsed, {"wait": 0.0})
    assert sum(found.spent.values()) == 3 * elapsed
    assert found.spent["wait"] == elapsed


def test_time_is_shared_out_in_proportion():
    found = Phases()
    found.share_out(1000, {"compute": 3.0, "select": 1.0})
    assert spent(found) == {"compute": 750, "select": 250}


def test_an_unknown_phase_is_refused_with_the_nearest_one():
    with pytest.raises(InputError, match="'selct': did you mean 'select'"):
        within(Phases(), "selct")
    with pytest.raises(InputError):
        within(None, "")


def test_nobody_counting_is_no_hindrance():
    with within(None, "select"):
        pass


def test_what_each_phase_holds_is_documented_as_it_is_shown(request):
    page = (request.config.rootpath / "docs" / "record.md").read_text()
    assert [name for name in PHASES if f"\n| `{name}` | " not in page] == []
