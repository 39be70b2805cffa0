"""Prices in a cluster file: an amount and what it buys, without a currency."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from thinwire.errors import InputError

__all__ = ["parse_price", "parse_traffic_price", "price_text"]

_PRICE = re.compile(r"\s*([+-]?[\d.]+(?:[eE][+-]?\d+)?)\s*(/\s*\w+)\s*")
_HOURS = {"/h": 1.0, "/hour": 1.0, "/day": 24.0}
_GIGABYTES = {"/GB": 1.0, "/TB": 1000.0}


def parse_price(value: Any) -> float:
    """What an hour of a machine costs.

    Raises:
        InputError: no number, another unit, a currency, negative.

    >>> parse_price("2.5 /h"), parse_price("12/day")
    (2.5, 0.5)
    """
    return _parse(value, "2.5 /h", _HOURS)


def parse_traffic_price(value: Any) -> float:
    """What 10^9 bytes of traffic cost.

    Raises:
        InputError: as `parse_price`.

    >>> parse_traffic_price("0.09 /GB")
    0.09
    """
    return _parse(value, "0.09 /GB", _GIGABYTES)


def price_text(value: float, per: str) -> str:
    """Text that reads back as the very same float.

    >>> price_text(2.5, "h")
    '2.5 /h'
    """
    return f"{float(value)!r} /{per}"


def _parse(value: Any, example: str, units: Mapping[str, float]) -> float:
    found = _PRICE.fullmatch(value) if isinstance(value, str) else None
    unit = "" if found is None else "".join(found[2].split())
    try:
        amount = float(found[1]) if found is not None else math.nan
    except ValueError:
        amount = math.nan
    if unit not in units or not math.isfinite(amount):
        raise InputError(
            f"price {value!r} can't be read: write a number and its unit, such as {example!r}, "
            f"without a currency (use one for the whole file); valid units: {', '.join(units)}"
        )
    if amount < 0:
        raise InputError(f"price {value!r} is negative: it must be 0 or more")
    return amount / units[unit]
