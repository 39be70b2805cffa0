from __future__ import annotations

import pytest

from thinwire.report.words import (
    accuracy_words,
    join_words,
    percent_words,
    ratio_words,
    sooner_words,
)


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(2.34, "2.3×"), (9.96, "10×"), (12.4, "12×"), (0.994, "0.99×"), (0.997, "1.0×"), (None, "–")],
)
def test_ratios_have_two_digits(ratio, text):
    assert ratio_words(ratio) == text


def test_a_small_advantage_is_not_rounded_to_none():
    assert sooner_words(1.04, "x") == "1.04× sooner than x"


def test_within_two_per_cent_nothing_is_sooner():
    assert sooner_words(1.015, "x") == sooner_words(0.99, "x") == "about as soon as x"


def test_accuracy_rounds_half_up_so_that_98_15_is_not_98_1():
    assert accuracy_words(0.9815) == "98.2 %"


def test_shares_keep_a_digit_below_ten_per_cent():
    assert [percent_words(share) for share in (0.004, 0.0996, 1.0)] == ["0.4 %", "10 %", "100 %"]


def test_lists_in_prose():
    assert [join_words(words) for words in ([], ["a"], ["a", "b"])] == ["", "a", "a and b"]
