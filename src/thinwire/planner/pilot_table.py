"""A pilot on the terminal, within 80 columns."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from thinwire.planner._words import ratio_text
from thinwire.planner.pilot import Learned, Pilot
from thinwire.planner.refined_table import short_label
from thinwire.planner.render import brief

__all__ = ["pilot_report", "pilot_table"]

_MISSING = "–"


def pilot_table(pilot: Pilot) -> Table:
    """The rows, the soonest at the common loss first."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("pilot", no_wrap=True)
    reach = "to loss" if pilot.common_loss is None else f"to {pilot.common_loss:.2g}"
    for name in ("step", "loss", "accuracy", reach, "vs ssgd"):
        table.add_column(name, justify="right", no_wrap=True)
    dense = next((each for each in pilot.rows if each.label == pilot.dense), None)
    for place, each in enumerate(pilot.rows):
        leads = place == 0 and each.reached is not None
        table.add_row(
            Text(f"{'›' if leads else ' '} {short_label(each.row)}", style="bold" if leads else ""),
            brief(each.row.simulated.step_time),
            _MISSING if each.loss is None else f"{each.loss:.3g}",
            _MISSING if each.accuracy is None else f"{100 * each.accuracy:.1f} %",
            _MISSING if each.reached is None else brief(each.reached),
            _speedup(each, dense),
        )
    return table


def _speedup(each: Learned, dense: Learned | None) -> str:
    if dense is None or not each.reached or not dense.reached:
        return _MISSING
    return ratio_text(dense.reached / each.reached)


def pilot_report(pilot: Pilot) -> RenderableType:
    """Everything that a pilot adds to a plan."""
    parts: list[RenderableType] = [Text(pilot.verdict, style="bold"), Text()]
    parts += [pilot_table(pilot), Text(_legend(pilot), style="dim")]
    if pilot.notes:
        parts += [Text(), Text("About the pilot", style="bold")]
        parts += [Text(f"- {note}") for note in pilot.notes]
    return Group(*parts)


def _legend(pilot: Pilot) -> str:
    parts = [
        f"Real gradients of {pilot.task}, {pilot.steps} steps of {pilot.batch} samples a worker "
        f"(one machine: as many samples), seed {pilot.seed}."
    ]
    if pilot.common_time is not None:
        parts.append(
            f"Loss, accuracy: on the test data after {brief(pilot.common_time)} of virtual time."
        )
    if pilot.common_loss is not None:
        parts.append(
            f"To {pilot.common_loss:.2g}: virtual time to that test loss, the lowest that all "
            "which learn have reached."
        )
        parts.append("vs ssgd: how much sooner than the dense baseline.")
    return " ".join(parts)
