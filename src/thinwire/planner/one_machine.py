"""Whether another machine by itself is cheaper than what a plan advises."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thinwire.planner._words import money, whole_time
from thinwire.planner.better import WORTH
from thinwire.units import format_energy

if TYPE_CHECKING:
    from thinwire.planner.objective import Objective
    from thinwire.planner.refine import Row
    from thinwire.planner.simulate import Scene

__all__ = ["cheaper_alone"]

_MILLION = 1_000_000


def cheaper_alone(choice: Row, scene: Scene, aim: Objective) -> tuple[str, ...]:
    """A sentence on the machine that trains a sample for the least money or energy, where it's
    another one than the choice's and in time.

    `alone` means the fastest machine, here as in a run, and a slow one may be much cheaper.

    Args:
        choice: of the plan.
        scene: that it is of.
        aim: what counts; only money and energy differ between machines by more than time.
    """
    if aim.target not in ("price", "energy") or choice.late:
        return ()
    costs = [_cost(scene, index, aim) for index in range(scene.cluster.size)]
    least = min(costs)
    index = costs.index(least)
    rate = scene.batch / scene.seconds[index]
    takes = None if aim.samples is None else aim.samples / rate
    late = takes is not None and aim.deadline is not None and takes > aim.deadline
    if late or least * WORTH > choice.cost:
        return ()
    name = scene.cluster.nodes[index].name
    instead = f"{_told(least, aim)} instead of {_told(choice.cost, aim)} for a million samples"
    words = "" if takes is None else f", and take {whole_time(takes)}"
    return (
        f"{name} by itself would need about {instead}{words}. alone means the fastest machine: "
        f"describe {name} in a cluster file of its own to use it.",
    )


def _cost(scene: Scene, index: int, aim: Objective) -> float:
    """Money or joules of a sample on that node, nothing but computing counted."""
    node = scene.cluster.nodes[index]
    hourly, power = node.price or 0.0, node.power_busy or 0.0
    per_second = hourly / 3600.0 if aim.target == "price" else power
    return per_second * scene.seconds[index] / scene.batch


def _told(cost: float, aim: Objective) -> str:
    total = cost * _MILLION
    return money(total) if aim.target == "price" else format_energy(total)
