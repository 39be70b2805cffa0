"""A cluster of like machines from the few numbers of a command line."""

from __future__ import annotations

from thinwire.cluster import Cluster, Node
from thinwire.errors import InputError
from thinwire.planner.workload import Workload
from thinwire.units import format_compute, format_rate, format_time

__all__ = ["ASSUMED_FLOPS", "ASSUMED_LATENCY", "ASSUMED_MEMORY_RATE", "quick_cluster"]

ASSUMED_FLOPS = 5e12
"""What a mid-range accelerator reaches on training kernels in single precision, not its peak."""
ASSUMED_MEMORY_RATE = 300e9
"""Bytes per second of the memory beside such an accelerator."""
ASSUMED_LATENCY = 0.2e-3
"""One way through an Ethernet switch and two kernels' network stacks."""


def quick_cluster(
    nodes: int,
    link: float,
    *,
    latency: float | None = None,
    flops: float | None = None,
    memory_rate: float | None = None,
    workload: Workload | None = None,
) -> tuple[Cluster, tuple[str, ...]]:
    """Machines of one kind on one switch, and what had to be assumed about them.

    Args:
        nodes: number of machines, 1 or more.
        link: bytes per second that each can send, and receive at the same time, above 0.
        latency: seconds one way; assumed where None.
        flops: effective FLOP/s of a machine; assumed where None.
        memory_rate: bytes per second of a machine's memory; assumed where None.
        workload: with measured step times no compute rate has to be assumed.

    Returns:
        The cluster, and a sentence per assumption for the `assumptions` of `plan`.

    Raises:
        InputError: a number out of its range.
    """
    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1:
        raise InputError(f"nodes = {nodes!r}; allowed: a whole number, 1 or more")
    assumptions = []
    if flops is None and not (workload and workload.step_times):
        assumptions.append(
            f"Each machine computes at an effective {format_compute(ASSUMED_FLOPS)} (give a "
            "measured step time, or a compute rate, or a cluster file)."
        )
    if latency is None and nodes > 1:
        assumptions.append(
            f"A message takes {format_time(ASSUMED_LATENCY)} one way beside its bytes "
            "(give a latency, or a cluster file)."
        )
    if memory_rate is None and nodes > 1:
        assumptions.append(
            f"Memory moves {ASSUMED_MEMORY_RATE / 1e9:.0f} GB/s, for the selecting and merging of "
            "topk and gtopk (give a memory rate, or a cluster file)."
        )
    machines = tuple(
        Node(
            name=f"node-{i}",
            flops=ASSUMED_FLOPS if flops is None else flops,
            memory_rate=ASSUMED_MEMORY_RATE if memory_rate is None else memory_rate,
            egress=link,
            ingress=link,
        )
        for i in range(nodes)
    )
    cluster = Cluster(
        name=f"{nodes} machines on {format_rate(link)}" if nodes > 1 else "one machine",
        nodes=machines,
        default_latency=ASSUMED_LATENCY if latency is None else latency,
    )
    return cluster, tuple(assumptions)
