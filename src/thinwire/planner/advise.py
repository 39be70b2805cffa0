"""From predictions to advice: which method, why, and what to beware of."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thinwire.planner._words import faster_text, listed, name_of, percent, ratio_text
from thinwire.planner.better import Proposal, choose, find_better
from thinwire.planner.predict import BACKWARD_SHARE, Prediction, Settings, predict
from thinwire.planner.workload import Workload, compute_times
from thinwire.units import format_size, format_time

if TYPE_CHECKING:
    from thinwire.cluster import Cluster

__all__ = ["HOST_TIME", "Plan", "plan"]

HOST_TIME = 61e-9
"""Seconds per parameter that the published gTop-k implementation took beside wire and compute: 6 to
select, 55 for copies to the host and merging there, nearly the same for 15 to 61 million parameters
and for 4 to 32 workers. A plan says what its advice would be worth with such an implementation."""

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The answer of `thinwire plan`.

    Args:
        workload: what is trained.
        cluster: name of the cluster.
        nodes: names of its nodes, one worker each.
        fastest: the node that `alone` means.
        settings: of the methods.
        predictions: one per method, in the order of `METHODS`.
        choice: the method to use.
        verdict: one sentence.
        why: what limits plain DDP, and the choice.
        proposal: a change of settings or nodes that would do clearly better; None: there is none.
        warnings: what a reader must not overlook.
        assumptions: what was not given and had to be assumed, and how to change it.
    """

    workload: Workload
    cluster: str
    nodes: tuple[str, ...]
    fastest: str
    settings: Settings
    predictions: tuple[Prediction, ...]
    choice: str
    verdict: str
    why: tuple[str, ...]
    proposal: Proposal | None
    warnings: tuple[str, ...]
    assumptions: tuple[str, ...]

    def __getitem__(self, method: str) -> Prediction:
        """The prediction of that method."""
        return next(p for p in self.predictions if p.method == method)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with a `schema` number; times in seconds, sizes in bytes."""
        return {"schema": SCHEMA, **dataclasses.asdict(self)}


def plan(
    workload: Workload,
    cluster: Cluster,
    settings: Settings | None = None,
    assumptions: tuple[str, ...] = (),
) -> Plan:
    """Predict every method on the cluster and say which one to use.

    Args:
        workload: what is trained.
        cluster: one worker per node.
        settings: of the methods.
        assumptions: made before this call, to be shown with the result.

    Raises:
        InputError: step times that do not fit the cluster.
    """
    settings = settings or Settings()
    predictions = predict(workload, cluster, settings)
    choice = choose(predictions)
    times = compute_times(workload, cluster)
    fastest = cluster.nodes[times.index(min(times))].name
    proposal = find_better(workload, cluster, settings, choice)
    several = len(times) > 1
    return Plan(
        workload=workload,
        cluster=cluster.name,
        nodes=tuple(node.name for node in cluster.nodes),
        fastest=fastest,
        settings=settings,
        predictions=predictions,
        choice=choice.method,
        verdict=(
            _verdict(predictions, choice, fastest, proposal)
            if several
            else f"Use one machine: {fastest} is the only node, there is nothing to exchange."
        ),
        why=tuple(_why(predictions, choice)) if several else (),
        proposal=proposal,
        warnings=(
            tuple(_warnings(workload, cluster, predictions, choice, proposal, times))
            if several
            else ()
        ),
        assumptions=(*assumptions, *_assumed(workload, cluster)),
    )


def _verdict(
    predictions: tuple[Prediction, ...],
    choice: Prediction,
    fastest: str,
    proposal: Proposal | None,
) -> str:
    ssgd = next(p for p in predictions if p.method == "ssgd")
    others = [p for p in predictions if p.method not in ("alone", "ssgd")]
    best = max(others, key=lambda p: p.samples_per_second)
    if choice.method == "alone":
        only = "" if proposal is None else " with these settings"
        told = (
            f"Use one machine ({fastest}){only}: it is "
            f"{faster_text(1 / ssgd.speedup_alone, 'plain DDP')} and "
            f"{faster_text(1 / best.speedup_alone, name_of(best))}, the best of the others."
        )
        return told if proposal is None else f"{told} But {proposal.text}"
    if choice.method == "ssgd":
        return (
            f"Plain DDP is fine here: it is {faster_text(choice.speedup_alone, 'one machine')} and "
            f"{faster_text(1 / best.speedup_ssgd, name_of(best))}, the best of the others."
        )
    return (
        f"{name_of(choice)}: {ratio_text(choice.speedup_ssgd)} faster per sample than plain DDP "
        f"and {ratio_text(choice.speedup_alone)} than one machine."
    )


def _why(predictions: tuple[Prediction, ...], choice: Prediction) -> Iterator[str]:
    ssgd = next(p for p in predictions if p.method == "ssgd")
    text = (
        f"Plain DDP sends {format_size(ssgd.bytes_per_step)} per worker and step, which takes "
        f"{format_time(ssgd.communication)} ({ssgd.algorithm} all-reduce). The backward pass hides "
        f"up to {format_time(BACKWARD_SHARE * ssgd.compute)} of it"
    )
    if ssgd.exposed > 0:
        text += f"; {format_time(ssgd.exposed)} remain, {percent(ssgd.exposed_share)} of the step"
    else:
        text += ", so nothing remains"
    yield f"{text}. Without overlap a step would take {format_time(ssgd.bsp_step_time)}."
    yield f"What limits plain DDP is {_limit_text(ssgd)}."
    if choice.method not in ("alone", "ssgd"):
        yield (
            f"{name_of(choice)} sends {format_size(choice.bytes_per_step)} per worker and step; "
            f"what limits it is {_limit_text(choice)}."
        )


def _limit_text(p: Prediction) -> str:
    return f"{p.limit} ({percent(p.parts[p.limit] / p.step_time)} of the step)"


def _warnings(
    workload: Workload,
    cluster: Cluster,
    predictions: tuple[Prediction, ...],
    choice: Prediction,
    proposal: Proposal | None,
    times: tuple[float, ...],
) -> Iterator[str]:
    by_name = {p.method: p for p in predictions}
    ssgd = by_name["ssgd"]
    if ssgd.speedup_alone < 1:
        size, fastest = len(times), cluster.nodes[times.index(min(times))].name
        others = "the second machine" if size == 2 else f"the other {size - 1} machines"
        yield (
            f"Adding {others} slows plain DDP down, to {ratio_text(ssgd.speedup_alone)} of the "
            f"samples per second of {fastest} by itself{_epochs_text(ssgd, by_name['alone'])}."
        )
    lost = ssgd.parts["the slowest node"] / ssgd.compute
    if lost > 0.1:
        slowest = cluster.nodes[times.index(max(times))].name
        yield (
            f"Everybody waits for {slowest}: {percent(lost)} of the computing power is lost to "
            "waiting in a synchronous step with these batches."
        )
    advised = choice if proposal is None else proposal.prediction
    if advised.method in ("topk", "gtopk"):
        yield _host_warning(workload, advised, by_name)
    yield (
        "Samples per second are not accuracy: topk, gtopk and localsgd change the updates, and "
        f"{by_name['accumulate'].label} makes the batch {by_name['accumulate'].period} times "
        "larger; each may need more samples. `thinwire compare` trains and shows it."
    )


def _epochs_text(ssgd: Prediction, alone: Prediction) -> str:
    if ssgd.epoch_time is None or alone.epoch_time is None:
        return ""
    slow, fast = format_time(ssgd.epoch_time), format_time(alone.epoch_time)
    return f": an epoch takes {slow} instead of {fast}"


def _host_warning(workload: Workload, advised: Prediction, by_name: dict[str, Prediction]) -> str:
    lost = HOST_TIME * workload.num_params
    rate = advised.samples_per_step / (advised.step_time - advised.overhead + lost)
    ours = format_time(advised.overhead)
    return (
        f"Selecting and merging are counted as good kernels do them, {ours} a step. The published "
        f"gTop-k implementation would take {format_time(lost)} (copies to the host, merging "
        f"there); with it {advised.method} would be at "
        f"{ratio_text(rate / by_name['ssgd'].samples_per_second)} of plain DDP's and "
        f"{ratio_text(rate / by_name['alone'].samples_per_second)} of one machine's samples per "
        "second. Measure before relying on it."
    )


def _assumed(workload: Workload, cluster: Cluster) -> Iterator[str]:
    if len(workload.step_times) == 1 and len(cluster.nodes) > 1:
        yield (
            "The step time is the fastest node's; the others' follow from their rates "
            "(step_time takes one value per node)."
        )
    traced = [n.name for n in cluster.nodes if n.speed or n.egress_scale or n.ingress_scale]
    if traced:
        yield f"Changing speed or bandwidth counts by its average: {listed(traced)}."
    if cluster.latency_jitter or any(n.jitter for n in cluster.nodes):
        yield "Jitter is left out: every step waits for the slowest, so real steps are longer."
