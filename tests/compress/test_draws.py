"""Places drawn by hashing: one from each range, evenly, the same everywhere for ever."""

from __future__ import annotations

import numpy as np
import pytest

from thinwire.compress.draws import _hash, stratified
from thinwire.errors import InputError


@pytest.mark.parametrize(("numel", "count"), [(1, 1), (10, 3), (1000, 999), (2**33, 7), (50, 50)])
def test_one_place_is_drawn_from_each_of_equal_ranges(numel, count):
    edges = [numel * i // count for i in range(count + 1)]
    for seed in (0, 1, 2**63 - 1):
        places = stratified(numel, count, seed)
        assert places.shape == (count,)
        assert (np.diff(places) > 0).all()
        assert places[0] >= 0
        assert places[-1] < numel
        lengths = np.diff(edges)
        assert lengths.max() - lengths.min() <= 1


def test_every_place_is_drawn_equally_often():
    counts = np.zeros(20)
    for seed in range(8000):
        counts[stratified(20, 5, seed)] += 1
    assert np.abs(counts / 8000 - 0.25).max() < 0.025


def test_the_places_are_a_promise():
    # Ranks of different versions must draw the same; a change here breaks runs between them.
    assert stratified(1000, 5, 42).tolist() == [13, 291, 458, 764, 850]


def test_the_hash_is_splitmix64():
    # The published first numbers of the sequence that begins at 1234567.
    assert _hash(np.arange(3, dtype=np.uint64), 1234567).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


@pytest.mark.parametrize("count", [0, 11, -1])
def test_more_places_than_elements_are_refused(count):
    with pytest.raises(InputError, match=rf"count = {count} of 10 elements; valid: 1\.\.10"):
        stratified(10, count, 0)
