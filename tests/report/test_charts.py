"""Names at the ends of lines."""

from __future__ import annotations

import itertools
import re

import pytest

from thinwire.report.charts import Axis, line_chart
from thinwire.report.curves import Curve

ENDS = {
    "one machine": (18.1, 0.409),
    "DDP (gloo)": (20.9, 0.400),
    "gtopk": (24.7, 0.405),
    "dgc": (20.0, 0.433),
    "powersgd": (15.1, 0.422),
}


def drawn(ends: dict[str, tuple[float, float]], width: int) -> str:
    curves = [
        Curve(label=label, x=(0.0, x), mean=(0.1, y), low=(0.1, y), high=(0.1, y), num_seeds=1)
        for label, (x, y) in ends.items()
    ]
    styles = {label: i for i, label in enumerate(ends)}
    across = Axis(title="seconds", low=0.0, high=max(x for x, _ in ends.values()))
    upwards = Axis(title="accuracy", low=0.13, high=0.443)
    return line_chart(
        curves, styles, across, upwards, width=width, height=400, name="picture", target=0.4
    ).svg


def words_of(svg: str) -> list[tuple[str, float, float, float]]:
    """Text, baseline, and from where to where it goes at 7.6 a letter, of what isn't an axis's."""
    found = re.findall(r'<text class="\w+ halo" x="([\d.]+)" y="([\d.]+)"([^>]*)>([^<]*)', svg)
    spans = []
    for x, y, more, text in found:
        long = 7.6 * len(text) if "end" not in more else 72.0
        start = float(x) - (long if "end" in more else 0)
        spans.append((text, float(y), start, start + long))
    return spans


def test_every_line_has_its_name_and_none_is_on_top_of_another():
    spans = words_of(drawn(ENDS, 720))
    assert {text for text, *_ in spans} == {*ENDS, "target 40.0 %"}
    for (_, y, start, end), (_, other_y, other_start, other_end) in itertools.combinations(
        spans, 2
    ):
        assert abs(y - other_y) >= 14.9 or end <= other_start or other_end <= start


@pytest.mark.parametrize("many", [1, 12])
def test_names_stay_inside_the_picture(many: int):
    spans = words_of(drawn({f"method {i}": (20.0, 0.4) for i in range(many)}, 720))
    assert len({text for text, *_ in spans}) == many + 1
    assert all(0 < y < 400 for _, y, _, _ in spans)


def test_a_small_picture_has_markers_and_no_names():
    svg = drawn(ENDS, 400)
    assert [text for text, *_ in words_of(svg)] == ["target 40.0 %"]
    assert svg.count('class="mark ') == len(ENDS)
