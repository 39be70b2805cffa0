from __future__ import annotations

import math
import random

import pytest

from thinwire import units
from thinwire.errors import InputError

PARSERS = {
    "byte_rate": units.parse_rate,
    "compute": units.parse_compute,
    "power": units.parse_power,
    "rate": units.parse_rate,
    "size": units.parse_size,
    "time": units.parse_time,
}


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100 Mbit/s", 12.5e6),
        ("100 mbit/s", 12.5e6),
        ("100 MBit/s", 12.5e6),
        ("100 MBIT/s", 12.5e6),
        ("100Mbps", 12.5e6),
        ("100 Mb/s", 12.5e6),
        ("1gbit", 125e6),
        ("1 Gb/s", 125e6),
        ("0.5 kb/s", 62.5),
        ("8 bit/s", 1.0),
        ("8 bps", 1.0),
        ("12.5 MB/s", 12.5e6),
        ("12.5 mbyte/s", 12.5e6),
        ("12.5 MBps", 12.5e6),
        ("1 KB/s", 1000.0),
        ("1 KiB/s", 1024.0),
        ("1 Mibit/s", 131072.0),
        ("1e-3 GB/s", 1e6),
        (" 2 TB / s ", 2e12),
        ("0 Mbit/s", 0.0),
    ],
)
def test_rates_are_read_exactly(text: str, rate: float):
    assert units.parse_rate(text) == rate


@pytest.mark.parametrize(
    "text", ["100 mb/s", "1 gb/s", "100 mbps", "1 gbps", "100 MBPS", "1 GBPS", "5 tb/s", "3 mib/s"]
)
def test_a_unit_that_could_be_bits_or_bytes_is_refused(text: str):
    with pytest.raises(InputError, match="bits or bytes") as caught:
        units.parse_rate(text)
    assert repr(text) in str(caught.value)
    assert "Mbit/s" in str(caught.value)


def test_an_amount_of_bytes_is_no_rate():
    with pytest.raises(InputError, match="write MB/s"):
        units.parse_rate("100 MB")
    with pytest.raises(InputError, match="write Mb/s"):
        units.parse_rate("100 Mb")


def test_a_rate_is_no_amount_of_bytes():
    with pytest.raises(InputError, match="is a rate"):
        units.parse_size("100 MB/s")


@pytest.mark.parametrize("quantity", sorted(PARSERS))
@pytest.mark.parametrize(
    "value",
    ["5", 5, 5.0, None, True, "", "fast", "5 parsecs", "-1", "nan s", "1,5 s", "1e999 B", []],
)
def test_what_has_no_valid_unit_is_refused_with_the_value(quantity: str, value: object):
    with pytest.raises(InputError) as caught:
        PARSERS[quantity](value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("quantity", "unit"),
    [("time", "ms"), ("rate", "Mbit/s"), ("size", "MB"), ("compute", "GFLOP/s"), ("power", "W")],
)
def test_errors_list_the_valid_units(quantity: str, unit: str):
    with pytest.raises(InputError, match="valid units") as caught:
        PARSERS[quantity]("3 furlongs")
    assert unit in str(caught.value)
    assert "'furlongs'" in str(caught.value)


@pytest.mark.parametrize(
    ("quantity", "text"),
    [("time", "-3 ms"), ("rate", "-1 Mbit/s"), ("size", "-1 B"), ("compute", "-1 FLOP/s")],
)
def test_negative_quantities_are_refused(quantity: str, text: str):
    with pytest.raises(InputError, match="negative"):
        PARSERS[quantity](text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0.3 ms", 0.0003),
        ("50us", 50e-6),
        ("50 µs", 50e-6),
        ("50 μs", 50e-6),
        ("7 ns", 7e-9),
        (".5 s", 0.5),
        ("2 min", 120.0),
        ("1 h", 3600.0),
    ],
)
def test_times_are_read_exactly(text: str, seconds: float):
    assert units.parse_time(text) == seconds


def test_units_of_time_keep_their_case():
    for text in ("1 MS", "1 S", "1 Min"):
        with pytest.raises(InputError, match="wrong unit"):
            units.parse_time(text)


def test_sizes_are_whole_bytes():
    assert units.parse_size("1.5 kB") == 1500
    assert isinstance(units.parse_size("1 B"), int)
    with pytest.raises(InputError, match="whole number of bytes"):
        units.parse_size("1.5 B")
    with pytest.raises(InputError, match="whole number of bytes"):
        units.parse_size("4 bit")


@pytest.mark.parametrize(
    "text", ["10 GFLOP/s", "10 gflop/s", "10 GFLOPS", "10 gflops", "1e4 mflops"]
)
def test_compute_rates_are_read(text: str):
    assert units.parse_compute(text) == 1e10


def test_a_plural_of_operations_is_no_rate():
    for text in ("10 GFLOPs", "10 GFLOP"):
        with pytest.raises(InputError, match="write GFLOP/s"):
            units.parse_compute(text)


def test_milliwatt_and_megawatt_differ():
    assert units.parse_power("1 mW") == 1e-3
    assert units.parse_power("1 MW") == 1e6


def test_counts_are_whole():
    assert units.parse_count("25.6M") == 25_600_000
    assert units.parse_count("1k") == units.parse_count("1000") == units.parse_count(1000) == 1000
    assert units.parse_count("7B") == units.parse_count("7G") == 7_000_000_000
    for wrong in ("1.5", "25m", "x", True, 1.5, "-3", -3):
        with pytest.raises(InputError):
            units.parse_count(wrong)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("quantity", sorted(PARSERS))
def test_exact_text_reads_back_as_the_same_float(quantity: units.Quantity):
    rng = random.Random(7)
    values = [0.0, 1.0, 1 / 3, 0.1 + 0.2, 12.5e6, 1e300, 5e-324, 2.0**-40]
    values += [math.ldexp(rng.random(), rng.randrange(-60, 60)) for _ in range(300)]
    if quantity == "size":
        values = [float(round(abs(value))) for value in values if value < 1e18]
    for value in values:
        assert PARSERS[quantity](units.exact_text(value, quantity)) == value


def test_printed_numbers_have_three_digits_and_carry_into_the_next_unit():
    assert units.format_rate(125e3 * 0.99996) == "1 Mbit/s"
    assert units.format_size(999_600) == "1 MB"
    assert units.format_size(999_400) == "999 kB"
    assert units.format_rate(12.34567e6) == "98.8 Mbit/s"
    assert units.format_time(0.0123456) == "12.3 ms"
    assert units.format_count(1_000_000) == "1M"
    assert units.format_size(12_345e12) == "12345 TB"


def test_long_times_print_in_minutes_and_hours():
    assert units.format_time(59.96) == "60 s"
    assert units.format_time(119.4) == "119 s"
    assert units.format_time(120) == "2 min 0 s"
    assert units.format_time(7199.7) == "2 h 0 min"
    assert units.format_time(-754) == "-12 min 34 s"


def test_zero_and_no_number_print_in_the_base_unit():
    assert units.format_time(0) == "0 s"
    assert units.format_energy(0) == "0 J"
    assert units.format_count(0) == "0"
    assert units.format_time(math.inf) == "never"
    assert units.format_rate(math.nan) == "nan bit/s"
    assert units.exact_text(0.0, "time") == "0 s"
