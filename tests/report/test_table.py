from __future__ import annotations

import io

import pytest
from rich.console import Console

from thinwire.report import compare, comparison_table, read_record
from thinwire.report.table import COLUMNS, best_rows, columns_of


def _shown(comparison, width, encoding="utf-8", **options):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    console = Console(file=stream, width=width, **options)
    console.print(comparison_table(comparison, console))
    return raw.getvalue().decode(encoding)


@pytest.fixture
def comparison(example_folder):
    return compare(read_record(example_folder))


def _column(key):
    return next(column for column in COLUMNS if column.key == key)


@pytest.mark.parametrize("width", [40, 60, 80, 110, 200])
def test_a_row_is_one_line_at_any_width(comparison, width):
    lines = _shown(comparison, width).rstrip("\n").split("\n")
    assert len(lines) == 1 + len(comparison.rows)
    assert max(len(line.rstrip()) for line in lines) <= width


def test_eighty_columns_show_what_matters(comparison):
    head = _shown(comparison, 80).split("\n")[0]
    assert all(title in head for title in ("final %", "to target", "vs ssgd", "vs alone"))


def test_a_wide_terminal_shows_every_column(comparison):
    head = _shown(comparison, 200).split("\n")[0]
    assert all(column.title in head for column in columns_of(comparison))


def test_a_pipe_gets_no_colour_but_keeps_the_marks(comparison):
    shown = _shown(comparison, 80)
    assert "\x1b" not in shown
    assert "*" in shown


def test_a_terminal_gets_colour(comparison):
    assert "\x1b[1;32m" in _shown(comparison, 80, force_terminal=True, color_system="standard")


def test_an_ascii_terminal_is_served(comparison):
    assert "+-" in _shown(comparison, 120, encoding="ascii")


def test_a_miss_is_shown_with_its_count(comparison):
    (line,) = [each for each in _shown(comparison, 80).split("\n") if each.startswith("topk")]
    assert "miss 2/3" in line


def test_the_best_time_is_the_lowest_and_the_best_speedup_the_highest(make_run, make_record):
    runs = [make_run("ssgd", every=3.0), make_run("gtopk"), make_run("topk", every=2.0)]
    comparison = compare(make_record(*runs), "0.9")
    for key in ("time_to_target", "speedup_ssgd"):
        assert best_rows(_column(key), comparison) == ["gtopk"]


def test_a_cheap_miss_is_not_best(make_run, make_record):
    runs = [
        make_run("gtopk", sent=[800, 800]),
        make_run("topk", sent=[8, 8], accuracies=[0.2]),
        make_run("ssgd", sent=[9000, 9000]),
    ]
    assert best_rows(_column("bytes_per_step"), compare(make_record(*runs), "0.9")) == ["gtopk"]


def test_one_machine_is_no_example_of_sending_little(make_run, make_record):
    runs = [
        make_run("alone", workers=1, sent=[0], waited=[0.0]),
        make_run("ssgd", sent=[90, 90], waited=[1.0, 1.0]),
        make_run("gtopk", sent=[80, 80], waited=[0.5, 0.5]),
    ]
    comparison = compare(make_record(*runs), "0.9")
    assert best_rows(_column("bytes_per_step"), comparison) == ["gtopk"]
    assert best_rows(_column("waiting"), comparison) == ["gtopk"]


def test_values_that_look_equal_are_marked_alike(make_run, make_record):
    runs = [
        make_run("ssgd", accuracies=[0.9]),
        make_run("gtopk", accuracies=[0.95001]),
        make_run("topk", accuracies=[0.95]),
    ]
    comparison = compare(make_record(*runs), "0.9")
    assert best_rows(_column("final_accuracy"), comparison) == ["gtopk", "topk"]


def test_columns_without_anything_to_say_are_left_out(make_run, make_record):
    keys = [column.key for column in columns_of(compare(make_record(make_run("gtopk")), "0.9"))]
    assert not {"energy", "speedup_ssgd", "speedup_alone", "bytes_per_step"} & set(keys)
