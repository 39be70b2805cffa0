"""A plan on the terminal, within 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from thinwire.planner._words import percent, ratio_text
from thinwire.planner.advise import Plan
from thinwire.planner.predict import Prediction
from thinwire.planner.scale import Scaled
from thinwire.units import format_count, format_size, format_time

__all__ = ["brief", "plan_report", "plan_table", "scale_table", "three"]


def plan_table(plan: Plan) -> Table:
    """The methods as a table: a row each, the chosen one marked.

    Times and bytes are per step of one batch; "exposed" is communication that nothing hides.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("method", no_wrap=True)
    for name in ("samples/s", "step", "exposed", "bytes/step", "vs DDP", "vs one"):
        table.add_column(name, justify="right", no_wrap=True)
    best = max(p.samples_per_second for p in plan.predictions)
    for p in plan.predictions:
        chosen = p.method == plan.choice
        table.add_row(
            Text(f"{'›' if chosen else ' '} {_short(p)}", style="bold" if chosen else ""),
            three(p.samples_per_second) + ("*" if p.samples_per_second == best else " "),
            brief(p.step_time),
            percent(p.exposed_share) if p.communication else "–",
            format_size(p.bytes_per_step),
            ratio_text(p.speedup_ssgd),
            ratio_text(p.speedup_alone),
        )
    return table


def plan_report(plan: Plan) -> RenderableType:
    """Everything a plan says: verdict, table, reasons, proposals, warnings, assumptions."""
    job = plan.workload
    title = (
        f"{job.name} ({format_count(job.num_params)} parameters), batch {job.batch} per worker, "
        f"on {plan.cluster}"
    )
    parts: list[RenderableType] = [Text(plan.verdict, style="bold"), Text(), Text(title)]
    parts += [plan_table(plan), Text(_LEGEND, style="dim")]
    epochs = [
        f"{p.method} {format_time(p.epoch_time)}"
        for p in plan.predictions
        if p.epoch_time is not None
    ]
    for heading, lines in (
        ("An epoch", [", ".join(epochs)] if epochs else ()),
        ("Why", plan.why),
        ("Better", [plan.proposal.text] if plan.proposal else ()),
        ("Beware", plan.warnings),
        ("Assumed", plan.assumptions),
    ):
        if lines:
            parts += [Text(), Text(heading, style="bold"), *(Text(f"- {x}") for x in lines)]
    return Group(*parts)


_LEGEND = (
    "› the advice, * most samples/s. Per batch: step time and bytes sent by a worker. Exposed: "
    "part of the step in communication that no computation hides (ssgd: best possible overlap)."
)


def _short(p: Prediction) -> str:
    return p.label.replace(", density ", " ").replace(" (fastest node)", "")


def brief(seconds: float) -> str:
    """A time that is short enough for a column."""
    text = format_time(seconds).replace(" h", "h")
    return text.replace(" min", "m").replace(" s", "s") if " min" in text else text


def three(value: float) -> str:
    """Three significant digits, without an exponent."""
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f}"


def scale_table(results: Sequence[Scaled], title: str) -> Table:
    """Efficiency and step time by number of workers and method, the best of each row marked.

    Args:
        results: of `scale`.
        title: above the table.
    """
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    table.title = f"{title}: step time and efficiency"
    methods = list(dict.fromkeys(each.method for each in results))
    table.add_column("workers", justify="right")
    for method in methods:
        table.add_column(method, justify="right", no_wrap=True)
    for size in dict.fromkeys(each.size for each in results):
        row = {each.method: each for each in results if each.size == size}
        best = max(row.values(), key=lambda each: each.efficiency).method
        cells = []
        for method in methods:
            each = row[method]
            text = f"{brief(each.step_time)} {percent(each.efficiency):>5}"
            cells.append(f"[bold green]{text}[/]" if method == best else text)
        table.add_row(f"{size:,}", *cells)
    table.caption = (
        "Efficiency: samples per second over what the machines would do with nothing to exchange. "
        "Samples are not accuracy: all but ssgd change the updates."
    )
    table.caption_justify = "left"
    return table
