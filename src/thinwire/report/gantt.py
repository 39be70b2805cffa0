"""Who computed, waited and sent when: the first steps of a run, a row per worker, as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from thinwire.report.charts import Scale, ticks
from thinwire.report.reader import RunRecord
from thinwire.report.record import Span
from thinwire.report.words import percent_words
from thinwire.units import format_time

__all__ = ["MAX_ROWS", "first_steps", "gantt", "rows_of_steps"]

MAX_ROWS = 16
_MAX_SPANS = 4000
_STEPS = 4
_ROUNDS = 2
_ROW = 22
_TOP = 16
_NARROWEST = 0.35  # pixels; what is thinner is drawn together with its neighbour


def first_steps(run: RunRecord) -> float:
    """Where the picture ends: after a few steps and at least two exchanges, in seconds.

    Never later than the spans last, and early enough that the picture stays small.
    """
    last = max((span.end for span in run.spans), default=0.0)
    steps = sorted(line.time for line in run.steps if line.rank == 0)[:_STEPS]
    end = max([*steps, _end_of_rounds(run.spans)], default=last)
    begins = sorted(span.start for span in run.spans)
    if len(begins) > _MAX_SPANS:
        end = min(end, begins[_MAX_SPANS])
    return min(last, end * 1.03) or last


def _end_of_rounds(spans: Sequence[Span]) -> float:
    """When worker 0 has waited, after computing, for the second time."""
    mine = sorted((s for s in spans if s.rank == 0 and s.what != "send"), key=lambda s: s.start)
    rounds, end, computed = 0, 0.0, False
    for span in mine:
        if span.what == "compute":
            if rounds == _ROUNDS and not computed:
                return end
            computed = True
        elif computed or rounds:
            rounds += computed
            end, computed = max(end, span.end), False
    return end


def gantt(run: RunRecord, names: Sequence[str], slower: Sequence[float], *, width: int) -> str:
    """The picture of one run's first steps; empty if no span was recorded.

    Args:
        run: with spans.
        names: a node name per worker.
        slower: per worker, how many times longer it computes than the fastest node.
        width: pixels; at most 500 leaves out what the right edge says.
    """
    end = first_steps(run)
    if end <= 0:
        return ""
    body, height = rows_of_steps(run, names, slower, width=width, end=end)
    label = f"timeline of {run.start.label}"
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">{body}</svg>'
    )


def rows_of_steps(
    run: RunRecord, names: Sequence[str], slower: Sequence[float], *, width: int, end: float
) -> tuple[str, int]:
    """What is inside `gantt`'s picture, and how many pixels high it is.

    Args:
        run: with spans.
        names: a node name per worker.
        slower: per worker, how many times longer it computes than the fastest node.
        width: pixels.
        end: seconds that the width stands for, above 0.
    """
    rows = _rows(names, slower)
    small = width <= 500
    left, right = (62, 8) if small else (132, 92)
    x = Scale(low=0.0, high=end, start=left, end=width - right)
    height = _TOP + _ROW * len(rows) + 26
    parts = [_time_axis(x, height, 3 if small else 8)]
    for place, rank in enumerate(rows):
        top = _TOP + place * _ROW
        slow = slower[rank] if rank < len(slower) else 1.0
        name = names[rank] if rank < len(names) else f"server {rank - len(names)}"
        parts.append(_row(run.spans, rank, x, top, end))
        mark = "" if slow < 1.05 else f"{slow:.2g}× slower"
        parts.append(_name(name, mark, left, top, small))
        if not small:
            parts.append(_waiting(run, rank, width, top))
    if not small:
        parts.append(f'<text class="tick" x="{width - 4}" y="11" text-anchor="end">waiting</text>')
    return "".join(parts), height


def _rows(names: Sequence[str], slower: Sequence[float]) -> list[int]:
    """All workers, or the first ones and the slowest ones where there are many."""
    if len(names) <= MAX_ROWS:
        return list(range(len(names)))
    slowest = sorted(range(len(names)), key=lambda rank: (-slower[rank], rank))[: MAX_ROWS // 4]
    first = [rank for rank in range(len(names)) if rank not in slowest]
    return sorted([*first[: MAX_ROWS - len(slowest)], *slowest])


def _time_axis(x: Scale, height: int, count: int) -> str:
    parts = []
    for value in ticks(0.0, x.high, count):
        at = x(value)
        anchor = "middle" if at < x.end - 14 else "end"
        parts.append(
            f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP - 4}" y2="{height - 22}"/>'
            f'<text class="tick" x="{at:.1f}" y="{height - 5}" text-anchor="{anchor}">'
            f"{format_time(value)}</text>"
        )
    return "".join(parts)


def _name(name: str, mark: str, left: int, top: int, small: bool) -> str:
    css = "name slow" if mark else "name"
    room = 8 if small else 18
    short = name if len(name) <= room else f"{name[: room - 1]}…"
    middle = top + _ROW / 2 + 3
    if small or not mark:
        shown = f"{short} ▾" if mark and small else short
        return (
            f'<text class="{css}" x="{left - 7}" y="{middle}" text-anchor="end">'
            f"{escape(shown)}</text>"
        )
    return (
        f'<text class="{css}" x="{left - 7}" y="{middle}" text-anchor="end">{escape(short)} '
        f'<tspan class="tick">{mark}</tspan></text>'
    )


def _waiting(run: RunRecord, rank: int, width: int, top: int) -> str:
    if run.end is None or rank >= len(run.end.waited) or run.end.time <= 0:
        return ""
    share = run.end.waited[rank] / run.end.time
    middle = top + _ROW / 2 + 3
    return (
        f'<text class="tick" x="{width - 4}" y="{middle}" text-anchor="end">'
        f"{percent_words(share)}</text>"
    )


def _row(spans: Sequence[Span], rank: int, x: Scale, top: int, end: float) -> str:
    heights = {"wait": (top + 2, 14), "compute": (top + 2, 14), "send": (top + 17, 3.5)}
    parts = []
    for what, (at, high) in heights.items():
        mine = [s for s in spans if s.rank == rank and s.what == what and s.start < end]
        path = "".join(
            f"M{a:.1f} {at}h{max(b - a, 0.4):.1f}v{high}H{a:.1f}z" for a, b in _pieces(mine, x, end)
        )
        if path:
            parts.append(f'<path class="{what}" d="{path}"/>')
    return "".join(parts)


def _pieces(spans: list[Span], x: Scale, end: float) -> list[tuple[float, float]]:
    """Pixel stretches, those closer than can be seen drawn as one."""
    pieces: list[tuple[float, float]] = []
    for span in sorted(spans, key=lambda s: s.start):
        a, b = x(max(span.start, 0.0)), x(min(span.end, end))
        if pieces and a - pieces[-1][1] < _NARROWEST:
            pieces[-1] = pieces[-1][0], max(b, pieces[-1][1])
        else:
            pieces.append((a, b))
    return pieces
