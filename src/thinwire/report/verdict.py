"""One honest sentence, and the words below the table.

The sentence may be "use one machine". It names the soonest method that reached the target on every
seed and kept it, against plain DDP (`ssgd`) and against the fastest machine by itself (`alone`).
"""

from __future__ import annotations

import re
from itertools import combinations

from thinwire.report.compare import Comparison, MethodSummary, tied
from thinwire.report.reader import Record
from thinwire.report.words import accuracy_words, join_words, sooner_words, time_words

__all__ = ["remarks", "verdict"]

_ACCURACY_LOSS = 0.01
_NAMES = {"ssgd": "plain DDP", "alone": "one machine"}


def verdict(comparison: Comparison) -> str:
    """The sentence for a comparison."""
    if not any(row.seeds for row in comparison.rows):
        return "No verdict: no run has finished."
    if comparison.target is None:
        return _nothing_to_reach(comparison)
    ranked = comparison.ranked
    if not ranked:
        return _nothing_reached(comparison)
    # Among those too close to call, the simplest wins: one machine, then plain DDP.
    first = ranked[0]
    close = [row for row in ranked if row is first or _tie(row, first)]
    for base in ("alone", "ssgd"):
        label = comparison.baselines.get(base)
        simple = next((row for row in close if row.label == label), None)
        if simple is not None:
            return _use_baseline(comparison, base, simple)
    return _use_method(comparison, first, close)


def _nothing_to_reach(comparison: Comparison) -> str:
    """Of a target that is relative to runs of which none ended well."""
    if not any(row.failed for row in comparison.rows):
        return "No verdict: the record holds costs, but no accuracy."
    if all(row.final is None for row in comparison.rows):
        return "No verdict: every run failed."
    return (
        f"No verdict: the target is {comparison.asked}, and no run of that ended well. "
        "thinwire report FOLDER --target sets another."
    )


def _tie(first: MethodSummary, second: MethodSummary) -> bool:
    return bool(first.time and second.time and tied(first.time, second.time))


def _nothing_reached(comparison: Comparison) -> str:
    known = [row for row in comparison.rows if row.final is not None]
    if not known:
        return f"Nothing reached the target of {comparison.target}: every run failed."
    top = max(known, key=lambda row: row.final.mean if row.final else 0.0)
    partly = [row for row in comparison.rows if row.hits]
    if any(row.time for row in partly):
        return (
            f"Nothing reached the target of {comparison.target} and kept it: the best final "
            f"accuracy is {top.label}'s, {accuracy_words(top.final.mean if top.final else None)}. "
            "Lower the learning rate, or the target."
        )
    some = f" on every seed ({_partly(partly)})" if partly else ""
    final = accuracy_words(top.final.mean if top.final else None)
    return (
        f"Nothing reached the target of {comparison.target}{some}: the best final accuracy is "
        f"{top.label}'s, {final}. Train longer, or lower the target."
    )


def _partly(rows: list[MethodSummary]) -> str:
    return join_words([f"{row.label} on {row.hits} of {len(row.times)}" for row in rows])


def _use_baseline(comparison: Comparison, base: str, row: MethodSummary) -> str:
    opening = (
        "Use one machine: it reaches" if base == "alone" else "Plain DDP is fine here: it reaches"
    )
    rivals = [rival for rival in comparison.ranked if rival is not row]
    other = comparison.baselines.get("ssgd" if base == "alone" else "alone")
    told: list[str] = []
    if rivals:
        rival = next((each for each in rivals if each.label != other), rivals[0])
        labels = [rival.label] if other in (None, rival.label) else [rival.label, other]
        told += [_against(comparison, row, comparison.row(label)) for label in labels]
    elif len(comparison.rows) > 1:
        told.append("and no other method reached it on every seed")
    else:
        told.append(
            f"after {time_words(row.time.median if row.time else None)}; "
            "nothing ran to compare it with"
        )
    return f"{opening} {comparison.target} {_joined(told)}{_loss(comparison, row)}."


def _use_method(comparison: Comparison, row: MethodSummary, close: list[MethodSummary]) -> str:
    told = [
        _against(comparison, row, comparison.row(comparison.baselines[base]))
        for base in ("ssgd", "alone")
        if base in comparison.baselines
    ]
    if not told:
        told = [f"after {time_words(row.time.median if row.time else None)}"]
        rest = [rival for rival in comparison.ranked if rival is not row]
        if rest:
            told = [_against(comparison, row, rest[0])]
    ties = [each.label for each in close if each is not row]
    tie = f"; {join_words(ties)} about as soon" if ties else ""
    return f"{row.label} reaches {comparison.target} {_joined(told)}{tie}{_loss(comparison, row)}."


def _against(comparison: Comparison, row: MethodSummary, other: MethodSummary) -> str:
    base = next((b for b, label in comparison.baselines.items() if label == other.label), "")
    name = _NAMES.get(base, other.label)
    if other.time is not None and not other.kept:
        return f"; {name} did not keep it"
    if row.time is None or other.time is None:
        return f"; {name} did not reach it" + ("" if not other.hits else " on every seed")
    if tied(row.time, other.time):
        return f"about as soon as {name}"
    return sooner_words(other.time.median / row.time.median, name)


def _joined(told: list[str]) -> str:
    plain = [each for each in told if not each.startswith(";")]
    missed = [each[2:] for each in told if each.startswith(";")]
    text = join_words(plain)
    if missed and plain:
        return f"{text}; {join_words(missed)}"
    return text or f"({join_words(missed)})"


def _loss(comparison: Comparison, row: MethodSummary) -> str:
    """Sooner at the target is not better at the end: a clear loss is said in the same sentence."""
    others = [other for other in comparison.rows if other.final is not None and other is not row]
    if row.final is None or not others:
        return ""
    top = max(others, key=lambda other: other.final.mean if other.final else 0.0)
    assert top.final is not None
    loss = top.final.mean - row.final.mean
    if loss < _ACCURACY_LOSS or top.final.low <= row.final.high:
        return ""
    base = next((b for b, label in comparison.baselines.items() if label == top.label), "")
    name = _NAMES.get(base, top.label)
    return f", but its final accuracy is {loss * 100:.1f} points below that of {name}"


def remarks(comparison: Comparison, record: Record) -> list[str]:
    """Ties, misses, failures and what was left out, a sentence each."""
    return [
        *_tie_remarks(comparison),
        *_miss_remarks(comparison),
        *_unkept_remarks(comparison),
        *_failure_remarks(record),
        *_record_remarks(comparison, record),
    ]


def _tie_remarks(comparison: Comparison) -> list[str]:
    pairs = [
        f"{a.label} and {b.label}" for a, b in combinations(comparison.ranked, 2) if _tie(a, b)
    ]
    if not pairs:
        return []
    return [
        f"Tie in time to the target: {'; '.join(pairs)} "
        "(the seeds' ranges overlap, or the medians are within 2 %)."
    ]


def _miss_remarks(comparison: Comparison) -> list[str]:
    told = []
    for row in comparison.rows:
        if comparison.target and row.times and row.time is None:
            best = accuracy_words(row.best.low) if row.best else ""
            low = f"; the worst seed's best accuracy is {best}" if best and not row.failed else ""
            told.append(
                f"Miss: {row.label} reached the target on {row.hits} of {len(row.times)} "
                f"seeds{low}. It gets no time and no speed-up."
            )
    return told


def _unkept_remarks(comparison: Comparison) -> list[str]:
    return [
        f"Not kept: {row.label} reached the target, but its final accuracy is "
        f"{accuracy_words(row.final.mean if row.final else None)}; the verdict passes it over."
        for row in comparison.rows
        if row.time is not None and not row.kept
    ]


def _failure_remarks(record: Record) -> list[str]:
    told = []
    for run in record.runs:
        name = f"{run.start.label}, seed {run.start.seed}"
        if run.status == "failed":
            error = run.end.error.strip() if run.end else ""
            why = error.splitlines()[0] if error else "no reason recorded"
            told.append(f"Failed: {name}: {why.rstrip('.')}.")
        elif run.status != "ok":
            told.append(
                f"Interrupted: {name}, after {time_words(run.time)} of its own time; "
                "it is left out of every number."
            )
        elif run.end is not None and not run.end.agree:
            told.append(f"Replicas of {name} ended with different parameters.")
    return told


def _record_remarks(comparison: Comparison, record: Record) -> list[str]:
    told = []
    if comparison.rows and all(len(row.seeds) <= 1 for row in comparison.rows):
        told.append("One seed only: no spread is known, so small differences may be chance.")
    told += _note_remarks(record)
    if record.superseded:
        told.append(f"Left out: {record.superseded} earlier tries of runs that were run again.")
    told += [f"Record: {warning}." for warning in record.warnings]
    return told


def _note_remarks(record: Record) -> list[str]:
    """Notes that differ in numbers only are told once."""
    notes: dict[str, list[tuple[str, str]]] = {}
    for run in record.runs:
        for note in run.notes:
            alike = re.sub(r"\d+(\.\d+)?", "#", note.text)
            where = f"{run.start.label} seed {run.start.seed}"
            notes.setdefault(alike, []).append((where, note.text.rstrip(".")))
    told = []
    for found in notes.values():
        where = list(dict.fromkeys(place for place, _ in found))
        text = found[0][1]
        rest = len(where) - 1
        more = f"{rest} more run{'s' if rest > 1 else ''}"
        if not rest:
            told.append(f"Note from {where[0]}: {text}.")
        elif all(each == text for _, each in found):
            told.append(f"Note from {where[0]} and {more}: {text}.")
        else:
            told.append(f"Note from {where[0]}: {text} (and the like from {more}).")
    return told
