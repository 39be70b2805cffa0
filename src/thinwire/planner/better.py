"""Which change of settings or machines would do clearly better than a plan's choice."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thinwire.planner._words import listed, name_of, ratio_text
from thinwire.planner.predict import Prediction, Settings, predict
from thinwire.planner.workload import Workload, compute_times

if TYPE_CHECKING:
    from thinwire.cluster import Cluster

__all__ = ["WORTH", "Proposal", "choose", "find_better"]

WORTH = 1.1
"""A method must be this much faster before a simpler one is given up for it: the closed forms are
not exact, and a lossy method costs accuracy that samples per second do not show."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A change that pays.

    Args:
        text: a sentence.
        prediction: of the method to use after the change.
        settings: after the change.
        nodes: names of the nodes after the change.
    """

    text: str
    prediction: Prediction
    settings: Settings
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class _Variant:
    text: str
    settings: Settings
    cluster: Cluster
    workload: Workload


def choose(predictions: tuple[Prediction, ...]) -> Prediction:
    """The simplest method whose samples per second are within `WORTH` of the best.

    Args:
        predictions: from the simplest to the least simple, as `predict` returns them.
    """
    best = max(p.samples_per_second for p in predictions)
    return next(p for p in predictions if p.samples_per_second * WORTH >= best)


def find_better(
    workload: Workload, cluster: Cluster, settings: Settings, choice: Prediction
) -> Proposal | None:
    """The least intrusive change with which some method is `WORTH` times as fast as the choice.

    Longer periods always look better here, since what they cost in accuracy is not predicted; they
    are proposed only where nothing else makes the other machines pay.
    """
    for variant in _variants(workload, cluster, settings, choice):
        found = choose(predict(variant.workload, variant.cluster, variant.settings))
        gain = found.samples_per_second / choice.samples_per_second
        if gain >= WORTH:
            versus = "one machine" if choice.method == "alone" else f"{name_of(choice)} as above"
            text = (
                f"{_called(found)}{variant.text} would be {ratio_text(gain)} faster than {versus}."
            )
            return Proposal(
                text=text,
                prediction=found,
                settings=variant.settings,
                nodes=tuple(node.name for node in variant.cluster.nodes),
            )
    return None


def _called(p: Prediction) -> str:
    return f"localsgd averaging every {p.period} steps" if p.method == "localsgd" else name_of(p)


def _variants(
    workload: Workload, cluster: Cluster, settings: Settings, choice: Prediction
) -> Iterator[_Variant]:
    times = compute_times(workload, cluster)
    uneven = max(times) > 1.05 * min(times)
    by_speed, words = settings, ""
    if uneven and settings.batch == "equal":
        by_speed, words = dataclasses.replace(settings, batch="by_speed"), " with batches by speed"
        yield _Variant(words, by_speed, cluster, workload)
    yield from _without_slow(workload, cluster, settings, times)
    if choice.method == "alone" and len(times) > 1:
        for factor in (4, 16):
            longer = dataclasses.replace(
                by_speed,
                every=settings.every * factor,
                accumulate=settings.accumulate * factor,
            )
            yield _Variant(words, longer, cluster, workload)


def _without_slow(
    workload: Workload, cluster: Cluster, settings: Settings, times: tuple[float, ...]
) -> Iterator[_Variant]:
    """Without the nodes that need 1.25 times as long as the fastest, if two or more are left."""
    keep = [i for i, seconds in enumerate(times) if seconds <= 1.25 * min(times)]
    if not 2 <= len(keep) < len(times):
        return
    gone = [node.name for i, node in enumerate(cluster.nodes) if i not in keep]
    given = workload.step_times
    job = workload
    if len(given) > 1:
        job = dataclasses.replace(workload, step_times=tuple(given[i] for i in keep))
    yield _Variant(f" without {listed(gone)}", settings, cluster.select(keep), job)
