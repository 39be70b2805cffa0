"""From predictions to advice: which method, why, and what to beware of."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thinwire.planner.predict import BACKWARD_SHARE, Prediction, Settings, predict
from thinwire.planner.workload import Workload, compute_times
from thinwire.units import format_size, format_time

if TYPE_CHECKING:
    from thinwire.cluster import Cluster

__all__ = ["HOST_FACTOR", "WORTH", "Plan", "choose", "plan"]

WORTH = 1.1
"""A method must be this much faster before a simpler one is given up for it: the closed forms are
not exact, and a lossy method costs accuracy that samples per second do not show."""

HOST_FACTOR = 60
"""Published gTop-k exchanges of large models took 54 to 70 times as long as latency and bandwidth
alone explain (of a small one 5 times); a plan says what its advice would be worth then."""

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
        proposals: changes of settings or nodes that would do clearly better.
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
    proposals: tuple[str, ...]
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
    proposals = tuple(_proposals(workload, cluster, settings, choice))
    return Plan(
        workload=workload,
        cluster=cluster.name,
        nodes=tuple(node.name for node in cluster.nodes),
        fastest=fastest,
        settings=settings,
        predictions=predictions,
        choice=choice.method,
        verdict=(
            f"Use one machine: {fastest} is the only node, there is nothing to exchange."
            if len(times) == 1
            else _verdict(predictions, choice, fastest, proposals)
        ),
        why=tuple(_why(predictions, choice)) if len(times) > 1 else (),
        proposals=proposals,
        warnings=(tuple(_warnings(cluster, predictions, choice, times)) if len(times) > 1 else ()),
        assumptions=(*assumptions, *_assumed(workload, cluster)),
    )


def choose(predictions: tuple[Prediction, ...]) -> Prediction:
    """The simplest method whose samples per second are within `WORTH` of the best.

    Args:
        predictions: from the simplest to the least simple, as `predict` returns them.
    """
    best = max(p.samples_per_second for p in predictions)
    return next(p for p in predictions if p.samples_per_second * WORTH >= best)


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


def _verdict(
    predictions: tuple[Prediction, ...],
    choice: Prediction,
    fastest: str,
    proposals: tuple[str, ...],
) -> str:
    ssgd = next(p for p in predictions if p.method == "ssgd")
    others = [p for p in predictions if p.method not in ("alone", "ssgd")]
    best = max(others, key=lambda p: p.samples_per_second)
    if choice.method == "alone":
        told = (
            f"Use one machine ({fastest}): it is {faster_text(1 / ssgd.speedup_alone, 'plain DDP')}"
            f" and {faster_text(1 / best.speedup_alone, name_of(best))}, the best of the others"
        )
        return f"{told}. But {proposals[0]}" if proposals else f"{told}."
    if choice.method == "ssgd":
        return (
            f"Plain DDP is fine here: it is {faster_text(choice.speedup_alone, 'one machine')} and "
            f"{faster_text(1 / best.speedup_ssgd, name_of(best))}, the best of the others."
        )
    return (
        f"{name_of(choice)}: {ratio_text(choice.speedup_ssgd)} faster per sample than plain DDP "
        f"and {ratio_text(choice.speedup_alone)} than one machine."
    )


def name_of(p: Prediction) -> str:
    """A method as it is called in a sentence."""
    names = {
        "alone": "one machine",
        "ssgd": "plain DDP",
        "accumulate": f"ssgd with {p.period} accumulated batches",
    }
    return names.get(p.method, p.method)


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


def percent(share: float) -> str:
    """A share of 0..1 as whole per cent.

    >>> percent(0.634)
    '63 %'
    """
    return f"{share * 100:.0f} %"


def _limit_text(p: Prediction) -> str:
    return f"{p.limit} ({percent(p.parts[p.limit] / p.step_time)} of the step)"


def _proposals(
    workload: Workload, cluster: Cluster, settings: Settings, choice: Prediction
) -> Iterator[str]:
    """Changes that do clearly better than the choice, the least intrusive first.

    Longer periods always look better here, since what they cost in accuracy is not predicted; they
    are proposed only where nothing else makes the other machines pay.
    """
    needed = choice.samples_per_second * WORTH
    for text, other, nodes, job in _variants(workload, cluster, settings, choice):
        found = choose(predict(job, nodes, other))
        if found.samples_per_second >= needed:
            gain = ratio_text(found.samples_per_second / choice.samples_per_second)
            versus = "one machine" if choice.method == "alone" else f"{name_of(choice)} as above"
            yield f"{name_of(found)} {text} would be {gain} faster than {versus}."
            return


def _variants(
    workload: Workload, cluster: Cluster, settings: Settings, choice: Prediction
) -> Iterator[tuple[str, Settings, Cluster, Workload]]:
    times = compute_times(workload, cluster)
    uneven = max(times) > 1.05 * min(times)
    if uneven and settings.batch == "equal":
        by_speed = dataclasses.replace(settings, batch="by_speed")
        yield "with batches by speed", by_speed, cluster, workload
    if uneven and len(times) > 2:
        yield from _without_slow(workload, cluster, settings, times)
    if choice.method != "alone" or len(times) == 1:
        return
    for factor in (4, 16):
        longer = dataclasses.replace(
            settings,
            batch="by_speed" if uneven else settings.batch,
            every=settings.every * factor,
            accumulate=settings.accumulate * factor,
        )
        text = "with batches by speed" if uneven else "with such long periods"
        yield text, longer, cluster, workload


def _without_slow(
    workload: Workload, cluster: Cluster, settings: Settings, times: tuple[float, ...]
) -> Iterator[tuple[str, Settings, Cluster, Workload]]:
    """The cluster without its nodes slower than 1.25 times the fastest, if two or more are left."""
    keep = [i for i, t in enumerate(times) if t <= 1.25 * min(times)]
    if not 2 <= len(keep) < len(times):
        return
    gone = [node.name for i, node in enumerate(cluster.nodes) if i not in keep]
    job = workload
    if len(workload.step_times) > 1:
        job = dataclasses.replace(workload, step_times=tuple(workload.step_times[i] for i in keep))
    yield f"without {_listed(gone)}", settings, cluster.select(keep), job


def _warnings(
    cluster: Cluster,
    predictions: tuple[Prediction, ...],
    choice: Prediction,
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
    if choice.method in ("topk", "gtopk"):
        yield _host_warning(choice, ssgd)
    yield (
        "Samples per second are not accuracy: topk, gtopk and localsgd change the updates, and "
        f"{by_name['accumulate'].label} makes the batch {by_name['accumulate'].period} times "
        "larger; each may need more samples. `thinwire compare` trains and shows it."
    )


def _epochs_text(ssgd: Prediction, alone: Prediction) -> str:
    if ssgd.epoch_time is None or alone.epoch_time is None:
        return ""
    return f": an epoch takes {format_time(ssgd.epoch_time)} instead of {format_time(alone.epoch_time)}"


def _host_warning(choice: Prediction, ssgd: Prediction) -> str:
    slow = choice.step_time + (HOST_FACTOR - 1) * choice.communication
    rate = choice.samples_per_step / slow
    return (
        f"{choice.method}'s exchange is counted at the speed of good kernels. In published "
        f"measurements gTop-k took about {HOST_FACTOR} times what the wire alone explains (copies "
        f"to the host, merging there). Then {choice.method} would be at "
        f"{ratio_text(rate / ssgd.samples_per_second)} of plain DDP's and "
        f"{ratio_text(rate * choice.speedup_alone / choice.samples_per_second)} of one machine's "
        "samples per second. Measure before relying on it."
    )


def _assumed(workload: Workload, cluster: Cluster) -> Iterator[str]:
    if len(workload.step_times) == 1 and len(cluster.nodes) > 1:
        yield (
            "The step time is the fastest node's; the others' follow from their rates "
            "(step_time takes one value per node)."
        )
    traced = [n.name for n in cluster.nodes if n.speed or n.egress_scale or n.ingress_scale]
    if traced:
        yield f"Changing speed or bandwidth counts by its average: {_listed(traced)}."
    if cluster.latency_jitter or any(n.jitter for n in cluster.nodes):
        yield "Jitter is left out: every step waits for the slowest, so real steps are longer."


def _listed(names: list[str]) -> str:
    if len(names) > 4:
        return f"{', '.join(names[:3])} and {len(names) - 3} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
