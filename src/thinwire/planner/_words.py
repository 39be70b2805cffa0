"""Numbers and names as they appear in a plan's sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from thinwire.planner.predict import Prediction
from thinwire.units import format_time

__all__ = ["faster_text", "listed", "money", "name_of", "percent", "ratio_text", "whole_time"]


def ratio_text(ratio: float) -> str:
    """A ratio of speeds as a reader wants it.

    >>> ratio_text(0.416), ratio_text(2.31), ratio_text(13.4)
    ('0.42×', '2.3×', '13×')
    """
    digits = 0 if ratio >= 9.95 else 1 if ratio >= 1.095 else 2
    return f"{ratio:.{digits}f}×"


def faster_text(ratio: float, than: str) -> str:
    """How a speed compares, in words.

    >>> faster_text(2.3, "plain DDP"), faster_text(0.5, "one machine"), faster_text(1.01, "it")
    ('2.3× faster than plain DDP', '2.0× slower than one machine', 'about as fast as it')
    """
    if 0.98 <= ratio <= 1.02:
        return f"about as fast as {than}"
    if ratio < 1:
        return f"{ratio_text(1 / ratio)} slower than {than}"
    return f"{ratio_text(ratio)} faster than {than}"


def name_of(p: Prediction) -> str:
    """A method as it is called in a sentence."""
    names = {
        "alone": "one machine",
        "ssgd": "plain DDP",
        "accumulate": f"ssgd with {p.period} accumulated batches",
    }
    return names.get(p.method, p.method)


def whole_time(seconds: float) -> str:
    """A time without parts that are none.

    >>> whole_time(3600.0), whole_time(7200.0), whole_time(9000.0)
    ('60 min', '2 h', '2 h 30 min')
    """
    return format_time(seconds).replace(" min 0 s", " min").replace(" h 0 min", " h")


def money(value: float) -> str:
    """An amount without a currency: two decimals, or two digits of what is less.

    >>> money(1234.5), money(2.5), money(0.0123), money(0.0)
    ('1,234.50', '2.50', '0.012', '0.00')
    """
    if value >= 0.1 or value == 0:
        return f"{value:,.2f}"
    digits = 1 - math.floor(math.log10(value))
    return f"{value:.{digits}f}" if digits < 8 else f"{value:.1e}"


def percent(share: float) -> str:
    """A share of 0..1 as whole per cent.

    >>> percent(0.634)
    '63 %'
    """
    return f"{share * 100:.0f} %"


def listed(names: Sequence[str]) -> str:
    """Names in prose, the first few of many.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    if len(names) > 4:
        return f"{', '.join(names[:3])} and {len(names) - 3} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
