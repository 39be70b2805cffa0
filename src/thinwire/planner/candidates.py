"""What a plan simulates: methods and settings, and which of them are not worth the time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from thinwire.planner.predict import Prediction, Settings, predict
from thinwire.planner.workload import Workload, compute_times

if TYPE_CHECKING:
    from thinwire.cluster import Cluster

__all__ = ["HOPELESS", "Candidate", "candidates"]

HOPELESS = 3.0
"""A method whose closed form is this many times slower than the best one's is not simulated."""

LONGER = 4
"""Periods are tried this many times as long, too."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A method with settings.

    Args:
        method: a name in `thinwire.methods.METHODS`.
        settings: of the method.
        lossy: whether its updates differ from those of plain S-SGD with the same batches.
        longer: a longer period than asked for, which always sends less and may learn worse.
        closed: its closed form; None: it has none.
        closed_time: seconds of a step by that.
        baseline: simulated in any case.
        slow: has many messages, and so takes long to simulate: these come last.
    """

    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    lossy: bool = False
    longer: bool = False
    closed: Prediction | None = None
    closed_time: float | None = None
    baseline: bool = False
    slow: bool = False

    @property
    def label(self) -> str:
        """What tables call it."""
        return " ".join([self.method, *(f"{k}={v}" for k, v in self.settings.items())])


def candidates(workload: Workload, cluster: Cluster, settings: Settings) -> tuple[Candidate, ...]:
    """Methods that run without values, from the simplest to the least simple.

    Args:
        workload: what is trained.
        cluster: one worker per node.
        settings: of the methods; a density ten times as large (of some) and periods four times as
            long are tried, too.
    """
    found = list(_all(workload, cluster, settings))
    return tuple(found[:1] if cluster.size == 1 else found)


def _all(workload: Workload, cluster: Cluster, settings: Settings) -> Iterator[Candidate]:
    times = compute_times(workload, cluster)
    uneven = max(times) > 1.05 * min(times)
    forms = _forms(workload, cluster, settings)
    densities = sorted({settings.density, min(1.0, 10 * settings.density)})
    yield Candidate(method="alone", baseline=True, **_closed(forms["alone"]))
    yield Candidate(method="ssgd", baseline=True, **_closed(forms["ssgd"], overlap=False))
    for groups in ("buckets", "merged"):
        yield Candidate(method="wfbp", settings={"groups": groups},
                        baseline=groups == "buckets", slow=groups == "merged",
                        **_closed(forms["ssgd"]))  # fmt: skip
    # It hides messages behind the forward pass, too, which the form doesn't grant; what that can
    # save is far less than what a method is left out for.
    yield Candidate(method="bytescheduler", slow=True, **_closed(forms["ssgd"]))
    for factor in (1, LONGER):
        form = _forms(workload, cluster, settings, factor)["accumulate"]
        yield Candidate(method="ssgd", settings={"accumulate": settings.accumulate * factor},
                        lossy=True, longer=factor > 1, **_closed(form, overlap=False))  # fmt: skip
    for method in ("topk", "gtopk"):
        for density in densities:
            form = _forms(workload, cluster, dataclasses.replace(settings, density=density))
            yield Candidate(method=method, settings={"density": density}, lossy=True,
                            **_closed(form[method]))  # fmt: skip
    for method in ("lags", "dgc"):
        yield Candidate(
            method=method, settings={"density": settings.density}, lossy=True, slow=True
        )
    for density in densities:
        yield Candidate(method="oktopk", settings={"density": density}, lossy=True)
    yield Candidate(method="powersgd", settings={"rank": 4}, lossy=True, slow=True)
    yield Candidate(method="qsgd", lossy=True)
    for factor in (1, LONGER):
        form = _forms(workload, cluster, settings, factor)["localsgd"]
        chosen: dict[str, Any] = {"every": settings.every * factor}
        if uneven and settings.local_steps == "by_speed":
            chosen["pace"] = "speed"
        yield Candidate(method="localsgd", settings=chosen, lossy=True, longer=factor > 1,
                        **_closed(form))  # fmt: skip


def _forms(
    workload: Workload, cluster: Cluster, settings: Settings, factor: int = 1
) -> dict[str, Prediction]:
    changed = dataclasses.replace(
        settings, accumulate=settings.accumulate * factor, every=settings.every * factor
    )
    return {p.method: p for p in predict(workload, cluster, changed)}


def _closed(form: Prediction, overlap: bool = True) -> dict[str, Any]:
    """Closed forms grant dense methods the best overlap there can be; `ssgd` has none."""
    seconds = form.step_time if overlap else form.bsp_step_time
    return {"closed": form, "closed_time": seconds}
