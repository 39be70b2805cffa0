"""Line charts as inline SVG; colours are CSS variables: one picture for light, dark and print.

A chart is drawn once for wide and once for narrow screens, since text in a scaled picture would be
too small to read on a phone. Lines differ by colour, dash and end marker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from thinwire.report.curves import Curve
from thinwire.units import format_count

__all__ = ["Axis", "Chart", "Scale", "colour", "dashes", "line_chart", "marker", "ticks"]

_DASHES = ("", "9 4", "2 3", "10 3 2 3", "5 3", "14 4", "1 3 6 3", "7 2 2 2 2 2")
_COLOURS = 8
_LABEL_HEIGHT = 15
_TARGET_WIDTH = 80
_COLUMN_GAP = 80
_LONGEST_NAME = 20
_LETTER_WIDTH = 7.6


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Data to pixels, linear or logarithmic.

    >>> Scale(low=0.0, high=10.0, start=0.0, end=100.0)(5.0)
    50.0
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        if self.log:
            value = max(value, self.low)
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What an axis shows: its title, its range and how its numbers are written."""

    title: str
    low: float
    high: float
    log: bool = False
    words: Callable[[float], str] = format_count


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A drawn chart and what a hover needs: the plot's box and the axes' ranges."""

    svg: str
    geometry: dict[str, float | bool]


def ticks(low: float, high: float, count: int, log: bool = False) -> list[float]:
    """Round numbers that divide a range.

    >>> ticks(0.0, 11.0, 5)
    [0.0, 2.5, 5.0, 7.5, 10.0]
    >>> ticks(0.5, 200.0, 5, log=True)
    [1.0, 3.0, 10.0, 30.0, 100.0]
    """
    if log:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        for steps in ((1, 2, 5), (1, 3), (1,)):
            found = [
                step * 10.0**power
                for power in range(first, last + 1)
                for step in steps
                if low * 0.999 <= step * 10.0**power <= high * 1.001
            ]
            if len(found) <= count + 1:
                return found
        return found[:: max(1, math.ceil(len(found) / count))]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    begin = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(begin, math.floor(high / step + 1e-9) + 1)]


def colour(style: int) -> str:
    """The CSS class of a line's colour; after the eighth line colours come again."""
    return f"s{style % _COLOURS}"


def dashes(style: int) -> str:
    """The attribute that dashes a line, shifted when colours come again; empty for solid."""
    dash = _DASHES[(style + style // _COLOURS) % len(_DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""


def marker(shape: int, x: float, y: float, size: float, css: str) -> str:
    """A small mark that tells lines apart without colour: one of eight shapes."""
    # Shifted when colours come again, so that no two of the first 64 lines are alike.
    points = _SHAPES[(shape + 3 * (shape // _COLOURS)) % len(_SHAPES)]
    path = "L".join(f"{x + a * size:.1f} {y + b * size:.1f}" for a, b in points)
    return f'<path class="{css}" d="M{path}z"/>'


def _ring(corners: int, radius: float, turn: float = 0.0) -> list[tuple[float, float]]:
    angles = [2 * math.pi * (i / corners + turn) for i in range(corners)]
    return [(radius * math.sin(angle), -radius * math.cos(angle)) for angle in angles]


_PLUS = [(1.2, 0.4), (0.4, 0.4), (0.4, 1.2)]
_PLUS = [
    (a * p - b * q, a * q + b * p) for p, q in ((1, 0), (0, 1), (-1, 0), (0, -1)) for a, b in _PLUS
]
_SHAPES = (
    _ring(16, 1.05),
    _ring(4, 1.35, 1 / 8),
    _ring(3, 1.4),
    _ring(4, 1.35),
    _ring(3, 1.4, 1 / 2),
    _PLUS,
    _ring(5, 1.25),
    [(0.71 * (a - b), 0.71 * (a + b)) for a, b in _PLUS],
)


def line_chart(
    curves: Sequence[Curve],
    styles: Mapping[str, int],
    x_axis: Axis,
    y_axis: Axis,
    *,
    width: int,
    height: int,
    name: str,
    target: float | None = None,
    crossings: Mapping[str, float] | None = None,
) -> Chart:
    """Mean lines with their bands, the target, where it is crossed, and a label at each line's end.

    Args:
        curves: what to draw.
        styles: label to number, for colour, dash and marker.
        x_axis: what runs to the right.
        y_axis: what runs upwards.
        width: of the picture, in its own pixels; at most 500 leaves out the labels at the ends.
        height: of the picture, in its own pixels.
        name: said to screen readers, and unique on the page.
        target: a horizontal line.
        crossings: label to the x at which the target is reached.
    """
    left, right, top, bottom = (58, 96, 14, 46) if width > 500 else (46, 14, 12, 42)
    x = Scale(low=x_axis.low, high=x_axis.high, start=left, end=width - right, log=x_axis.log)
    y = Scale(low=y_axis.low, high=y_axis.high, start=height - bottom, end=top, log=y_axis.log)
    clip = f"clip-{name.replace(' ', '-')}-{width}"
    body = [
        f'<clipPath id="{clip}"><rect x="{left}" y="{top - 4}" width="{width - left - right + 4}" '
        f'height="{height - top - bottom + 4}"/></clipPath>',
        _frame(x_axis, y_axis, x, y, width, height),
    ]
    said: list[_Words] = []
    if target is not None and y_axis.low < target < y_axis.high:
        body.append(_target_line(x, y, target))
        said.append(_target_words(x, y, target))
    body.append(f'<g clip-path="url(#{clip})">')
    body += [_band(curve, x, y, styles[curve.label]) for curve in curves]
    body += [_line(curve, x, y, styles[curve.label]) for curve in curves]
    body.append("</g>")
    for label, at in (crossings or {}).items():
        if target is not None:
            style = styles[label]
            body.append(marker(style, x(at), y(target), 4.5, f"mark {colour(style)}"))
    if width > 500:
        body.append(_end_labels(curves, styles, x, y, said))
    else:
        body += _end_markers(curves, styles, x, y)
    body.append(f'<line class="cursor" y1="{top}" y2="{height - bottom}" hidden="hidden"/>')
    svg = (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(name)}">'
        f"{''.join(body)}</svg>"
    )
    geometry: dict[str, float | bool] = {
        "left": left,
        "right": width - right,
        "low": x_axis.low,
        "high": x_axis.high,
        "log": x_axis.log,
        "width": width,
    }
    return Chart(svg=svg, geometry=geometry)


def _frame(x_axis: Axis, y_axis: Axis, x: Scale, y: Scale, width: int, height: int) -> str:
    parts = []
    small = width <= 500
    for value in ticks(y_axis.low, y_axis.high, 5, y_axis.log):
        at = y(value)
        parts.append(
            f'<line class="grid" x1="{x.start}" x2="{x.end}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text class="tick" x="{x.start - 7}" y="{at + 4:.1f}" text-anchor="end">'
            f"{escape(y_axis.words(value))}</text>"
        )
    for value in ticks(x_axis.low, x_axis.high, 4 if small else 8, x_axis.log):
        at = x(value)
        parts.append(
            f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{y.start}" y2="{y.start + 5}"/>'
            f'<text class="tick" x="{at:.1f}" y="{y.start + 18}" text-anchor="middle">'
            f"{escape(x_axis.words(value))}</text>"
        )
    parts.append(
        f'<line class="base" x1="{x.start}" x2="{x.end}" y1="{y.start}" y2="{y.start}"/>'
        f'<text class="axis" x="{(x.start + x.end) / 2:.0f}" y="{height - 6}" '
        f'text-anchor="middle">{escape(x_axis.title)}</text>'
    )
    return "".join(parts)


def _target_line(x: Scale, y: Scale, target: float) -> str:
    at, words = y(target), _target_words(x, y, target)
    return (
        f'<line class="target" x1="{x.start}" x2="{x.end}" y1="{at:.1f}" y2="{at:.1f}"/>'
        f'<text class="tick halo" x="{words.end}" y="{words.middle + 4:.1f}" text-anchor="end">'
        f"target {target * 100:.1f} %</text>"
    )


@dataclass(frozen=True)
class _Words:
    """Where a line of text stands: its middle from the top, and from where to where it goes."""

    middle: float
    start: float
    end: float

    def hits(self, other: _Words) -> bool:
        """Whether one would be written on top of the other."""
        apart = abs(self.middle - other.middle) >= _LABEL_HEIGHT
        return not apart and other.start < self.end and self.start < other.end


def _target_words(x: Scale, y: Scale, target: float) -> _Words:
    end = x.end - 4
    return _Words(y(target) + 11, end - _TARGET_WIDTH, end)


def _still(curve: Curve) -> bool:
    """A method that sends nothing stands still on the axis of bytes."""
    return curve.x[0] == curve.x[-1] == 0.0


def _band(curve: Curve, x: Scale, y: Scale, style: int) -> str:
    if curve.num_seeds < 2 or _still(curve):
        return ""
    upper, lower = _points(curve.x, curve.high, x, y), _points(curve.x, curve.low, x, y)
    return f'<path class="band {colour(style)}" d="M{"L".join(upper + lower[::-1])}z"/>'


def _points(xs: Sequence[float], ys: Sequence[float], x: Scale, y: Scale) -> list[str]:
    """Pixel pairs; on a logarithmic axis from where it begins, for zero has no place there."""
    shown = [(a, b) for a, b in zip(xs, ys, strict=True) if not x.log or a >= x.low * 0.999]
    return [f"{x(a):.1f} {y(b):.1f}" for a, b in shown or [(xs[-1], ys[-1])]]


def _line(curve: Curve, x: Scale, y: Scale, style: int) -> str:
    if _still(curve):
        at = y(curve.mean[-1])
        path = f"M{x.start} {at:.1f}H{x.end}"
    else:
        path = f"M{'L'.join(_points(curve.x, curve.mean, x, y))}"
    faint = " partial" if curve.partial else ""
    return f'<path class="line{faint} {colour(style)}"{dashes(style)} d="{path}"/>'


def _ends(curves: Sequence[Curve], x: Scale, y: Scale) -> list[tuple[float, float, str]]:
    return [(_end(curve, x), _clamped(y(curve.mean[-1]), y), curve.label) for curve in curves]


def _end_markers(
    curves: Sequence[Curve], styles: Mapping[str, int], x: Scale, y: Scale
) -> list[str]:
    return [
        marker(styles[label], a, b, 4.0, f"mark {colour(styles[label])}")
        for a, b, label in _ends(curves, x, y)
    ]


def _end_labels(
    curves: Sequence[Curve], styles: Mapping[str, int], x: Scale, y: Scale, taken: list[_Words]
) -> str:
    """A marker at each end, and the names beside it: in a column where ends are close together,
    and elsewhere where a name would hit another, or what is in `taken`."""
    ends, parts = _ends(curves, x, y), _end_markers(curves, styles, x, y)
    columns: list[list[tuple[float, float, str]]] = []
    for end in sorted(ends):
        if columns and end[0] - columns[-1][0][0] < _COLUMN_GAP:
            columns[-1].append(end)
        else:
            columns.append([end])
    for column in columns:
        place_x = max(a for a, _, _ in column) + 13
        column.sort(key=lambda end: end[1])
        for (a, b, label), place in zip(column, _apart([b for _, b, _ in column], y), strict=True):
            name = _shortened(label)
            length = len(name) * _LETTER_WIDTH
            for step in (0, 1, -1, 2, -2, 3, -3):
                words = _Words(place + step * _LABEL_HEIGHT, place_x, place_x + length)
                if y.end <= words.middle <= y.start and not any(map(words.hits, taken)):
                    break
            else:
                continue  # a name on top of another would name none
            taken.append(words)
            place = words.middle
            if abs(place - b) > 2 or place_x - a > 16:
                parts.append(
                    f'<path class="leader" d="M{a + 5:.1f} {b:.1f}L{place_x - 2:.1f} {place:.1f}"/>'
                )
            parts.append(
                f'<text class="name halo" x="{place_x:.1f}" y="{place + 4:.1f}">'
                f"{escape(name)}</text>"
            )
    return "".join(parts)


def _shortened(label: str) -> str:
    return label if len(label) <= _LONGEST_NAME else f"{label[: _LONGEST_NAME - 1]}…"


def _clamped(value: float, y: Scale) -> float:
    return min(max(value, y.end), y.start)


def _apart(wanted: list[float], y: Scale) -> list[float]:
    """Places from top to bottom, a line's height apart, as near to the wanted ones as that lets."""
    places: list[float] = []
    for value in wanted:
        places.append(max(value, places[-1] + _LABEL_HEIGHT) if places else value)
    shift = (places[-1] - wanted[-1]) / 2
    shift = min(shift, places[0] - y.end - 4)
    shift = max(shift, places[-1] - y.start + 6)
    return [place - shift for place in places]


def _end(curve: Curve, x: Scale) -> float:
    return x.end if _still(curve) else x(curve.x[-1])
