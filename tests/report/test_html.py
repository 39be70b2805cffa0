from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from thinwire.cluster import PRESETS, cluster_to_toml, load_cluster
from thinwire.report import Span, compare, read_record, report_html
from thinwire.testing.records import EXAMPLE_METHODS, MadeUpMethod, write_example_record

_VOID = {"meta", "link", "img", "input", "br", "hr"}


class Page(HTMLParser):
    """Checks that tags nest, and keeps what a page could load and what it says."""

    def __init__(self, text):
        super().__init__()
        self.open, self.loads, self.tags, self.said, self.ids = [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for key, value in attrs:
            if key in ("src", "href", "srcset", "data", "action", "poster", "xlink:href"):
                self.loads.append(value)
            if key == "id":
                self.ids.append(value)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.said.append(data)


def _page(folder, target=None):
    record = read_record(folder)
    return report_html(record, compare(record, target))


@pytest.fixture(scope="module")
def text(example_folder):
    return _page(example_folder)


def test_the_page_loads_nothing(text):
    page = Page(text)
    assert all(each.startswith("#") for each in page.loads)
    assert "link" not in page.tags
    assert "@import" not in text
    assert all(each.startswith("(#") for each in re.findall(r"url(\([^)]*)", text))
    assert not re.search(r"(https?:)?//[a-z]", text.replace("http://www.w3.org", ""))
    assert "default-src 'none'" in text


def test_ids_are_unique(text):
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))


def test_the_verdict_comes_first(text):
    title, kicker, sentence = [each.strip() for each in Page(text).said if each.strip()][:3]
    assert title.startswith("thinwire: virtual comparison of 6 methods")
    assert kicker == "thinwire · virtual comparison of 6 methods · 2026-01-05 09:00"
    assert sentence.startswith("gtopk reaches 96.")


def test_eighteen_runs_stay_far_below_two_megabytes(text):
    assert len(text.encode()) < 1_000_000


def test_the_same_record_gives_the_same_page(example_folder, text):
    assert _page(example_folder) == text


def test_every_pair_of_metric_and_axis_has_a_panel_and_a_rule(text):
    for metric in ("accuracy", "loss"):
        for axis in ("time", "steps", "bytes"):
            assert f'<div class="panel {metric}-{axis}">' in text
            assert f"#m-{metric}:checked~#x-{axis}:checked~.panels .{metric}-{axis}" in text


def test_hover_values_are_valid_json_for_every_chart(text):
    found = re.search(r'<script type="application/json" id="curves">(.*?)</script>', text)
    assert found is not None
    data = json.loads(found.group(1))
    assert set(re.findall(r'data-chart="([^"]+)"', text)) == set(data)
    for chart in data.values():
        for series in chart["series"]:
            assert len(series["x"]) == len(series["y"]) > 0


def test_no_number_is_nan_or_infinite(text):
    pictures = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert not re.search(r"\b(nan|inf)\b", pictures, re.IGNORECASE)


@pytest.mark.slow
def test_text_of_the_record_cannot_become_markup(tmp_path):
    evil = '</script><img src=x onerror="alert(1)">\'&{css}'
    methods = [MadeUpMethod(label="ssgd", sent=100), MadeUpMethod(label=evil, sent=50)]
    folder = write_example_record(
        tmp_path, methods=methods, num_seeds=2, cluster=f"# {evil}\nnot toml", target="0.9"
    )
    page = Page(_page(folder))
    assert "img" not in page.tags
    assert any(evil in each for each in page.said)


def test_colours_are_variables_so_that_dark_and_print_can_change_them(text):
    pictures = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert not re.search(r"#[0-9a-fA-F]{3,6}\b|rgb\(", pictures)
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text


def test_lines_differ_without_colour(text):
    panel = text.split('<div class="panel accuracy-time">')[1].split("</figure>")[0]
    lines = re.findall(r'class="line s\d"( stroke-dasharray="[^"]*")?', panel)
    assert len(lines) == len(EXAMPLE_METHODS) == len(set(lines))


def test_an_unfinished_record_says_so(tmp_path):
    methods = [MadeUpMethod(label="ssgd", sent=100, outcomes=("ok", "interrupted"))]
    folder = write_example_record(tmp_path, methods=methods, num_seeds=2)
    assert "This record is incomplete: 1 of 2 runs begun did not end." in _page(folder)


@pytest.mark.parametrize("outcome", ["failed", "interrupted"])
def test_a_record_in_which_nothing_ended_well_is_still_a_page(tmp_path, outcome):
    methods = [MadeUpMethod(label="ssgd", sent=100, outcomes=(outcome,))]
    Page(_page(write_example_record(tmp_path, methods=methods, num_seeds=1)))


def test_runs_that_never_got_anywhere_are_still_a_page(make_record, make_run):
    record = make_record(make_run("ssgd", accuracies=[], status=None))
    Page(report_html(record, compare(record)))


def test_a_single_run_is_called_one(make_record, make_run):
    record = make_record(make_run("gtopk"))
    assert "<title>thinwire: virtual run of gtopk</title>" in report_html(record, compare(record))


def test_one_evaluation_is_still_a_page(make_record, make_run):
    record = make_record(make_run("ssgd", accuracies=[1.0]), make_run("alone", accuracies=[0.0]))
    Page(report_html(record, compare(record, "0.5")))


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_is_drawn(make_record, make_run, preset):
    cluster = load_cluster(preset)
    record = make_record(make_run("ssgd"), cluster=cluster_to_toml(cluster))
    said = " ".join(Page(report_html(record, compare(record))).said)
    assert all(node.name in said for node in cluster.nodes)
    slower = [speed for speed in cluster.relative_speeds() if speed < 0.95]
    assert said.count("× slower") == len(slower)


def test_many_like_machines_are_drawn_together(make_record, make_run):
    text = """
schema = 1
name = "hall"
latency = "0.3 ms"
[[nodes]]
name = "desk"
count = 60
flops = "10 GFLOP/s"
memory_rate = "8 GB/s"
egress = "100 Mbit/s"
ingress = "100 Mbit/s"
"""
    record = make_record(make_run("ssgd"), cluster=text)
    page = report_html(record, compare(record))
    assert "60 × desk" in page
    assert page.count('<div class="node') == 1 + 1  # the card, and the grid around it


def test_many_workers_are_sampled_with_the_slowest_among_them(make_record, make_run):
    cluster = load_cluster("one-straggler")
    run = make_run("ssgd", workers=40)
    run.start.nodes = [f"n{rank}" for rank in range(39)] + [cluster.nodes[-1].name]
    slowest = min(cluster.nodes, key=lambda node: node.rate).name
    run.start.nodes[37] = slowest
    run.spans = [
        Span(run=run.start.run, rank=rank, what="compute", start=0.0, end=1.0) for rank in range(40)
    ]
    record = make_record(run, cluster=cluster_to_toml(cluster))
    page = report_html(record, compare(record))
    assert "16 of 40 workers" in page
    lane = page.split('<div class="lane">')[1].split("</svg>")[0]
    assert slowest in lane
