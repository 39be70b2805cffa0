"""Links by name: the rate and the latency that stand for a kind of network until it is measured.

Two sorts of numbers. *Published* ones were measured by others, on their machines, and are those
that their cost models use. *Nominal* ones are the line rate of the standard, which no training
reaches: a plan made with them says what is possible at best. A latency that nobody has measured is
left out; `thinwire probe` measures it, and the rate too.

What thinwire's own packets travel over is TCP, on whatever wire. RDMA and GPUDirect carry only what
NCCL or gloo carry (`wire.collectives=native`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from thinwire.errors import InputError
from thinwire.units import parse_rate, parse_time

__all__ = ["LINKS", "LinkPreset", "link_latency", "link_rate"]


@dataclass(frozen=True, kw_only=True)
class LinkPreset:
    """A kind of link between two machines.

    Args:
        rate: bytes per second in each direction.
        latency: seconds one way for a message; None: to be measured.
        rate_is: "published" or "nominal".
        source: where the numbers come from, in a few words.
    """

    rate: float
    latency: float | None
    rate_is: Literal["published", "nominal"]
    source: str

    @property
    def latency_is(self) -> Literal["published", "unknown"]:
        """What is known of the latency."""
        return "unknown" if self.latency is None else "published"


_GTOPK = (
    "the cost model of Shi et al., A Distributed Synchronous SGD Algorithm with Global Top-k "
    "Sparsification for Low Bandwidth Networks, ICDCS 2019"
)
_EDR = "line rate of InfiniBand EDR, four lanes"

LINKS: Mapping[str, LinkPreset] = MappingProxyType(
    {
        "1gbe-tcp": LinkPreset(
            rate=1 / 9e-9,
            latency=0.436e-3,
            rate_is="published",
            source=f"9 ns a byte and 0.436 ms a message, point to point: {_GTOPK}",
        ),
        "10gbe-tcp": LinkPreset(
            rate=10e9 / 8,
            latency=45.25e-6,
            rate_is="nominal",
            source="line rate of 10 Gbit/s Ethernet; 45.25 µs for each message of a ring: the code "
            f"of {_GTOPK}",
        ),
        "100gbe-tcp": LinkPreset(
            rate=100e9 / 8,
            latency=None,
            rate_is="nominal",
            source="line rate of 100 Gbit/s Ethernet",
        ),
        "ipoib-100g": LinkPreset(
            rate=100e9 / 8,
            latency=None,
            rate_is="nominal",
            source=f"{_EDR}; the kernel's IP on it reaches less",
        ),
        "rdma-100g": LinkPreset(rate=100e9 / 8, latency=None, rate_is="nominal", source=_EDR),
        "gpudirect-100g": LinkPreset(
            rate=100e9 / 8,
            latency=None,
            rate_is="nominal",
            source=f"{_EDR}; without copies through the host, where its bus allows it",
        ),
    }
)
"""Links by name, each with its source."""


def link_rate(value: Any) -> float:
    """Bytes per second of a link's name, or of a rate in words.

    Raises:
        InputError: neither of the two.

    >>> link_rate("10gbe-tcp"), link_rate("100 Mbit/s")
    (1250000000.0, 12500000.0)
    """
    if isinstance(value, str) and value in LINKS:
        return LINKS[value].rate
    return _or_name(value, parse_rate)


def link_latency(value: Any) -> float:
    """Seconds one way of a link's name, or of a time in words.

    Raises:
        InputError: neither of the two, or a link whose latency nobody has published.

    >>> link_latency("1gbe-tcp"), link_latency("0.3 ms")
    (0.000436, 0.0003)
    """
    if isinstance(value, str) and value in LINKS:
        latency = LINKS[value].latency
        if latency is None:
            known = ", ".join(name for name, link in LINKS.items() if link.latency is not None)
            raise InputError(
                f"the latency of {value!r} is not known: measure it with `thinwire probe` and give "
                f"a time, such as 50 us; known: {known}"
            )
        return latency
    return _or_name(value, parse_time)


def _or_name(value: Any, parse: Any) -> float:
    try:
        return parse(value)
    except InputError as error:
        raise InputError(f"{error}; or a link by name: {', '.join(LINKS)}") from None
