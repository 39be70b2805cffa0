"""The pictures of the page: bars, curves, timelines and the cluster, each a section of HTML."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import msgspec

from thinwire.report.charts import Axis, colour, dashes, line_chart, marker
from thinwire.report.compare import Comparison, MethodSummary
from thinwire.report.curves import AXES, METRICS, Curve, curve_of
from thinwire.report.gantt import MAX_ROWS, gantt
from thinwire.report.reader import Record, RunRecord
from thinwire.report.topology import cluster_of, slowness, topology
from thinwire.report.words import join_words, time_words
from thinwire.units import format_count, format_size, format_time

__all__ = [
    "LONG_LABEL",
    "bars_section",
    "chosen_css",
    "cluster_section",
    "curves_data",
    "curves_of",
    "curves_section",
    "line_styles",
    "timelines_section",
]

LONG_LABEL = 20
"""Longer labels may be broken into lines."""

_WIDE, _NARROW = (1000, 430), (360, 320)
_LOG_FROM = 6.0
_LOG_DECADES = 1000.0
_AXIS_NAMES = {"time": "time", "steps": "steps", "bytes": "bytes"}
_METRIC_NAMES = {"accuracy": "test accuracy", "loss": "training loss"}


def line_styles(comparison: Comparison) -> dict[str, int]:
    """Label to style number; the baselines first, so that they look the same in every report."""
    first = [comparison.baselines[b] for b in ("alone", "ssgd") if b in comparison.baselines]
    rest = [row.label for row in comparison.rows if row.label not in first]
    return {label: index for index, label in enumerate([*first, *rest])}


def _swatch(style: int) -> str:
    return (
        '<svg class="swatch" viewBox="0 0 34 14" aria-hidden="true">'
        f'<path class="line {colour(style)}"{dashes(style)} d="M0 7H34"/>'
        f"{marker(style, 17, 7, 4.5, f'mark {colour(style)}')}</svg>"
    )


def bars_section(comparison: Comparison, styles: Mapping[str, int]) -> str:
    """Time to the target, a bar per method, the soonest first; misses hatched.

    Args:
        comparison: what to draw.
        styles: from `line_styles`.
    """
    if comparison.target is None:
        return ""
    longest = max((row.time.high for row in comparison.rows if row.time), default=0.0)
    lost = [row for row in comparison.rows if row.time is not None and not row.kept]
    missed = [row for row in comparison.rows if row.time is None and row.times]
    entries = "".join(
        _bar(row, styles[row.label], longest) for row in [*comparison.ranked, *lost, *missed]
    )
    return (
        f"<section><h2>{escape(f'{comparison.mode} time to'.strip().capitalize())} "
        f"{escape(str(comparison.target))}</h2>"
        f'<p class="soft">Target: {escape(comparison.target.source)}. Bar: median over the seeds; '
        "dot: a seed. Shorter is better.</p>"
        f'<div class="bars">{entries}</div></section>'
    )


def _bar(row: MethodSummary, style: int, longest: float) -> str:
    css = "label long" if len(row.label) > LONG_LABEL else "label"
    label = f'<div class="{css}">{_swatch(style)}{escape(row.label)}</div>'
    if row.time is None:
        hits = [time_words(time) for time in row.times if time is not None]
        reached = f"reached on {row.hits} of {len(row.times)} seeds"
        title = f"reached after {join_words(hits)} on the others" if hits else "no seed reached it"
        return (
            f'<div class="entry">{label}'
            f'<div class="track missed" title="{escape(title)}"></div>'
            f'<div class="value"><span class="miss">miss</span> '
            f"<small>{reached}</small></div></div>"
        )
    note = "" if row.kept else ' <small class="miss">not kept</small>'
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
        f'<div class="value"><b>{time_words(row.time.median)}</b>{note}</div></div>'
    )


def curves_of(record: Record) -> dict[tuple[str, str], list[Curve]]:
    """Every method's curve, for each pair of metric and axis."""
    groups = {label: record.of(label) for label in record.labels}
    found: dict[tuple[str, str], list[Curve]] = {}
    for metric in METRICS:
        for axis in AXES:
            drawn = [curve_of(label, runs, metric, axis) for label, runs in groups.items()]
            found[metric, axis] = [curve for curve in drawn if curve is not None]
    return found


def curves_data(curves: Mapping[tuple[str, str], Sequence[Curve]]) -> dict[str, Any]:
    """What the page's script needs for hover values, rounded to five digits."""
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


def curves_section(
    curves: Mapping[tuple[str, str], Sequence[Curve]],
    comparison: Comparison,
    styles: Mapping[str, int],
) -> str:
    """Accuracy and loss against time, steps and bytes, one shown at a time.

    Args:
        curves: from `curves_of`.
        comparison: of the same record.
        styles: from `line_styles`.
    """
    if not any(curves.values()):
        return ""
    panels = [
        _panel(metric, axis, drawn, comparison, styles)
        for (metric, axis), drawn in curves.items()
        if drawn
    ]
    legend = "".join(f"<li>{_swatch(style)}{escape(label)}</li>" for label, style in styles.items())
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


def chosen_css() -> str:
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
    crossings = {
        row.label: row.time.median for row in comparison.rows if row.time and axis == "time"
    }
    x_axis = _x_axis(axis, curves, comparison.mode, list(crossings.values()))
    y_axis = _y_axis(metric, curves, goal)
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


def _x_axis(axis: str, curves: Sequence[Curve], mode: str, crossings: Sequence[float]) -> Axis:
    ends = [curve.x[-1] for curve in curves if curve.x[-1] > 0]
    high = max(ends, default=1.0)
    # On a linear axis what ends six times earlier would be a stub.
    log = bool(ends) and high / min(ends) > _LOG_FROM
    firsts = [next((x for x in curve.x if x > 0), high) for curve in curves]
    low = 0.0
    if log:
        low = min(max(min(firsts), high / _LOG_DECADES), min(ends) / 3)
        low = min([low, *(0.8 * x for x in crossings)])
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
        wanted = min(curve.mean[-1] for curve in curves)
        # Methods differ in the last per cents; the climb from chance to there, or a fall far below
        # the target, tells little.
        if target is not None:
            wanted = max(min(wanted, target), target - 0.3)
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


def timelines_section(record: Record) -> str:
    """The first steps of one seed of each method that holds spans."""
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
        'of its own. <span class="wide">At the right: the share of the whole run spent waiting.'
        "</span> The whole recording, trace.json.gz beside this page, opens in ui.perfetto.dev.</p>"
        '<p class="soft"><span class="key compute"></span>computes<span class="key wait"></span>'
        'waits for a message<span class="key send"></span>sends'
        '<span class="key slower"></span>slower machine</p>'
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


def cluster_section(record: Record) -> str:
    """The cluster drawn, and its description."""
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
