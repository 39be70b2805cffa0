"""The everyday verbs: compare, report, methods; `plan` and `run` have files of their own."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from click.core import ParameterSource
from rich.console import Console
from rich.table import Table

from thinwire.errors import InputError

if TYPE_CHECKING:
    from thinwire.run.compare import Outcome

__all__ = ["ConfigOption", "DataOption", "SetOption", "TaskOption", "add_to", "given_settings"]

PANEL = "Everyday"

ClusterOption = Annotated[
    str,
    typer.Option(
        "--cluster",
        "-c",
        help="A preset (office, gigabit, two-sites, one-straggler, cities14) or a TOML file.",
    ),
]
SetOption = Annotated[
    list[str],
    typer.Option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="Change a setting: train.lr=0.1, gtopk.density=0.001, method.density=0.01 (all that "
        "have it), ssgd.train.lr=0.2, wire.link_model=queue. May be repeated.",
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="A TOML file with the same keys as --set; --set wins."),
]
TaskOption = Annotated[
    str,
    typer.Option(
        help="What is learned: digits, fashion-mnist, cifar10, cifar10-resnet20, or module:Class."
    ),
]
DataOption = Annotated[
    str | None, typer.Option(help="Where the task's data are (or THINWIRE_DATA).")
]


def add_to(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    from thinwire.cli.plan import plan
    from thinwire.cli.running import RunCommand, run  # shares the options above

    for verb in (compare, plan):
        app.command(rich_help_panel=PANEL)(verb)
    app.command(cls=RunCommand, rich_help_panel=PANEL)(run)
    for verb in (report, methods):
        app.command(rich_help_panel=PANEL)(verb)


def compare(
    context: typer.Context,
    cluster: ClusterOption = "office",
    task: TaskOption = "digits",
    data: DataOption = None,
    methods: Annotated[
        str,
        typer.Option(
            help="Comma-separated, each with settings after colons: "
            "ssgd,ssgd:accumulate=8,gtopk:density=0.001,my_module:MyMethod."
        ),
    ] = "",
    seeds: Annotated[
        str, typer.Option(help="How many seeds, or which ones: 3 is 0,1,2; 7,8,9 are those.")
    ] = "3",
    target: Annotated[
        str,
        typer.Option(
            help="Accuracy to which time is measured: 0.95, or 97% of the best final accuracy of "
            "one machine. Default: the task's."
        ),
    ] = "",
    set_: SetOption = [],  # noqa: B006 - typer reads the default
    config: ConfigOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder. Default: runs/compare-DATE-TIME.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Finish the comparison in this run folder instead; only --processes goes with it."
        ),
    ] = None,
    processes: Annotated[
        int, typer.Option(min=0, help="Runs at a time. Default: one per core.")
    ] = 0,
) -> int:
    """Train by several methods on a virtual cluster; say which suits it.

    Gradients are computed for real, time comes from the cluster's description. Prints a verdict and
    a table, and writes a report that opens offline.

        thinwire compare

        thinwire compare --cluster two-sites --methods alone,ssgd,localsgd:every=32

        thinwire compare --cluster mine.toml --task cifar10 --data ~/cifar --seeds 1
    """
    from thinwire.run.forks import start_server

    start_server()  # imports torch for its processes while this one does
    from thinwire.run import compare as comparing
    from thinwire.run.folders import refuse_used

    console = Console()
    if resume is not None:
        _refuse_beside_resume(context)
        outcome = _interruptible(lambda: comparing.resume(resume, console, processes))
    else:
        refuse_used(out, f", or --resume {out}")
        request = comparing.Comparing(
            cluster=cluster,
            task=task,
            data=data,
            methods=_methods(methods) or comparing.DEFAULT_METHODS,
            seeds=_seeds(seeds),
            target=target or None,
            given=given_settings(set_, config),
            processes=processes,
        )
        outcome = _interruptible(lambda: comparing.compare(request, out, console))
    for failure in outcome.failures:
        print(f"failed: {failure.run}: {failure.reason}", file=sys.stderr)
    return 1 if outcome.failures else 0


def _interruptible(action: Callable[[], Outcome]) -> Outcome:
    from thinwire.run.compare import Stopped

    try:
        return action()
    except Stopped as stopped:
        folder = shlex.quote(str(stopped.folder))
        print(
            f"\nstopped; what is finished is kept. Go on with:  thinwire compare --resume {folder}"
            f"\nSee what there is with:  thinwire report {folder}",
            file=sys.stderr,
        )
        raise


def _refuse_beside_resume(context: typer.Context) -> None:
    for param in context.command.params:
        source = context.get_parameter_source(param.name or "")
        if source is ParameterSource.COMMANDLINE and param.name not in ("resume", "processes"):
            raise InputError(
                f"{param.opts[0]} has no effect with --resume: a comparison is finished as it was "
                "begun; start a new one for other settings"
            )


def _methods(text: str) -> tuple[str, ...]:
    methods = tuple(m.strip() for m in text.split(",") if m.strip())
    if text and not methods:
        raise InputError(f"--methods {text!r}: no method is named; as in ssgd,gtopk")
    return methods


def given_settings(set_: list[str], config: Path | None) -> dict[str, Any]:
    """What `--set` and `--config` say, flat."""
    from thinwire.run.settings import parse_assignments, read_settings

    given = {} if config is None else read_settings(config)
    given.update(parse_assignments(set_))
    return given


def _seeds(text: str) -> tuple[int, ...]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--seeds {text!r}: a count, as 3, or seeds, as 7,8,9") from None
    if len(numbers) == 1 and "," not in text:
        if numbers[0] < 1:
            raise InputError(f"--seeds {text}: at least 1 is needed")
        return tuple(range(numbers[0]))
    return tuple(numbers)


def report(
    folder: Annotated[Path, typer.Argument(help="A run folder.")],
    target: Annotated[
        str, typer.Option(help="Accuracy to which time is measured: 0.95, or 97%.")
    ] = "",
    phases: Annotated[
        bool | None,
        typer.Option(help="Print where a step's time went, too. Default: of real runs only."),
    ] = None,
) -> int:
    """Make the table and the HTML report of a run folder again.

    thinwire report runs/compare-20260101-120000 --target 0.9
    """
    from thinwire.report import render

    render(folder, target=target or None, phases=phases)
    return 0


def methods() -> int:
    """List the training methods: what they send, how stale they are, where they come from."""
    from thinwire.methods import METHODS

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("method", "sent per worker and step", "staleness", "kind", "paper"):
        table.add_column(title, overflow="fold")
    for name, cls in METHODS.items():
        paper = (
            f"{cls.paper.authors.split(',')[0].split(' and ')[0]} {cls.paper.year}"
            if cls.paper
            else ""
        )
        table.add_row(name, cls.traits.traffic, cls.traits.staleness, cls.traits.kind, paper)
    console = Console()
    console.print(table)
    console.print(
        "\nBytes; P workers, m parameters, k kept entries. Reference: thinwire cite NAME",
        style="dim",
    )
    return 0
