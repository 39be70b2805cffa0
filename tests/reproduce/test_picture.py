from __future__ import annotations

import io
from xml.etree import ElementTree

import pytest
from rich.console import Console

from thinwire.reproduce import Result, picture_page, picture_svg, report


def test_the_picture_is_a_document_of_its_own_with_a_dot_for_each_pair(small):
    text = picture_svg(small)
    root = ElementTree.fromstring(text)
    titles = [each.text or "" for each in root.iter() if each.tag.endswith("}title")]
    assert [t for t in titles if "published" in t] == [
        "fitted <1>: published 2, ours 2 (fitted)",
        "near: published 10, ours 9 (predicted)",
    ]
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_what_was_fitted_is_drawn_hollow(small):
    dots = [part for part in picture_svg(small).split("<g>") if "published " in part]
    assert [" hollow" in dot for dot in dots] == [True, False]


def test_a_result_without_pairs_still_draws():
    ElementTree.fromstring(picture_svg(Result(name="n", title="t", source="", lines=())))


@pytest.mark.parametrize("words", ["a &amp; b", "fitted &lt;1&gt;", "since &amp; so", "too small"])
def test_the_page_shows_everything_escaped(small, words):
    page = picture_page(small)
    assert words in page
    assert "<1>" not in page


def test_the_terminal_names_what_does_not_hold_last(small):
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(report(small))
    text = console.export_text()
    assert "no figure: since & so" in text
    assert text.rstrip().endswith("claims: too small: 0.8, wanted ≥ 0.9")
