"""Numbers and comparisons as a reader meets them, the same on every surface."""

from __future__ import annotations

import math
from collections.abc import Sequence

from thinwire.units import format_energy, format_size, format_time

__all__ = [
    "accuracy_words",
    "energy_words",
    "join_words",
    "percent_words",
    "ratio_words",
    "size_words",
    "sooner_words",
    "time_words",
]

_MISSING = "–"


def time_words(elapsed: float | None) -> str:
    """Seconds as text.

    >>> time_words(0.0123), time_words(75.0), time_words(None)
    ('12.3 ms', '75 s', '–')
    """
    return _MISSING if elapsed is None else format_time(elapsed)


def size_words(size: float | None) -> str:
    """Bytes as text, in powers of ten as network rates are.

    >>> size_words(0), size_words(560_000), size_words(2.5e9)
    ('0 B', '560 kB', '2.5 GB')
    """
    return _MISSING if size is None else format_size(size)


def energy_words(energy: float | None) -> str:
    """Joules as text.

    >>> energy_words(1234.0), energy_words(12.0)
    ('1.23 kJ', '12 J')
    """
    return _MISSING if energy is None else format_energy(energy)


def percent_words(share: float | None) -> str:
    """A share of 0..1 as whole per cent; one digit below ten.

    >>> percent_words(0.634), percent_words(0.052), percent_words(0.0)
    ('63 %', '5.2 %', '0 %')
    """
    if share is None or not math.isfinite(share):
        return _MISSING
    return f"{share:.1%}".replace("%", " %") if 0 < share < 0.0995 else f"{share * 100:.0f} %"


def accuracy_words(accuracy: float | None) -> str:
    """Accuracy of 0..1 in per cent with one digit.

    >>> accuracy_words(0.9815)
    '98.2 %'
    """
    if accuracy is None or not math.isfinite(accuracy):
        return _MISSING
    return f"{_half_up(accuracy * 100)} %"


def _half_up(value: float) -> str:
    return f"{math.floor(value * 10 + 0.5 + 1e-9) / 10:.1f}"


def ratio_words(ratio: float | None) -> str:
    """A speed-up as a factor.

    >>> ratio_words(2.34), ratio_words(12.3), ratio_words(0.456)
    ('2.3×', '12×', '0.46×')
    """
    if ratio is None or not math.isfinite(ratio):
        return _MISSING
    digits = 0 if ratio >= 9.95 else 1 if ratio >= 0.995 else 2
    return f"{ratio:.{digits}f}×"


def sooner_words(ratio: float, than: str, word: str = "sooner") -> str:
    """A ratio of times in words; within 2 % it is no difference.

    Args:
        ratio: time of the other over ours, above 0.
        than: the other.
        word: "sooner" (a target) or "faster" (a step).

    >>> sooner_words(2.3, "plain DDP")
    '2.3× sooner than plain DDP'
    >>> sooner_words(0.5, "one machine", "faster")
    '2.0× slower than one machine'
    >>> sooner_words(1.01, "one machine")
    'about as soon as one machine'
    """
    if 0.98 <= ratio <= 1.02:
        return f"about as {'soon' if word == 'sooner' else 'fast'} as {than}"
    if ratio < 1:
        return f"{_factor(1 / ratio)} {'later' if word == 'sooner' else 'slower'} than {than}"
    return f"{_factor(ratio)} {word} than {than}"


def _factor(ratio: float) -> str:
    return f"{ratio:.2f}×" if ratio < 1.095 else ratio_words(ratio)


def join_words(words: Sequence[str]) -> str:
    """A list in prose.

    >>> join_words(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
