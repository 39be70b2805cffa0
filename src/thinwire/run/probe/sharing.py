"""What lines share: node rates, pairs' own rates and sites' lines, from streams alone and together.

The rules, in this order; rates are bytes per second from i to j, `alone` with nobody else talking,
`together` with all talking to all:

1. A node sends as much as its best stream alone, or as all its streams together if that is more;
   likewise it receives. Rates within 3 % of each other are taken as equal.
2. Machines form sites where several ranks are on one host, or where pairs fall into near and far:
   a gap of 3 in latency (and half a millisecond), or of 2 in rate, with two sites of two at least.
3. Where together less leaves (or enters) a site than max-min sharing of 1 gives, below 85 %, what
   left is the site's uplink (or downlink).
4. Where together less than 85 % passes and no site explains it, what a node sent and received
   together is taken for its rate: a shared switch, a processor, or a half-duplex wire. Where 96 %
   passes or more, but not all, every rate becomes that part of what it is alone: the rest is what
   acknowledgements and the other direction's queue take from a line that both use, as they do in
   collectives. What lies between has other reasons, and the rates alone stand.
5. A pair has a rate of its own where, alone, it stays below 90 % of what its two ends allow, and
   of what its sites' lines allow.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Lines", "Pair", "find_lines", "near_and_far", "shares"]

Pair = tuple[int, int]

_EQUAL = 0.03
_PLATEAU = 0.95
_SHORT = 0.85
_IN_USE = 0.96
_OWN = 0.9
_FAR_LATENCY, _FAR_BY, _FAR_RATE = 3.0, 0.5e-3, 2.0


@dataclass
class Lines:
    """What was found; rates in bytes per second.

    Attributes:
        egress: by rank.
        ingress: by rank.
        own: by pair, rates below what the ends allow.
        groups: ranks by site; fewer than two groups are no sites.
        uplink: by index of the group.
        downlink: by index of the group.
        why_groups: how the sites were told apart.
        under_load: rates of the nodes are those with all talking (rule 4).
        passed: part of the expected traffic that passed with all talking; 0 where not measured.
        in_use: part of the rates alone that stands here, for lines in use both ways (rule 4).
    """

    egress: dict[int, float]
    ingress: dict[int, float]
    own: dict[Pair, float] = field(default_factory=dict)
    groups: list[list[int]] = field(default_factory=list)
    uplink: dict[int, float] = field(default_factory=dict)
    downlink: dict[int, float] = field(default_factory=dict)
    why_groups: str = ""
    under_load: bool = False
    passed: float = 0.0
    in_use: float = 1.0


def find_lines(
    alone: Mapping[Pair, float],
    together: Mapping[Pair, float],
    latencies: Mapping[Pair, float],
    hosts: Mapping[int, str],
) -> Lines:
    """Apply the rules above.

    Args:
        alone: by (from, to); at least one stream from and one to each rank.
        together: the same, with all talking; may be empty.
        latencies: by (low, high), seconds.
        hosts: of each rank that is wanted.
    """
    ranks = sorted(hosts)
    lines = Lines(
        egress={r: _rate(r, 0, alone, together) for r in ranks},
        ingress={r: _rate(r, 1, alone, together) for r in ranks},
    )
    _make_equal(lines)
    lines.own = _own_rates(lines, alone)
    if together:
        lines.groups, lines.why_groups = _groups(ranks, latencies, alone, hosts)
        expected = shares(together, lines.egress, lines.ingress, lines.own)
        lines.passed = sum(together.values()) / sum(expected.values())
        _find_sites(lines, together, expected)
        if not (lines.uplink or lines.downlink):
            if lines.passed < _SHORT:
                _take_load(lines, together, expected)
                _make_equal(lines)
            elif _IN_USE <= lines.passed < 1:
                lines.in_use = lines.passed
                for rates in (lines.egress, lines.ingress):
                    rates.update({r: lines.passed * rate for r, rate in rates.items()})
    lines.own = {
        pair: rate
        for pair, rate in _own_rates(lines, alone).items()
        if not _sited(lines, *pair, rate)
    }
    return lines


def _rate(
    rank: int, end: int, alone: Mapping[Pair, float], together: Mapping[Pair, float]
) -> float:
    rates = [rate for pair, rate in alone.items() if pair[end] == rank]
    best = max(rates)
    plateau = statistics.median([rate for rate in rates if rate >= _PLATEAU * best])
    total = sum(rate for pair, rate in together.items() if pair[end] == rank)
    return total if total > plateau * (1 + _EQUAL) else plateau


def _make_equal(lines: Lines) -> None:
    """Rates close to each other become their median, so that like machines are alike."""
    every = sorted([*lines.egress.values(), *lines.ingress.values()])
    runs: list[list[float]] = []
    for rate in every:
        if runs and rate <= runs[-1][0] * (1 + _EQUAL):
            runs[-1].append(rate)
        else:
            runs.append([rate])
    common = {rate: statistics.median(run) for run in runs for rate in run}
    for rates in (lines.egress, lines.ingress):
        for rank, rate in rates.items():
            rates[rank] = common[rate]


def _own_rates(lines: Lines, alone: Mapping[Pair, float]) -> dict[Pair, float]:
    return {
        (i, j): rate
        for (i, j), rate in alone.items()
        if rate < _OWN * min(lines.egress[i], lines.ingress[j])
    }


def _sited(lines: Lines, src: int, dst: int, rate: float) -> bool:
    """Whether a site's line explains a pair's rate."""
    limits = [
        line[g]
        for g, group in enumerate(lines.groups)
        for rank, other, line in ((src, dst, lines.uplink), (dst, src, lines.downlink))
        if rank in group and other not in group and g in line
    ]
    return bool(limits) and rate >= _OWN * min(limits)


def _groups(
    ranks: Sequence[int],
    latencies: Mapping[Pair, float],
    alone: Mapping[Pair, float],
    hosts: Mapping[int, str],
) -> tuple[list[list[int]], str]:
    on_host = [[r for r in ranks if hosts[r] == host] for host in dict.fromkeys(hosts.values())]
    if len(on_host) > 1 and max(map(len, on_host)) > 1:
        return on_host, "the ranks of a host share its line"
    found = near_and_far(ranks, latencies, _FAR_LATENCY, _FAR_BY)
    if found:
        return found, "the latencies between them are far above those within"
    both = {(i, j): 1.0 / min(rate, alone.get((j, i), rate)) for (i, j), rate in alone.items()}
    found = near_and_far(ranks, {p: v for p, v in both.items() if p[0] < p[1]}, _FAR_RATE, 0.0)
    return found, "the rates between them are far below those within" if found else ""


def near_and_far(
    ranks: Sequence[int], distances: Mapping[Pair, float], ratio: float, least: float
) -> list[list[int]]:
    """The ranks by nearness, where the largest gap in their distances tells near from far.

    Args:
        ranks: to be grouped.
        distances: by (low, high).
        ratio: of the distances on both sides of the gap, at least.
        least: difference of them, at least.

    Returns:
        At least two groups, two or more of them with two members or more, all far from each other;
        otherwise none.
    """
    ordered = sorted(distances.values())
    gaps = [(b / a, a) for a, b in itertools.pairwise(ordered) if a > 0 and b - a >= least]
    if not gaps or max(gaps)[0] < ratio:
        return []
    cut = max(gaps)[1]
    group = {rank: rank for rank in ranks}
    for (i, j), distance in distances.items():
        if distance <= cut:
            old, new = group[j], group[i]
            group = {rank: new if g == old else g for rank, g in group.items()}
    found = [[r for r in ranks if group[r] == g] for g in dict.fromkeys(group.values())]
    apart = all(group[i] != group[j] for (i, j), d in distances.items() if d > cut)
    several = sum(len(members) > 1 for members in found)
    return found if apart and several > 1 else []


def _find_sites(
    lines: Lines, together: Mapping[Pair, float], expected: Mapping[Pair, float]
) -> None:
    if len(lines.groups) < 2:
        return
    for g, group in enumerate(lines.groups):

        def leaves(i: int, j: int, group: list[int] = group) -> bool:
            return i in group and j not in group

        def enters(i: int, j: int, group: list[int] = group) -> bool:
            return j in group and i not in group

        directions: tuple[tuple[dict[int, float], Callable[[int, int], bool]], ...]
        directions = ((lines.uplink, leaves), (lines.downlink, enters))
        for line, crosses in directions:
            measured = sum(rate for pair, rate in together.items() if crosses(*pair))
            due = sum(rate for pair, rate in expected.items() if crosses(*pair))
            if 0 < measured < _SHORT * due:
                line[g] = measured


def _take_load(
    lines: Lines, together: Mapping[Pair, float], expected: Mapping[Pair, float]
) -> None:
    lines.under_load = True
    for end, rates in ((0, lines.egress), (1, lines.ingress)):
        for rank in rates:
            measured = sum(rate for pair, rate in together.items() if pair[end] == rank)
            due = sum(rate for pair, rate in expected.items() if pair[end] == rank)
            if 0 < measured < _SHORT * due:
                rates[rank] = measured


def shares(
    flows: Mapping[Pair, object],
    egress: Mapping[int, float],
    ingress: Mapping[int, float],
    own: Mapping[Pair, float],
) -> dict[Pair, float]:
    """Max-min fair rates of streams between these pairs, as the virtual network shares lines.

    >>> shares({(0, 1): 1, (2, 1): 1}, {0: 9.0, 2: 3.0}, {1: 10.0}, {})
    {(2, 1): 3.0, (0, 1): 7.0}
    """
    users: dict[tuple[str, object], list[Pair]] = {}
    left: dict[tuple[str, object], float] = {}
    for i, j in flows:
        parts: list[tuple[tuple[str, object], float]] = [
            (("from", i), egress[i]),
            (("to", j), ingress[j]),
        ]
        if (i, j) in own:
            parts.append((("own", (i, j)), own[i, j]))
        for line, rate in parts:
            users.setdefault(line, []).append((i, j))
            left[line] = rate
    rates: dict[Pair, float] = {}
    while users:
        tightest = min(users, key=lambda line: left[line] / len(users[line]))
        rate = left[tightest] / len(users[tightest])
        for pair in users[tightest]:
            rates[pair] = rate
        fixed = users[tightest]
        for line in list(users):
            gone = [pair for pair in users[line] if pair in fixed]
            left[line] = max(0.0, left[line] - rate * len(gone))
            users[line] = [pair for pair in users[line] if pair not in fixed]
            if not users[line]:
                del users[line]
    return rates
