from __future__ import annotations

import pytest

from thinwire.collectives import traffic
from thinwire.reproduce import load_reproduction
from thinwire.reproduce import oktopk as volume


@pytest.mark.slow
def test_no_worker_sends_6k_words():
    result = load_reproduction("oktopk").run()
    assert result.failed == ()
    assert sum(line.at_most == 6.0 for line in result.lines) == 10


def test_even_sets_send_about_what_the_formula_says():
    words = max(traffic.oktopk(4, volume._KEPT, header=False)) / (4 * volume._KEPT)
    assert volume._busiest(4, 1.0) == pytest.approx(words, rel=0.02)


def test_skewed_sets_are_skewed():
    index = volume._random_set(0, 4.0).index
    assert len(index) == volume._KEPT
    assert (index < volume._NUMEL // 10).float().mean() > 0.5
