"""Published against ours as a picture of its own: SVG, or a page with the picture and the tables.

A panel for each section that has lines with a series and a published figure: published to the
right, ours upwards, both logarithmic, so that a line that agrees lies on the diagonal. What was
fitted is hollow; the band is 15 % wide to either side.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable
from html import escape

from thinwire.report.charts import Scale, marker, ticks
from thinwire.reproduce.line import Line, Result
from thinwire.reproduce.render import KIND_WORDS, figure, ratio_text, verdict

__all__ = ["picture_page", "picture_svg"]

_WIDTH, _HEIGHT, _COLUMNS = 380, 330, 2
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 16, 46, 66
_TITLE = 30
_BAND = 1.15
_LETTERS = 46  # of a panel's title

_CSS = """
svg { font: 12px system-ui, sans-serif; background: #fff; color: #222; }
.title { font-weight: 600; } .small { font-size: 11px; } text { fill: currentColor; }
.grid { stroke: currentColor; stroke-opacity: .15; } .same { stroke: currentColor; opacity: .6; }
.band { fill: currentColor; opacity: .08; }
.s0 { color: #0068b5; } .s1 { color: #c2410c; } .s2 { color: #15803d; } .s3 { color: #7e22ce; }
.dot { fill: currentColor; stroke: currentColor; stroke-width: 1.5; } .hollow { fill: none; }
@media (prefers-color-scheme: dark) {
  svg { background: #16181c; color: #e6e6e6; }
  .s0 { color: #5cb3ff; } .s1 { color: #ff9b5e; } .s2 { color: #5fd28a; } .s3 { color: #cf9bff; }
}
@media print { svg { background: #fff; color: #000; } }
"""

_PAGE_CSS = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 1rem auto; padding: 0 1rem;
  background: #fff; color: #222; }
svg { width: 100%; height: auto; } table { border-collapse: collapse; margin: .5rem 0 1.5rem; }
.wide { overflow-x: auto; } td, th { padding: .15rem .8rem .15rem 0; text-align: right; }
td:first-child, th:first-child { text-align: left; } .no { color: #b91c1c; font-weight: 600; }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #e6e6e6; }
  .no { color: #ff8a8a; } }
@media print { body { background: #fff; color: #000; } }
"""


def picture_svg(result: Result) -> str:
    """The picture as one SVG document that needs nothing else."""
    panels = {
        section: drawn
        for section, lines in result.sections().items()
        if (drawn := [line for line in lines if line.series and line.published and line.ours > 0])
    }
    rows = math.ceil(len(panels) / _COLUMNS)
    width, height = _COLUMNS * _WIDTH, _TITLE + rows * _HEIGHT
    body = [f'<text class="title" x="12" y="20">{escape(result.title)}</text>']
    for i, (section, lines) in enumerate(panels.items()):
        x, y = i % _COLUMNS * _WIDTH, _TITLE + i // _COLUMNS * _HEIGHT
        body.append(f'<g transform="translate({x} {y})">{_panel(section, lines)}</g>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(result.title)}"><style>{_CSS}</style>{"".join(body)}</svg>\n'
    )


def picture_page(result: Result) -> str:
    """A self-contained page: verdict, picture, tables, notes."""
    parts = [
        f"<h1>{escape(result.title)}</h1>",
        f"<p>{escape(result.source)}</p>",
        f"<p><strong>{escape(verdict(result).rstrip(':'))}</strong></p>",
    ]
    if result.failed:
        items = (f"{n.section}: {n.name}: {figure(n.ours)}, wanted {n.wanted}"
                 for n in result.failed)  # fmt: skip
        parts.append(_list(items))
    parts += [picture_svg(result), f"<p>{escape(KIND_WORDS)}.</p>", _list(result.notes)]
    for section, lines in result.sections().items():
        parts += [f"<h2>{escape(section)}</h2>", _html_table(lines)]
        notes = [f"{line.name}: {line.note}" for line in lines if line.note]
        parts += [_list(notes)] if notes else []
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>thinwire: {escape(result.title)}</title>\n<style>{_PAGE_CSS}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _panel(section: str, lines: list[Line]) -> str:
    values = [v for line in lines for v in (line.ours, line.published) if v]
    low, high = min(values) / 1.4, max(values) * 1.4
    x = Scale(low=low, high=high, start=_LEFT, end=_WIDTH - _RIGHT, log=True)
    y = Scale(low=low, high=high, start=_HEIGHT - _BOTTOM, end=_TOP, log=True)
    series = list(dict.fromkeys(line.series for line in lines))
    unit = next((line.unit for line in lines if line.unit), "")
    return "".join(
        (
            _title(section),
            _axes(x, y, f"published{f', {unit}' if unit else ''}"),
            _diagonal(x, y, low, high),
            *(_dot(line, series.index(line.series), x, y) for line in lines),
            _legend(series),
        )
    )


def _title(section: str) -> str:
    """In two lines where it is long."""
    rows = textwrap.wrap(section, _LETTERS, max_lines=2, placeholder=" …")
    spans = (
        f'<tspan x="{_LEFT}" y="{32 - 15 * (len(rows) - 1 - i)}">{escape(row)}</tspan>'
        for i, row in enumerate(rows)
    )
    return f'<text class="title"><title>{escape(section)}</title>{"".join(spans)}</text>'


def _axes(x: Scale, y: Scale, title: str) -> str:
    parts = []
    for value in ticks(x.low, x.high, 5, log=True):
        at, up, text = x(value), y(value), escape(figure(value))
        parts.append(
            f'<path class="grid" d="M{at:.1f} {y.start}V{y.end}M{x.start} {up:.1f}H{x.end}"/>'
            f'<text class="small" x="{at:.1f}" y="{y.start + 15}" text-anchor="middle">{text}'
            f'</text><text class="small" x="{x.start - 6}" y="{up + 4:.1f}" text-anchor="end">'
            f"{text}</text>"
        )
    parts.append(
        f'<text class="small" x="{(x.start + x.end) / 2:.0f}" y="{y.start + 31}" '
        f'text-anchor="middle">{escape(title)}</text>'
        f'<text class="small" transform="translate(12 {(y.start + y.end) / 2:.0f}) rotate(-90)" '
        'text-anchor="middle">ours</text>'
    )
    return "".join(parts)


def _diagonal(x: Scale, y: Scale, low: float, high: float) -> str:
    corners = (
        (low, low * _BAND), (high / _BAND, high), (high, high),
        (high, high / _BAND), (low * _BAND, low), (low, low),
    )  # fmt: skip
    band = "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in corners)
    return (
        f'<path class="band" d="M{band}z"/><line class="same" x1="{x(low):.1f}" y1="{y(low):.1f}" '
        f'x2="{x(high):.1f}" y2="{y(high):.1f}"/>'
    )


def _dot(line: Line, style: int, x: Scale, y: Scale) -> str:
    assert line.published is not None
    css = f"dot s{style % 4}{' hollow' if line.kind == 'fitted' else ''}"
    mark = marker(style, x(line.published), y(line.ours), 4.0, css)
    words = f"{line.name}: published {figure(line.published)}, ours {figure(line.ours)}"
    return f"<g><title>{escape(words)} ({line.kind})</title>{mark}</g>"


def _legend(series: list[str]) -> str:
    parts, at = [], float(_LEFT)
    for style, name in enumerate(series):
        parts.append(
            f"{marker(style, at, _HEIGHT - 16, 4.0, f'dot s{style % 4}')}"
            f'<text class="small" x="{at + 10:.0f}" y="{_HEIGHT - 12}">{escape(name)}</text>'
        )
        at += 26 + 6.6 * len(name)
    return "".join(parts)


def _html_table(lines: list[Line]) -> str:
    rows = []
    for line in lines:
        holds = {None: "", True: "yes", False: '<span class="no">no</span>'}[line.holds]
        cells = (
            escape(line.name), figure(line.published), figure(line.ours), escape(line.unit),
            ratio_text(line), line.kind, escape(line.wanted), holds,
        )  # fmt: skip
        rows.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    names = ("line", "published", "ours", "unit", "ratio", "kind", "wanted", "holds")
    head = "".join(f"<th>{name}</th>" for name in names)
    return f'<div class="wide"><table><tr>{head}</tr>\n{chr(10).join(rows)}\n</table></div>'


def _list(items: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>"
