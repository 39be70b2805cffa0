"""One self-contained page: verdict, table, curves, timeline, cluster, settings.

It opens from a file without a network: no font, script or picture is loaded. All text of the record
is escaped. Charts are inline SVG; the tabs work without scripts, hover values need them.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

import msgspec

from thinwire.report.compare import Comparison
from thinwire.report.phases import phases_section
from thinwire.report.pictures import (
    LONG_LABEL,
    bars_section,
    chosen_css,
    cluster_section,
    curves_data,
    curves_of,
    curves_section,
    line_styles,
    timelines_section,
)
from thinwire.report.reader import Record
from thinwire.report.table import best_rows, columns_of
from thinwire.report.topology import cluster_of
from thinwire.report.verdict import remarks, verdict
from thinwire.units import format_count

__all__ = ["report_html"]


def report_html(record: Record, comparison: Comparison) -> str:
    """The page for a record.

    Args:
        record: as read.
        comparison: of the same record.
    """
    styles = line_styles(comparison)
    curves = curves_of(record)
    sections = [
        _opening(record, comparison),
        bars_section(comparison, styles),
        _table(comparison),
        _remarks(record, comparison),
        curves_section(curves, comparison, styles),
        phases_section(comparison),
        timelines_section(record),
        cluster_section(record),
        _meaning(record, comparison),
        _settings(record),
    ]
    data = msgspec.json.encode(curves_data(curves)).decode().replace("<", "\\u003c")
    return _PAGE.format(
        title=escape(_title(comparison)),
        css=_template("page.css") + chosen_css(),
        body="\n".join(section for section in sections if section),
        data=data,
        js=_template("page.js"),
    )


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src 'unsafe-inline'">
<title>thinwire: {title}</title>
<style>
{css}</style>
</head>
<body>
{body}
<script type="application/json" id="curves">{data}</script>
<script>
{js}</script>
</body>
</html>
"""


def _template(name: str) -> str:
    return files("thinwire.report").joinpath("templates", name).read_text(encoding="utf-8")


def _title(comparison: Comparison) -> str:
    labels = [row.label for row in comparison.rows]
    what = f"comparison of {len(labels)} methods" if len(labels) > 1 else f"run of {labels[0]}"
    return f"{comparison.mode} {what}".strip()


def _opening(record: Record, comparison: Comparison) -> str:
    seeds = sorted({run.start.seed for run in record.runs})
    workers = max((row.num_workers for row in comparison.rows), default=0)
    settings = record.header.settings
    cluster = cluster_of(record.header.cluster)
    facts = [
        ("task", settings.get("task")),
        ("cluster", cluster.name if cluster else settings.get("cluster")),
        ("workers", workers or None),
        ("methods", len(comparison.rows)),
        ("seeds each", len(seeds)),
        ("parameters", _sizes(record)),
    ]
    items = "".join(
        f"<li>{escape(key)} <b>{escape(str(value))}</b></li>"
        for key, value in facts
        if value is not None and value != ""
    )
    unfinished = [run for run in record.runs if run.status not in ("ok", "failed")]
    notice = ""
    if unfinished:
        notice = (
            '<p class="notice">This record is incomplete: '
            f"{len(unfinished)} of {len(record.runs)} runs begun did not end. What follows is "
            "about the finished ones.</p>"
        )
    created = record.header.created.replace("T", " ")[:16]
    return (
        f'<header><p class="kicker">thinwire · {escape(_title(comparison))} · {escape(created)}</p>'
        f'<h1 class="verdict">{escape(verdict(comparison))}</h1>'
        f'<ul class="facts">{items}</ul>{notice}</header>'
    )


def _sizes(record: Record) -> str:
    sizes = sorted({run.start.num_params for run in record.runs})
    return " or ".join(format_count(size) for size in sizes)


def _table(comparison: Comparison) -> str:
    columns = columns_of(comparison)
    best = {column.key: best_rows(column, comparison) for column in columns}
    head = "".join(
        f'<th scope="col" title="{escape(column.meaning)}">{escape(column.heading)}</th>'
        for column in columns
    )
    body = []
    for row in comparison.rows:
        cells = []
        for column in columns:
            cell = column.cell(row)
            css = "best" if row.label in best[column.key] else ""
            css = css or ("miss" if cell.missed and cell.text != "–" else "")
            spread = f"<small>{escape(cell.spread)}</small>" if cell.spread else ""
            cells.append(
                f'<td class="{css}" data-title="{escape(column.heading)}">'
                f"<span>{escape(cell.text)}</span>{spread}</td>"
            )
        css = ' class="long"' if len(row.label) > LONG_LABEL else ""
        body.append(f'<tr><th scope="row"{css}>{escape(row.label)}</th>{"".join(cells)}</tr>')
    return (
        '<section><h2>The numbers</h2><p class="soft">★ best of its column, costs among those that '
        "reached the target. What each column is: "
        '<a href="#meaning">below</a>.</p>'
        f'<div class="scroll"><table class="summary"><thead><tr><th scope="col">method</th>{head}'
        f"</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def _remarks(record: Record, comparison: Comparison) -> str:
    told = remarks(comparison, record)
    items = "".join(f"<li>{escape(each)}</li>" for each in told)
    return (f'<ul class="remarks">{items}</ul>' if items else "") + "</section>"


def _meaning(record: Record, comparison: Comparison) -> str:
    models = sorted({run.start.wire_model for run in record.runs if run.start.wire_model})
    clock = (
        "Time is virtual: gradients are really computed, but how long computing and sending take "
        f"comes from the cluster description (link model: {', '.join(models) or 'not stated'}). "
        "It says what such a cluster would take, not how long this computer took."
        if comparison.mode == "virtual"
        else "Time is real, from the start of a run to the line recorded."
    )
    terms = {
        **{column.heading: _sentence(column.meaning) for column in columns_of(comparison)},
        "tie": "The seeds’ ranges overlap, or the medians differ by at most 2 %.",
        "miss": "At least one finished seed never reached the target. Such a method has no time "
        "and no speed-up, however early the other seeds were. A failed run is a miss; an "
        "interrupted one is left out.",
        "not kept": "The final accuracy is more than a point below the target. The verdict passes "
        "such a method over.",
        "training loss in the curves": "Mean over workers and over stretches of up to a fortieth "
        "of the run.",
    }
    items = "".join(
        f"<div><dt>{escape(term)}</dt><dd>{escape(text)}</dd></div>" for term, text in terms.items()
    )
    return (
        '<section id="meaning"><h2>What the numbers mean</h2>'
        f"<p>{escape(clock)} Accuracy is only known where it was evaluated, so a time to the "
        "target is late by up to one interval between evaluations.</p>"
        f'<dl class="meaning">{items}</dl></section>'
    )


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _settings(record: Record) -> str:
    header = record.header
    versions = ", ".join(f"{name} {version}" for name, version in header.versions.items())
    machine = ", ".join(f"{name} {value}" for name, value in header.machine.items())
    blocks = [
        f"<dt>versions</dt><dd>{escape(versions)}</dd>" if versions else "",
        f"<dt>computed on</dt><dd>{escape(machine)}</dd>" if machine else "",
        f"<dt>record</dt><dd>{escape(_record_size(record))}</dd>",
    ]
    commands = "\n".join(shlex.join(each.command) for each in record.headers)
    per_method = {
        label: record.of(label)[0].start.settings
        for label in record.labels
        if record.of(label)[0].start.settings
    }
    return (
        "<section><h2>Settings and versions</h2>"
        f"<pre>{escape(commands)}</pre>"
        f'<dl class="settings">{"".join(blocks)}{_flat(header.settings)}</dl>'
        '<details class="printed"><summary>Settings of each method</summary>'
        + "".join(
            f'<h3>{escape(label)}</h3><dl class="settings">{_flat(settings)}</dl>'
            for label, settings in per_method.items()
        )
        + "</details></section>"
        '<footer class="soft">Made by thinwire from record.jsonl; <code>thinwire report FOLDER'
        "</code> makes this page again.</footer>"
    )


def _record_size(record: Record) -> str:
    lines = sum(len(run.steps) + len(run.evals) + len(run.spans) for run in record.runs)
    return f"{len(record.runs)} runs, {format_count(lines)} lines"


def _flat(settings: Mapping[str, Any], prefix: str = "") -> str:
    parts = []
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            parts.append(_flat(value, f"{name}."))
            continue
        if isinstance(value, list):
            value = ", ".join(str(each) for each in value)
        parts.append(f"<dt>{escape(name)}</dt><dd><code>{escape(str(value))}</code></dd>")
    return "".join(parts)
