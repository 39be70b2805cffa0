"""What a plan is for: what it ranks by, how much there is to train, and until when."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from thinwire.errors import InputError, nearest
from thinwire.planner._words import listed

if TYPE_CHECKING:
    from thinwire.cluster import Cluster
    from thinwire.planner.simulate import Simulated

__all__ = ["Objective", "Target", "make_objective"]

Target = Literal["time", "energy", "bytes", "price"]


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What the best method is best at.

    Args:
        target: what is as small as can be: "time", "energy", "bytes" or "price" of a sample.
        samples: that the whole training sees, all epochs together, 1 or more; None: unknown.
        deadline: seconds that they may take, above 0; None: any.
    """

    target: Target = "time"
    samples: int | None = None
    deadline: float | None = None

    def __post_init__(self) -> None:
        if self.samples is not None and self.samples < 1:
            raise InputError(f"samples = {self.samples!r}; allowed: a whole number, 1 or more")
        if self.deadline is None:
            return
        if not (math.isfinite(self.deadline) and self.deadline > 0):
            raise InputError(f"deadline = {self.deadline!r}; allowed: seconds above 0")
        if self.samples is None:
            raise InputError(
                "deadline without samples: nothing says how much there is to train; give samples, "
                "all epochs together, such as 115M for 90 epochs of 1.28M"
            )

    def duration(self, found: Simulated) -> float | None:
        """Seconds that the training takes; None where nobody said how much there is to do."""
        return None if self.samples is None else self.samples / found.samples_per_second

    def late(self, found: Simulated) -> float:
        """Seconds by which it misses the deadline; 0 where it meets it, or where there is none."""
        duration = self.duration(found)
        if duration is None or self.deadline is None:
            return 0.0
        return max(0.0, duration - self.deadline)

    def cost(self, found: Simulated, workers: int) -> float:
        """Seconds, joules, bytes or money of the whole cluster per sample.

        Args:
            found: the method's step.
            workers: of the cluster.
        """
        if self.target == "time":
            return 1.0 / found.samples_per_second
        if self.target == "energy":
            assert found.joules_per_sample is not None
            return found.joules_per_sample
        if self.target == "price":
            assert found.price_per_sample is not None
            return found.price_per_sample
        used = 1 if found.method == "alone" else workers
        return found.bytes_per_step * used / (found.samples_per_second * found.step_time)


def make_objective(
    cluster: Cluster,
    target: str = "time",
    samples: int | None = None,
    deadline: float | None = None,
) -> Objective:
    """The objective, if the cluster says enough for it.

    Raises:
        InputError: an unknown target; energy with a node that states no power, price with one that
            states no price; a deadline without samples.
    """
    if target not in get_args(Target):
        raise InputError(f"target = {target!r}; {nearest(target, get_args(Target))}")
    if target == "energy":
        silent = [node.name for node in cluster.nodes if node.power_idle is None]
        _stated(silent, cluster, target, "power", "power_idle and power_busy (watts)")
    if target == "price":
        silent = [node.name for node in cluster.nodes if node.price is None]
        _stated(silent, cluster, target, "price", 'price (such as price = "2.5 /h")')
    return Objective(
        target=target,  # pyright: ignore[reportArgumentType]
        samples=samples,
        deadline=deadline,
    )


def _stated(silent: list[str], cluster: Cluster, target: str, what: str, keys: str) -> None:
    if not silent:
        return
    names = listed([repr(name) for name in silent])
    nodes, state = ("node", "states") if len(silent) == 1 else ("nodes", "state")
    raise InputError(
        f"target = {target!r}: {nodes} {names} of cluster {cluster.name!r} {state} no {what}; give "
        f"{keys} of every node in the cluster file, or target time or bytes"
    )
