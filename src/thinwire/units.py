"""Read and print seconds, bytes, bytes per second, FLOP/s, watts and joules with their units.

Bits and bytes differ by eight and are told apart by one letter, so nothing here is guessed:

* every quantity is text with a unit; a bare number is refused (counts excepted);
* spelt out, case does not matter: `Mbit/s`, `MBit/s`, `mbit/s` are bits, `MByte/s` bytes;
* as a single letter, `b` is a bit and `B` a byte, and then the prefix must be k (or K), M, G, T:
  `Gb/s` and `MB/s` are read, `mb/s`, `gbps` and `MBPS` refused as ambiguous;
* k, M, G, T are powers of 1000, Ki, Mi, Gi, Ti of 1024;
* `1gbit` is read as a rate, as network tools write it; `100 MB` is an amount and no rate.

Arithmetic is decimal, so "0.3 ms" is the float 0.0003 exactly, and `exact_text` always reads back
as the very same float.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from typing import Any, Literal, TypeAlias

from thinwire.errors import InputError

__all__ = [
    "Quantity",
    "exact_text",
    "format_compute",
    "format_count",
    "format_energy",
    "format_power",
    "format_rate",
    "format_size",
    "format_time",
    "parse_compute",
    "parse_count",
    "parse_power",
    "parse_rate",
    "parse_size",
    "parse_time",
]

Quantity: TypeAlias = Literal["byte_rate", "compute", "power", "rate", "size", "time"]

# Enough for every float times every prefix without rounding: shortest reprs have 17 digits.
_DECIMAL = Context(prec=60)
_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*", re.DOTALL)
_DATA = re.compile(r"([kKmMgGtT]?i?)((?i:bits?|bytes?)|b|B)(/s|ps|)")
_LETTER_DATA_ANY_CASE = re.compile(r"[kmgt]?i?b(/s|ps|)", re.IGNORECASE)
_COMPUTE = re.compile(r"([kKmMgGtTpP]?)((?i:flop))(/s|s|S|ps|)")
_PREFIXES = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}

_TIME_UNITS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), Decimal(1)),
    "ms": Decimal("1e-3"),
    **dict.fromkeys(("us", "µs", "μs"), Decimal("1e-6")),
    "ns": Decimal("1e-9"),
    **dict.fromkeys(("min", "minute", "minutes"), Decimal(60)),
    **dict.fromkeys(("h", "hour", "hours"), Decimal(3600)),
}
_POWER_UNITS = {
    **dict.fromkeys(("W", "watt", "watts"), Decimal(1)),
    "mW": Decimal("1e-3"),
    "kW": Decimal(1000),
    "MW": Decimal(1_000_000),
}
_COUNT_UNITS = {
    "": 1,
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "B": 10**9,
    "T": 10**12,
}


class _UnknownUnit(Exception):
    """Carries what is wrong with a unit; empty when nothing more can be said."""


def _prefix(letters: str) -> int:
    base = 1024 if letters.endswith("i") else 1000
    return base ** _PREFIXES[letters.removesuffix("i").lower()]


def _data_unit(unit: str) -> tuple[Decimal, str, bool]:
    """Bytes in the unit, its time part, and whether bit or byte is spelt out."""
    found = _DATA.fullmatch(unit)
    if found is None or found[1] == "i":
        if _LETTER_DATA_ANY_CASE.fullmatch(unit):
            raise _UnknownUnit("it could be bits or bytes: write Mbit/s or Mb/s, MByte/s or MB/s")
        raise _UnknownUnit
    prefix, word, per = found.groups()
    spelt = len(word) > 1
    if not spelt and prefix[:1] in ("m", "g", "t"):
        right, second = prefix.capitalize(), "/s" if per else ""
        raise _UnknownUnit(
            f"it could be bits or bytes: write {right}bit{second} or {right}B{second}"
        )
    is_bit = word == "b" or word.lower().startswith("bit")
    return Decimal(_prefix(prefix)) / (8 if is_bit else 1), per, spelt and is_bit


def _rate_unit(unit: str) -> Decimal:
    scale, per, spelt_bit = _data_unit(unit)
    if not per and not spelt_bit:
        raise _UnknownUnit(f"it is an amount of data, not a rate: write {unit}/s")
    return scale


def _size_unit(unit: str) -> Decimal:
    scale, per, _ = _data_unit(unit)
    if per:
        raise _UnknownUnit("it is a rate, not an amount of data")
    return scale


def _compute_unit(unit: str) -> Decimal:
    found = _COMPUTE.fullmatch(unit)
    if found is None:
        raise _UnknownUnit
    prefix, word, per = found.groups()
    if not per:
        raise _UnknownUnit(f"it is a number of operations, not a rate: write {prefix}FLOP/s")
    if (per, word.isupper()) in (("s", True), ("S", False)):
        raise _UnknownUnit(f"it could be a plural or a rate: write {prefix}FLOP/s")
    return Decimal(_prefix(prefix))


def _table_unit(units: dict[str, Decimal]) -> Callable[[str], Decimal]:
    def resolve(unit: str) -> Decimal:
        if unit not in units:
            raise _UnknownUnit
        return units[unit]

    return resolve


@dataclass(frozen=True, kw_only=True)
class _Dimension:
    """How one quantity is read and printed; `ladder` is unit and size, smallest first."""

    name: str
    example: str
    units: str
    resolve: Callable[[str], Decimal]
    ladder: tuple[tuple[str, Decimal], ...]


def _ladder(base: str, size: str, prefixes: str) -> tuple[tuple[str, Decimal], ...]:
    return tuple((p.strip() + base, Decimal(size) * 1000**i) for i, p in enumerate(prefixes))


_RATE_UNITS = (
    "bit/s, kbit/s, Mbit/s, Gbit/s, Tbit/s (b for bit) or B/s, kB/s, MB/s, GB/s, TB/s, KiB/s, "
    "MiB/s, GiB/s"
)
_DIMENSIONS: dict[Quantity, _Dimension] = {
    "time": _Dimension(
        name="time",
        example="0.3 ms",
        units="ns, us, ms, s, min, h",
        resolve=_table_unit(_TIME_UNITS),
        ladder=_ladder("s", "1e-9", "nµm "),
    ),
    "rate": _Dimension(
        name="rate",
        example="100 Mbit/s",
        units=_RATE_UNITS,
        resolve=_rate_unit,
        ladder=_ladder("bit/s", "0.125", " kMGT"),
    ),
    "byte_rate": _Dimension(
        name="rate",
        example="8 GB/s",
        units=_RATE_UNITS,
        resolve=_rate_unit,
        ladder=_ladder("B/s", "1", " kMGT"),
    ),
    "size": _Dimension(
        name="size",
        example="25.6 MB",
        units="B, kB, MB, GB, TB, KiB, MiB, GiB, TiB or bit, kbit, Mbit, Gbit, Tbit",
        resolve=_size_unit,
        ladder=_ladder("B", "1", " kMGT"),
    ),
    "compute": _Dimension(
        name="compute rate",
        example="10 GFLOP/s",
        units="FLOP/s, kFLOP/s, MFLOP/s, GFLOP/s, TFLOP/s, PFLOP/s",
        resolve=_compute_unit,
        ladder=_ladder("FLOP/s", "1", " kMGTP"),
    ),
    "power": _Dimension(
        name="power",
        example="65 W",
        units="mW, W, kW, MW",
        resolve=_table_unit(_POWER_UNITS),
        ladder=_ladder("W", "1e-3", "m kM"),
    ),
}


def _split(value: Any, name: str, example: str, units: str) -> tuple[Decimal, str]:
    """Number and unit of a text, or the error that says what is wrong with it."""
    if not isinstance(value, str):
        raise InputError(
            f"{name} {value!r} has no unit: write text such as {example!r}; valid units: {units}"
        )
    found = _NUMBER.fullmatch(value)
    if found is None or re.match(r"[,._'\d]", found[2]):
        raise InputError(
            f"{name} {value!r} does not begin with a number (digits with a decimal point): "
            f"write text such as {example!r}; valid units: {units}"
        )
    number = Decimal(found[1])
    if number < 0:
        raise InputError(f"{name} {value!r} is negative: it must be 0 or more")
    return number, found[2]


def _parse(value: str, quantity: Quantity) -> float:
    kind = _DIMENSIONS[quantity]
    number, unit = _split(value, kind.name, kind.example, kind.units)
    if not unit:
        raise InputError(
            f"{kind.name} {value!r} has no unit: write for example {kind.example!r}; "
            f"valid units: {kind.units}"
        )
    try:
        scale = kind.resolve("".join(unit.split()))
    except _UnknownUnit as error:
        why = f" ({error})" if str(error) else ""
        raise InputError(
            f"{kind.name} {value!r} has the wrong unit {unit!r}{why}; valid units: {kind.units}"
        ) from None
    return _finite(number, scale, kind.name, value)


def _finite(number: Decimal, scale: Decimal, name: str, value: str) -> float:
    with localcontext(_DECIMAL):
        result = float(number * scale)
    if not math.isfinite(result):
        raise InputError(f"{name} {value!r} is too large")
    return result


def parse_time(value: str) -> float:
    """Seconds, 0 or more.

    Raises:
        InputError: no number, no unit or an unknown one, negative; as all functions here.

    >>> parse_time("0.3 ms"), parse_time("2min")
    (0.0003, 120.0)
    """
    return _parse(value, "time")


def parse_rate(value: str) -> float:
    """Bytes per second, 0 or more.

    >>> parse_rate("100 Mbit/s"), parse_rate("12.5 MB/s"), parse_rate("1gbit"), parse_rate("1 Gb/s")
    (12500000.0, 12500000.0, 125000000.0, 125000000.0)
    """
    return _parse(value, "rate")


def parse_size(value: str) -> int:
    """Bytes, a whole number of them.

    >>> parse_size("25.6 MB"), parse_size("64 KiB"), parse_size("8 kbit")
    (25600000, 65536, 1000)
    """
    size = _parse(value, "size")
    if not size.is_integer():
        raise InputError(f"size {value!r} is {size} bytes: it must be a whole number of bytes")
    return int(size)


def parse_compute(value: str) -> float:
    """Floating-point operations per second, 0 or more.

    >>> parse_compute("10 GFLOP/s"), parse_compute("5 TFLOPS")
    (10000000000.0, 5000000000000.0)
    """
    return _parse(value, "compute")


def parse_power(value: str) -> float:
    """Watts, 0 or more.

    >>> parse_power("65 W"), parse_power("500 mW")
    (65.0, 0.5)
    """
    return _parse(value, "power")


def parse_count(value: str | int) -> int:
    """A whole number: plain, or with k, M, G (or B, billion) or T behind it.

    >>> parse_count("25.6M"), parse_count("7B"), parse_count("1e3"), parse_count(12)
    (25600000, 7000000000, 1000, 12)
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    units = "none, k, M, G or B (billion), T"
    number, unit = _split(value, "count", "25.6M", units)
    if unit not in _COUNT_UNITS:
        raise InputError(f"count {value!r} has the wrong unit {unit!r}; valid units: {units}")
    with localcontext(_DECIMAL):
        count = number * _COUNT_UNITS[unit]
    if count != count.to_integral_value():
        raise InputError(f"count {value!r} must be a whole number")
    return int(count)


def _plain(number: Decimal) -> str:
    text = format(number.normalize(), "f")
    return text if len(text) <= 40 else str(number.normalize())


def _base(ladder: tuple[tuple[str, Decimal], ...]) -> str:
    """The unit without a prefix: the smallest but for those of powers below 1."""
    return min((unit for unit, _ in ladder), key=len)


def _climb(number: Decimal, ladder: tuple[tuple[str, Decimal], ...]) -> tuple[Decimal, str]:
    """The number in the largest unit that leaves at least 1 before the decimal point."""
    if number == 0:
        return number, _base(ladder)
    unit, size = ladder[0]
    for larger, larger_size in ladder[1:]:
        if abs(number) >= larger_size:
            unit, size = larger, larger_size
    return number / size, unit


def exact_text(value: float, quantity: Quantity) -> str:
    """Text with a unit that its `parse_*` reads back as the very same float.

    >>> exact_text(12.5e6, "rate"), exact_text(0.0003, "time"), exact_text(0.1 + 0.2, "time")
    ('100 Mbit/s', '300 µs', '300.00000000000004 ms')
    """
    with localcontext(_DECIMAL):
        number, unit = _climb(Decimal(repr(float(value))), _DIMENSIONS[quantity].ladder)
        return f"{_plain(number)} {unit}"


def _format(value: float, ladder: tuple[tuple[str, Decimal], ...], gap: str = " ") -> str:
    """Three significant digits; whole parts of more than three digits keep them all."""
    if not math.isfinite(value):
        return f"{value}{gap}{_base(ladder)}".rstrip()
    with localcontext(_DECIMAL):
        # Rounded before the unit is chosen, so that 999.96 kbit/s prints as 1 Mbit/s.
        number, unit = _climb(Decimal(f"{value:.2e}"), ladder)
        if abs(number) >= 1000:
            number = Decimal(f"{Decimal(repr(float(value))) / ladder[-1][1]:.0f}")
        return f"{_plain(number)}{gap}{unit}".rstrip()


def format_time(value: float) -> str:
    """Seconds as text for people; infinity is "never".

    >>> format_time(0.0003), format_time(12.345), format_time(754), format_time(9000)
    ('300 µs', '12.3 s', '12 min 34 s', '2 h 30 min')
    """
    if value == math.inf:
        return "never"
    seconds = round(abs(value)) if math.isfinite(value) else 0
    if seconds < 120:
        return _format(value, _DIMENSIONS["time"].ladder)
    sign = "-" if value < 0 else ""
    if seconds < 7200:
        return f"{sign}{seconds // 60} min {seconds % 60} s"
    minutes = round(seconds / 60)
    return f"{sign}{minutes // 60} h {minutes % 60} min"


def format_rate(value: float) -> str:
    """Bytes per second as bits per second.

    >>> format_rate(12.5e6), format_rate(39.6e6)
    ('100 Mbit/s', '317 Mbit/s')
    """
    with localcontext(_DECIMAL):
        ladder = tuple((unit, size * 8) for unit, size in _DIMENSIONS["rate"].ladder)
    return _format(value * 8, ladder)


def format_size(value: float) -> str:
    """Bytes, in powers of 1000.

    >>> format_size(25_600_000), format_size(512)
    ('25.6 MB', '512 B')
    """
    return _format(value, _DIMENSIONS["size"].ladder)


def format_compute(value: float) -> str:
    """FLOP/s.

    >>> format_compute(10e9)
    '10 GFLOP/s'
    """
    return _format(value, _DIMENSIONS["compute"].ladder)


def format_power(value: float) -> str:
    """Watts.

    >>> format_power(65.0)
    '65 W'
    """
    return _format(value, _DIMENSIONS["power"].ladder)


def format_energy(value: float) -> str:
    """Joules.

    >>> format_energy(1234.0), format_energy(0.5)
    ('1.23 kJ', '500 mJ')
    """
    return _format(value, _ladder("J", "1e-3", "m kMG"))


def format_count(value: float) -> str:
    """A count with k, M, G or T.

    >>> format_count(25_557_032), format_count(900)
    ('25.6M', '900')
    """
    return _format(value, _ladder("", "1", " kMGT"), gap="")
