"""One self-contained page: verdict, table, curves, timeline, cluster, settings.

It opens from a file without a network: no font, script or picture is loaded. All text of the record
is escaped. Charts are inline SVG; the tabs work without scripts, hover values need them.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

import msgspec

from thinwire.report.charts import Axis, colour, dashes, line_chart, marker
from thinwire.report.compare import Comparison, MethodSummary
from thinwire.report.curves import AXES, METRICS, Curve, curve_of
from thinwire.report.gantt import MAX_ROWS, gantt
from thinwire.report.reader import Record, RunRecord
from thinwire.report.table import best_rows, columns_of
from thinwire.report.topology import cluster_of, slowness, topology
from thinwire.report.verdict import remarks, verdict
from thinwire.report.words import join_words, time_words
from thinwire.units import format_count, format_size, format_time

__all__ = ["report_html"]

_WIDE, _NARROW = (940, 420), (360, 320)
_LOG_FROM = 6.0
_AXIS_NAMES = {"time": "time", "steps": "steps", "bytes": "bytes"}
_METRIC_NAMES = {"accuracy": "test accuracy", "loss": "training loss"}


def report_html(record: Record, comparison: Comparison) -> str:
    """The page for a record.

    Args:
        record: as read.
        comparison: of the same record.
    """
    styles = {row.label: index for index, row in enumerate(_styled(comparison))}
    curves = _curves(record)
    sections = [
        _opening(record, comparison),
        _bars(comparison, styles),
        _table(comparison),
        _remarks(record, comparison),
        _charts(curves, comparison, styles),
        _timelines(record),
        _cluster(record),
        _meaning(record, comparison),
        _settings(record),
    ]
    data = msgspec.json.encode(_curve_data(curves)).decode().replace("<", "\\u003c")
    return _PAGE.format(
        title=escape(f"{_clock(comparison)}comparison of {len(comparison.rows)} methods"),
        css=_template("page.css") + _tab_css(),
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


def _clock(comparison: Comparison) -> str:
    return f"{comparison.mode} " if comparison.mode else ""


def _styled(comparison: Comparison) -> list[MethodSummary]:
    """The baselines first, so that they look the same in every report."""
    first = [comparison.baselines[b] for b in ("alone", "ssgd") if b in comparison.baselines]
    return sorted(
        comparison.rows,
        key=lambda row: first.index(row.label) if row.label in first else len(first),
    )


def _opening(record: Record, comparison: Comparison) -> str:
    seeds = sorted({run.start.seed for run in record.runs})
    workers = max((row.num_workers for row in comparison.rows), default=0)
    settings = record.header.settings
    facts = [
        ("task", settings.get("task")),
        ("cluster", settings.get("cluster")),
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
        f'<header><p class="kicker">thinwire comparison · {escape(created)}</p>'
        f'<h1 class="verdict">{escape(verdict(comparison))}</h1>'
        f'<ul class="facts">{items}</ul>{notice}</header>'
    )


def _sizes(record: Record) -> str:
    sizes = sorted({run.start.num_params for run in record.runs})
    return " or ".join(format_count(size) for size in sizes)


def _swatch(style: int) -> str:
    return (
        '<svg class="swatch" viewBox="0 0 34 14" aria-hidden="true">'
        f'<path class="line {colour(style)}"{dashes(style)} d="M0 7H34"/>'
        f"{marker(style, 17, 7, 4.5, f'mark {colour(style)}')}</svg>"
    )


def _bars(comparison: Comparison, styles: Mapping[str, int]) -> str:
    if comparison.target is None:
        return ""
    longest = max((row.time.high for row in comparison.rows if row.time), default=0.0)
    missed = [row for row in comparison.rows if row.time is None and row.times]
    entries = "".join(
        _bar(row, styles[row.label], longest) for row in [*comparison.ranked, *missed]
    )
    return (
        f"<section><h2>{escape(_clock(comparison).capitalize())}time to "
        f"{escape(str(comparison.target))}</h2>"
        f'<p class="soft">Target: {escape(comparison.target.source)}. Bar: median over the seeds; '
        "dot: a seed. Shorter is better.</p>"
        f'<div class="bars">{entries}</div></section>'
    )


def _bar(row: MethodSummary, style: int, longest: float) -> str:
    label = f'<div class="label">{_swatch(style)}{escape(row.label)}</div>'
    if row.time is None:
        hits = [time_words(time) for time in row.times if time is not None]
        reached = f"miss: {row.hits} of {len(row.times)} seeds"
        title = f"reached after {join_words(hits)} on the others" if hits else "no seed reached it"
        return (
            f'<div class="entry">{label}'
            f'<div class="track missed" title="{escape(title)}"></div>'
            f'<div class="value"><span class="miss">{reached}</span></div></div>'
        )
    share = 100 / longest if longest else 0.0
    dots = "".join(
        f'<i class="seed" style="left:{time * share:.2f}%" title="{time_words(time)}"></i>'
        for time in row.times
        if time is not None
    )
    return (
        f'<div class="entry">{label}'
        f'<div class="track"><div class="bar {colour(style)}" '
        f'style="width:{row.time.median * share:.2f}%"></div>{dots}</div>'
        f'<div class="value"><b>{time_words(row.time.median)}</b></div></div>'
    )


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
        body.append(f'<tr><th scope="row">{escape(row.label)}</th>{"".join(cells)}</tr>')
    return (
        '<section><h2>The numbers</h2><p class="soft">★ best of its column. What each column is: '
        '<a href="#meaning">below</a>.</p>'
        f'<div class="scroll"><table class="summary"><thead><tr><th scope="col">method</th>{head}'
        f"</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def _remarks(record: Record, comparison: Comparison) -> str:
    told = remarks(comparison, record)
    items = "".join(f"<li>{escape(each)}</li>" for each in told)
    return (f'<ul class="remarks">{items}</ul>' if items else "") + "</section>"


def _curves(record: Record) -> dict[tuple[str, str], list[Curve]]:
    groups = {label: record.of(label) for label in record.labels}
    found: dict[tuple[str, str], list[Curve]] = {}
    for metric in METRICS:
        for axis in AXES:
            drawn = [curve_of(label, runs, metric, axis) for label, runs in groups.items()]
            found[metric, axis] = [curve for curve in drawn if curve is not None]
    return found


def _curve_data(curves: Mapping[tuple[str, str], Sequence[Curve]]) -> dict[str, Any]:
    return {
        f"{metric}-{axis}": {
            "metric": metric,
            "axis": axis,
            "series": [
                {
                    "label": curve.label,
                    "x": [_short(x) for x in curve.x],
                    "y": [_short(y) for y in curve.mean],
                }
                for curve in drawn
            ],
        }
        for (metric, axis), drawn in curves.items()
    }


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def _charts(
    curves: Mapping[tuple[str, str], Sequence[Curve]],
    comparison: Comparison,
    styles: Mapping[str, int],
) -> str:
    if not any(curves.values()):
        return ""
    panels = [
        _panel(metric, axis, drawn, comparison, styles)
        for (metric, axis), drawn in curves.items()
        if drawn
    ]
    legend = "".join(
        f"<li>{_swatch(style)}{escape(label)}</li>" for label, style in styles.items()
    )
    return (
        '<section><h2>Curves</h2><p class="soft">Line: mean over the seeds; band: lowest to '
        "highest seed. Mark on the target: median time at which every seed had reached it.</p>"
        f'<div class="tabs">{_tab_inputs()}<div class="tab-row">{_tab_labels()}</div>'
        f'<div class="panels">{"".join(panels)}</div></div>'
        f'<ul class="legend">{legend}</ul></section>'
    )


def _tab_inputs() -> str:
    metrics = "".join(
        f'<input type="radio" name="metric" id="m-{m}"{" checked" if m == "accuracy" else ""}>'
        for m in METRICS
    )
    axes = "".join(
        f'<input type="radio" name="axis" id="x-{a}"{" checked" if a == "time" else ""}>'
        for a in AXES
    )
    return metrics + axes


def _tab_labels() -> str:
    metrics = "".join(f'<label for="m-{m}">{_METRIC_NAMES[m]}</label>' for m in METRICS)
    axes = "".join(f'<label for="x-{a}">by {_AXIS_NAMES[a]}</label>' for a in AXES)
    return f'<div class="tab-group">{metrics}</div><div class="tab-group">{axes}</div>'


def _tab_css() -> str:
    """The rules that show the chosen panel; generated, for they name every pair."""
    shown = ",".join(
        f"#m-{m}:checked~#x-{a}:checked~.panels .{m}-{a}" for m in METRICS for a in AXES
    )
    keys = [f"m-{m}" for m in METRICS] + [f"x-{a}" for a in AXES]
    chosen = ",".join(f'#{k}:checked~.tab-row label[for="{k}"]' for k in keys)
    focus = ",".join(f'#{k}:focus-visible~.tab-row label[for="{k}"]' for k in keys)
    return (
        f"{shown}{{display:block}}\n"
        f"{chosen}{{background:var(--ink);color:var(--bg)}}\n"
        f"{focus}{{outline:2px solid var(--compute);outline-offset:-2px}}\n"
    )


def _panel(
    metric: str,
    axis: str,
    curves: Sequence[Curve],
    comparison: Comparison,
    styles: Mapping[str, int],
) -> str:
    goal = comparison.target.accuracy if comparison.target else None
    x_axis, y_axis = _x_axis(axis, curves, comparison.mode), _y_axis(metric, curves, goal)
    crossings = {
        row.label: row.time.median for row in comparison.rows if row.time and axis == "time"
    }
    crossings = {label: x for label, x in crossings.items() if x >= x_axis.low}
    title = f"{_METRIC_NAMES[metric]} against {_AXIS_NAMES[axis]}"
    parts = []
    for css, (width, height) in (("wide", _WIDE), ("narrow", _NARROW)):
        chart = line_chart(
            curves,
            styles,
            x_axis,
            y_axis,
            width=width,
            height=height,
            name=title,
            target=goal if metric == "accuracy" else None,
            crossings=crossings if metric == "accuracy" else None,
        )
        geometry = escape(msgspec.json.encode(chart.geometry).decode())
        parts.append(
            f'<figure class="{css}" data-chart="{metric}-{axis}" data-geometry="{geometry}">'
            f"{chart.svg}</figure>"
        )
    return f'<div class="panel {metric}-{axis}"><h3>{title}</h3>{"".join(parts)}</div>'


def _x_axis(axis: str, curves: Sequence[Curve], mode: str) -> Axis:
    ends = [curve.x[-1] for curve in curves if curve.x[-1] > 0]
    high = max(ends, default=1.0)
    # On a linear axis what ends six times earlier would be a stub.
    log = bool(ends) and high / min(ends) > _LOG_FROM
    firsts = [x for curve in curves for x in curve.x[:1] if x > 0]
    low = min([*firsts, min(ends, default=1.0) / 3]) if log else 0.0
    names = {
        "time": f"{mode} time" if mode else "time",
        "steps": "steps of each worker",
        "bytes": "bytes sent per worker",
    }
    words = {"time": format_time, "steps": format_count, "bytes": format_size}
    title = names[axis] + (", logarithmic" if log else "")
    return Axis(title=title, low=low, high=high, log=log, words=words[axis])


def _y_axis(metric: str, curves: Sequence[Curve], target: float | None) -> Axis:
    if metric == "accuracy":
        finals = [curve.mean[-1] for curve in curves]
        # Methods differ in the last per cents; the climb from chance to there tells little.
        wanted = min([*finals, target if target is not None else 1.0])
        top = max([*(max(curve.high) for curve in curves), target or 0.0])
        low = max(0.0, math.floor((wanted - 0.15) * 20) / 20)
        return Axis(
            title="",
            low=low,
            high=min(1.0, top + 0.06 * (top - low)),
            words=lambda value: f"{value * 100:g} %",
        )
    values = [value for curve in curves for value in curve.mean if value > 0]
    low, high = min(values, default=0.1), max(values, default=1.0)
    high = max(high, low * 2)
    return Axis(title="", low=low / 1.2, high=high * 1.1, log=True, words=lambda v: f"{v:g}")


def _timelines(record: Record) -> str:
    cluster = cluster_of(record.header.cluster)
    lanes = []
    for label in record.labels:
        run = next((each for each in record.of(label) if each.spans), None)
        if run is None:
            continue
        slower = slowness(cluster, run.start.nodes)
        wide = gantt(run, run.start.nodes, slower, width=_WIDE[0])
        narrow = gantt(run, run.start.nodes, slower, width=_NARROW[0])
        if wide:
            lanes.append(_lane(run, wide, narrow))
    if not lanes:
        return ""
    return (
        "<section><h2>Who computed, waited and sent, when</h2>"
        '<p class="soft">The first steps of one seed of each method; each picture has a time scale '
        "of its own. At the right, the share of the whole run spent waiting. The recording opens in ui.perfetto.dev: trace.json.gz, beside this "
        "page.</p>"
        '<p class="soft"><span class="key compute"></span>computes<span class="key wait"></span>'
        'waits for a message<span class="key send"></span>sends</p>'
        f"{''.join(lanes)}</section>"
    )


def _lane(run: RunRecord, wide: str, narrow: str) -> str:
    count = len(run.start.nodes)
    many = f", {MAX_ROWS} of {count} workers" if count > MAX_ROWS else ""
    return (
        f'<div class="lane"><h3>{escape(run.start.label)} '
        f'<span class="soft">seed {run.start.seed}{many}</span></h3>'
        f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div></div>'
    )


def _cluster(record: Record) -> str:
    text = record.header.cluster
    cluster = cluster_of(text)
    if cluster is None:
        if not text.strip():
            return ""
        drawn = '<p class="soft">This version cannot draw it; the description follows.</p>'
        title = "The cluster"
    else:
        title = f"The cluster: {cluster.name}"
        drawn = f'<p class="soft">{escape(cluster.description)}</p>{topology(cluster)}'
    return (
        f"<section><h2>{escape(title)}</h2>{drawn}"
        f"<details><summary>As TOML</summary><pre>{escape(text)}</pre></details></section>"
    )


def _meaning(record: Record, comparison: Comparison) -> str:
    items = "".join(
        f"<div><dt>{escape(column.heading)}</dt><dd>{escape(_sentence(column.meaning))}</dd></div>"
        for column in columns_of(comparison)
    )
    models = sorted({run.start.wire_model for run in record.runs if run.start.wire_model})
    clock = (
        "Time is virtual: gradients are really computed, but how long computing and sending take "
        f"comes from the cluster description (link model: {', '.join(models) or 'not stated'}). "
        "It says what such a cluster would take, not how long this computer took."
        if comparison.mode == "virtual"
        else "Time is real, from the start of a run to the line recorded."
    )
    return (
        '<section id="meaning"><h2>What the numbers mean</h2>'
        f"<p>{clock} Accuracy is only known where it was evaluated, so a time to the target is "
        "late by up to one interval between evaluations.</p>"
        f'<dl class="meaning">{items}<div><dt>tie</dt><dd>The seeds’ ranges overlap, or the medians '
        "differ by at most 2 %.</dd></div><div><dt>miss</dt><dd>At least one finished seed never reached the "
        "target. Such a method has no time and no speed-up, however early the other seeds were. "
        "A failed run is a miss; an interrupted one is left out.</dd></div><div><dt>training loss in the curves</dt><dd>"
        "Mean over workers and over stretches of up to a sixtieth of the run.</dd></div></dl></section>"
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
        "<details class=\"printed\"><summary>Settings of each method</summary>"
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
