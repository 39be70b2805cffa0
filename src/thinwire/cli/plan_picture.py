"""The best methods of a plan as a picture: who computes, sends and waits, one below the other."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from thinwire.planner.steps import StepTimeline
from thinwire.report import End, Run, RunRecord, Span
from thinwire.report.gantt import rows_of_steps
from thinwire.units import format_time

__all__ = ["timelines_svg"]

_WIDTH = 900
_MARGIN = 16
_HEAD, _PANEL_HEAD, _GAP = 56, 24, 14

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


def timelines_svg(title: str, timelines: Sequence[StepTimeline]) -> str:
    """The picture as one SVG document that needs nothing else.

    Args:
        title: what is trained, and where.
        timelines: the advice first.
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
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" role="img" '
        f'aria-label="{escape(title)}"><style>{_CSS}</style>{"".join(parts)}</svg>\n'
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
