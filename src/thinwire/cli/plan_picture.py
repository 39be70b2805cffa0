"""The best methods of a plan as a picture: who computes, sends and waits, one below the other."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from thinwire.planner.steps import StepTimeline
from thinwire.report import End, Run, RunRecord, Span
from thinwire.report.charts import Axis, colour, dashes, line_chart, marker
from thinwire.report.curves import Curve
from thinwire.report.gantt import rows_of_steps
from thinwire.units import format_time

if TYPE_CHECKING:
    from thinwire.planner.pilot import Learned, Pilot

__all__ = ["timelines_svg"]

_WIDTH = 900
_MARGIN = 16
_HEAD, _PANEL_HEAD, _GAP = 56, 24, 14
_CHART, _LEGEND, _COLUMNS = 320, 20, 3

_CSS = """
svg { font: 12px system-ui, sans-serif; background: #fff; color: #1b1f24; }
text { fill: currentColor; } .title { font-size: 14px; font-weight: 600; }
.panel { font-weight: 600; } .tick { font-size: 11px; opacity: .75; }
.grid { stroke: currentColor; stroke-opacity: .15; }
.compute { fill: #2f6db3; } .send { fill: #d9680f; } .wait { fill: #dfe4ea; }
.slow { fill: #8a4b00; }
@media (prefers-color-scheme: dark) {
  svg { background: #12161b; color: #e6eaef; }
  .compute { fill: #5a9be0; } .send { fill: #ff9a4d; } .wait { fill: #2c343d; }
  .slow { fill: #f3c06b; }
}
@media print { svg { background: #fff; color: #000; } }
"""

_CURVE_CSS = """
.line { fill: none; stroke-width: 2; stroke-linejoin: round; } .line.partial { opacity: .6; }
.base, .leader { stroke: currentColor; stroke-opacity: .5; fill: none; } .cursor { display: none; }
.axis { font-size: 11px; } .name { font-size: 12px; }
"""
_LIGHT = ("#3d444d", "#c44e00", "#b07a00", "#9a4a86", "#0068b3", "#00805c", "#7a5230", "#2a8fcb")
_DARK = ("#c9d1d9", "#ff8a50", "#f0c040", "#e39ac9", "#5aaef0", "#3ecf9b", "#d0a27a", "#8fd8ff")
"""Of the curves, as in a comparison's report."""


def timelines_svg(title: str, timelines: Sequence[StepTimeline], pilot: Pilot | None = None) -> str:
    """The picture as one SVG document that needs nothing else.

    Args:
        title: what is trained, and where.
        timelines: the advice first.
        pilot: whose curves of loss over virtual time stand below; None: there are none.
    """
    parts, y = [_head(title, timelines)], _HEAD
    for place, timeline in enumerate(timelines):
        body, height = rows_of_steps(
            _record(timeline),
            timeline.nodes,
            timeline.slower,
            width=_WIDTH - 2 * _MARGIN,
            end=timeline.shown,
        )
        advice = " (the advice)" if place == 0 else ""
        step = format_time(timeline.step_time)
        parts.append(
            f'<text class="panel" x="{_MARGIN}" y="{y + 14}">'
            f"{escape(timeline.label)}{advice}: {step} a step</text>"
            f'<g transform="translate({_MARGIN} {y + _PANEL_HEAD})">{body}</g>'
        )
        y += _PANEL_HEAD + height + _GAP
    css = _CSS
    if pilot is not None and pilot.rows:
        css = f"{_CSS}{_CURVE_CSS}{_colours()}"
        parts.append(_curves(pilot, y))
        y += _PANEL_HEAD + _CHART + _LEGEND * _lines_of(pilot) + _GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" role="img" '
        f'aria-label="{escape(title)}"><style>{css}</style>{"".join(parts)}</svg>\n'
    )


def _head(title: str, timelines: Sequence[StepTimeline]) -> str:
    """What it is, how it came about, and what the colours mean."""
    simulated = any(timeline.simulated for timeline in timelines)
    how = "simulated, program by program" if simulated else "closed forms, phase by phase"
    parts = [f'<text class="title" x="{_MARGIN}" y="22">{escape(title)}: {how}</text>']
    x = _MARGIN
    for what, word in (("compute", "computes"), ("send", "sends"), ("wait", "waits")):
        top, high = (39, 4) if what == "send" else (34, 12)
        parts.append(
            f'<rect class="{what}" x="{x}" y="{top}" width="20" height="{high}"/>'
            f'<text class="tick" x="{x + 26}" y="44">{word}</text>'
        )
        x += 100
    return "".join(parts)


def _colours() -> str:
    """The rules of the curves' colours, for light and dark."""
    light, dark = (
        "".join(
            f".line.s{i} {{ stroke: {value}; }} .mark.s{i} {{ fill: {value}; }}\n"
            for i, value in enumerate(colours)
        )
        for colours in (_LIGHT, _DARK)
    )
    return f"{light}@media (prefers-color-scheme: dark) {{\n{dark}}}\n"


def _curves(pilot: Pilot, y: int) -> str:
    """Loss over virtual time, as far as the first that is done came, and as much again."""
    until = 2 * (pilot.common_time or max(each.times[-1] for each in pilot.rows))
    curves = [_curve(each, until) for each in pilot.rows]
    values = [value for curve in curves for value in curve.mean]
    low, high = min(values), max(values)
    log = low > 0
    chart = line_chart(
        curves,
        {curve.label: place for place, curve in enumerate(curves)},
        Axis(title="virtual time", low=0.0, high=max(curve.x[-1] for curve in curves),
             words=lambda seconds: format_time(seconds) if seconds else "0"),
        Axis(title="", low=low * 0.9 if log else low - 0.1 * (high - low), high=high * 1.05,
             log=log, words=lambda loss: f"{loss:g}"),
        width=_WIDTH - 2 * _MARGIN,
        height=_CHART,
        name="test loss of the pilot",
    )  # fmt: skip
    place = f'x="{_MARGIN}" y="{y + _PANEL_HEAD}" width="{_WIDTH - 2 * _MARGIN}" height="{_CHART}"'
    return (
        f'<text class="panel" x="{_MARGIN}" y="{y + 14}">Test loss of {escape(pilot.task)} by '
        f"virtual time</text>{chart.svg.replace('<svg ', f'<svg {place} ', 1)}"
        f"{_legend(pilot, y + _PANEL_HEAD + _CHART)}"
    )


def _lines_of(pilot: Pilot) -> int:
    """Of the legend."""
    return -(-len(pilot.rows) // _COLUMNS)


def _legend(pilot: Pilot, y: int) -> str:
    """Every curve by name: beside its end there may be no room."""
    parts, width = [], (_WIDTH - 2 * _MARGIN) // _COLUMNS
    for place, each in enumerate(pilot.rows):
        x, middle = _MARGIN + width * (place % _COLUMNS), y + _LEGEND * (place // _COLUMNS) + 10
        parts.append(
            f'<path class="line {colour(place)}"{dashes(place)} d="M{x} {middle}H{x + 34}"/>'
            f"{marker(place, x + 17, middle, 4.5, f'mark {colour(place)}')}"
            f'<text class="name" x="{x + 42}" y="{middle + 4}">{escape(each.label)}</text>'
        )
    return "".join(parts)


def _curve(each: Learned, until: float) -> Curve:
    """The part of it that is drawn."""
    kept = [i for i, time in enumerate(each.times) if time <= until]
    kept = kept if len(kept) > 1 else [0, 1]
    losses = tuple(each.curve.losses[i] for i in kept)
    return Curve(label=each.label, x=tuple(each.times[i] for i in kept), mean=losses, low=losses,
                 high=losses, num_seeds=1, partial=not each.curve.whole)  # fmt: skip


def _record(timeline: StepTimeline) -> RunRecord:
    """As a run's record, which is what the drawing reads."""
    label, ranks = timeline.label, range(len(timeline.nodes))
    start = Run(run=label, label=label, method=label, seed=0, mode="virtual", settings={},
                nodes=list(timeline.nodes), num_params=0)  # fmt: skip
    spans = [
        Span(run=label, rank=a.rank, what=a.what, start=a.start, end=a.end)
        for a in timeline.activities
    ]
    waited = [timeline.seconds(rank, "wait") for rank in ranks]
    end = End(run=label, status="ok", time=timeline.shown, waited=waited)
    return RunRecord(start=start, spans=spans, end=end)
