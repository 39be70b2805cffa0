from __future__ import annotations

import io
import subprocess
import sys

import pytest
from rich.console import Console

from thinwire.cluster import load_cluster
from thinwire.planner import make_workload, plan, plan_report, plan_table, quick_cluster


def text_of(renderable) -> str:
    console = Console(width=80, file=io.StringIO(), color_system=None)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["office", "two-sites", "cities14"])
@pytest.mark.parametrize("model", ["resnet20", "bert-large"])
def test_table_fits_80_columns_without_cutting_anything(name: str, model: str):
    text = text_of(plan_table(plan(make_workload(model), load_cluster(name))))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


def test_chosen_and_fastest_are_marked():
    found = plan(make_workload("resnet50"), quick_cluster(16, 125e6)[0])
    lines = text_of(plan_table(found)).splitlines()
    assert [line.split()[1] for line in lines if line.startswith("›")] == [found.choice]
    fastest = max(found.predictions, key=lambda p: p.samples_per_second)
    starred = [line for line in lines if "*" in line]
    assert len(starred) == 1
    assert starred[0].lstrip("› ").startswith(fastest.method)


def test_report_begins_with_the_verdict_and_shows_every_part():
    job = make_workload("resnet50", batch=32, samples_per_epoch=1_281_167)
    found = plan(job, *quick_cluster(4, 125e6)[:1], assumptions=("Something assumed.",))
    text = text_of(plan_report(found))
    assert text.startswith(found.verdict[:60])
    for part in ("An epoch", "Why", "Beware", "Assumed", "Something assumed."):
        assert part in text


def test_planning_imports_no_torch():
    program = (
        "import sys; from thinwire.planner import *; "
        "plan_report(plan(make_workload('resnet50'), quick_cluster(4, 125e6)[0])); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "False"
