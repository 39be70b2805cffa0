from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from thinwire.phases import PHASES
from thinwire.report import Recorder, compare, read_record, render, report_html
from thinwire.report.phases import phases_section, phases_table
from thinwire.testing.records import write_example_record

SLOW = {"compute": 1.0, "wait": 3.0}
FAST = {"compute": 2.0, "select": 1.0, "wait": 1.0}


@pytest.fixture
def comparison(make_record, make_run):
    return compare(
        make_record(
            make_run("ssgd", 0, phases=[SLOW, FAST], every=4.0),
            make_run("ssgd", 1, phases=[SLOW, SLOW], every=4.0),
            make_run("topk <b>", 0, phases=[{"compute": 1.0, "apply": 0.004}]),
            make_run("old", 0),
        )
    )


def _shown(table, width=100):
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return out.getvalue()


def test_a_row_has_the_mean_of_a_step_over_workers_and_seeds(comparison):
    phases = comparison.row("ssgd").phases
    assert phases == pytest.approx({"compute": 1.25 / 20, "select": 0.25 / 20, "wait": 2.5 / 20})
    assert list(phases) == ["compute", "select", "wait"]  # the order in which they are shown
    assert comparison.row("old").phases == {}


def test_the_table_has_the_step_and_each_share_of_it(comparison):
    console = Console(file=io.StringIO(), width=100)
    lines = _shown(phases_table(comparison, console)).splitlines()
    assert lines[0].split() == ["method", "a", "step", "compute", "select", "wait", "apply"]
    assert " ".join(lines[1].split()) == "ssgd 200 ms 31 % 6.2 % 62 % 0 %"
    assert len(lines) == 3  # a record of another time has none


def test_the_page_holds_a_bar_for_each_method_all_to_one_scale(comparison):
    text = phases_section(comparison)
    widths = re.findall(r'class="p-(\w+)" style="width:([0-9.]+)%', text)
    assert widths[:3] == [("compute", "31.25"), ("select", "6.25"), ("wait", "62.50")]
    assert widths[3] == ("compute", "25.00")
    assert text.count('class="stack"') == 2
    assert "compute 62.5 ms · select 12.5 ms · wait 125 ms" in text
    assert "topk &lt;b&gt;" in text
    assert "· apply" not in text  # too small a share for words, but drawn
    assert ("apply", "0.10") in widths


def test_every_phase_has_a_colour_on_screen_and_paper(example_folder):
    record = read_record(example_folder)
    page = report_html(record, compare(record))
    assert [name for name in PHASES if f".p-{name} {{ background" not in page] == []
    assert re.search(r"\.stack i,[^}]*print-color-adjust: exact", page)
    assert page.count('class="stack"') == 6


def test_a_record_without_phases_has_no_section_and_says_so(make_record, make_run, tmp_path):
    record = make_record(make_run("ssgd"))
    assert phases_section(compare(record)) == ""
    with Recorder(tmp_path) as recorder:
        recorder.write_many([record.header, record.runs[0].start, record.runs[0].end])
    out = io.StringIO()
    render(tmp_path, phases=True, console=Console(file=out, width=80))
    assert "does not say where a step's time went" in out.getvalue()


def test_phases_survive_the_record(make_record, make_run, tmp_path):
    run = make_run("ssgd", phases=[SLOW, {"other": 1e-9}])
    with Recorder(tmp_path) as recorder:
        recorder.write_many([make_record(run).header, run.start, run.end])
    end = read_record(tmp_path).runs[0].end
    assert end is not None
    assert end.phases == [SLOW, {"other": 1e-9}]


def test_the_table_is_printed_when_asked_for_and_for_real_runs(tmp_path, make_record, make_run):
    def printed(folder, **options):
        out = io.StringIO()
        render(folder, console=Console(file=out, width=100), **options)
        return "a step" in out.getvalue()

    virtual = write_example_record(tmp_path / "virtual", num_seeds=1)
    assert not printed(virtual)
    assert printed(virtual, phases=True)
    run = make_run("ssgd", phases=[SLOW])
    run.start.mode = "real"
    with Recorder(tmp_path / "real") as recorder:
        recorder.write_many([make_record(run).header, run.start, *run.evals, run.end])
    assert printed(tmp_path / "real")
    assert not printed(tmp_path / "real", phases=False)
