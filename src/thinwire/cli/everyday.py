"""The everyday verbs: compare, plan, report, methods; `run` is in running.py."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from click.core import ParameterSource
from rich.console import Console
from rich.table import Table

from thinwire.errors import InputError

if TYPE_CHECKING:
    from thinwire.cli.planning import Asked, Question
    from thinwire.planner.refine import Refined
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


def plan(
    where: Annotated[
        str,
        typer.Argument(metavar="[CLUSTER]", help="A preset or a TOML file; the same as --cluster."),
    ] = "",
    model: Annotated[
        str, typer.Option(help="A known model (resnet50, bert-base, ...); or use --params.")
    ] = "",
    batch: Annotated[int, typer.Option(help="Samples per worker and step.")] = 32,
    cluster: Annotated[
        str, typer.Option("--cluster", "-c", help="A preset or a TOML file; or use --nodes.")
    ] = "",
    nodes: Annotated[int, typer.Option(help="Number of equal machines on one switch.")] = 0,
    link: Annotated[str, typer.Option(help="Rate of each machine's link: 1gbit, 100 Mbit/s.")] = "",
    latency: Annotated[str, typer.Option(help="One way: 0.1 ms.")] = "",
    params: Annotated[str, typer.Option(help="Parameters, instead of --model: 25.6M.")] = "",
    step_time: Annotated[
        str, typer.Option(help="Measured compute time of one step on the fastest machine: 0.2s.")
    ] = "",
    device_flops: Annotated[str, typer.Option(help="Effective rate of a device: 5 TFLOP/s.")] = "",
    density: Annotated[float, typer.Option(help="Of topk and gtopk.")] = 0.001,
    accumulate: Annotated[int, typer.Option(help="Of dense with accumulation.")] = 8,
    every: Annotated[int, typer.Option(help="Steps between averages of localsgd.")] = 8,
    sizes: Annotated[
        str,
        typer.Option(
            "--scale",
            help="Simulate 100 steps at these numbers of workers instead, up to 10,000 and more; "
            "a cluster is repeated, jitter counts.",
        ),
    ] = "",
    simulate: Annotated[
        bool | None,
        typer.Option(
            help="Refine the closed forms by the methods' own programs on the virtual cluster, "
            "within a minute. Default: on a terminal, up to 16 nodes.",
        ),
    ] = None,
    target: Annotated[
        str, typer.Option(help="What simulated methods are ranked by: time, energy or bytes.")
    ] = "time",
    layer_times: Annotated[
        str, typer.Option(help="Measured layer times of the model, as thinwire probe writes them.")
    ] = "",
    write: Annotated[
        Path | None,
        typer.Option(help="Write the choice as a settings file for --config of run and compare."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> int:
    """Predict step time, bytes and speed-up of each method: closed forms first, then a simulation.

    thinwire plan office --model resnet50 --batch 32 --write plan.toml

    thinwire plan --model resnet50 --batch 32 --nodes 4 --link 1gbit --no-simulate

    thinwire plan --params 25.6M --step-time 0.2s --nodes 8 --link "100 Mbit/s"

    thinwire plan --model bert-base --batch 8 --cluster two-sites

    thinwire plan --model resnet50 --link 1gbit --scale 2,8,32,128,1000,10000
    """
    from thinwire.cli.planning import SIMULATED_UP_TO, Question, answer

    if where and cluster:
        raise InputError(f"--cluster {cluster} has no effect: the cluster is {where}")
    question = Question(
        model=model,
        params=params,
        batch=batch,
        step_time=step_time,
        cluster=where or cluster,
        nodes=nodes,
        link=link,
        latency=latency,
        device_flops=device_flops,
        density=density,
        accumulate=accumulate,
        every=every,
        layer_times=layer_times,
    )
    extras = {"--target": target if target != "time" else "", "--layer-times": layer_times,
              "--write": write, "--simulate": simulate}  # fmt: skip
    if sizes:
        _refuse_extras(extras, "with --scale")
        return _scale(question, sizes, as_json)
    if simulate is False:
        _refuse_extras(extras, "with --no-simulate")
    result, asked = answer(question)
    watched = not as_json and sys.stdout.isatty()
    wanted = any(extras.values()) or (watched and asked.cluster.size <= SIMULATED_UP_TO)
    if not as_json:
        from thinwire.planner import plan_report

        Console().print(plan_report(result))
    refined = None
    if wanted and simulate is not False:
        refined = _refined(question, asked, target, write, as_json)
    if as_json:
        told = None if refined is None else refined.to_dict()
        print(json.dumps({**result.to_dict(), "simulation": told}, indent=2))
    return 0


def _refuse_extras(extras: dict[str, Any], where: str) -> None:
    for name, value in extras.items():
        if value:
            raise InputError(f"{name} has no effect {where}")


def _refined(
    question: Question, asked: Asked, target: str, write: Path | None, as_json: bool
) -> Refined:
    """Simulate, print unless JSON is asked for, and write the choice."""
    from thinwire.cli.planning import refined
    from thinwire.planner.chosen import command_of, write_config
    from thinwire.planner.known import KNOWN_ERROR
    from thinwire.planner.refined_table import refined_report

    with Console(stderr=True).status("simulating ...") as status:
        found = refined(
            question,
            asked,
            target,
            lambda label, done, of: status.update(f"simulating {done + 1} of {of}: {label}"),
        )
    console = Console()
    if not as_json:
        console.print()
        console.print(refined_report(found, KNOWN_ERROR))
    if write is not None:
        write_config(found, question.batch, question.cluster, write)
        if not as_json:
            command = command_of(found, question.cluster, str(write))
            console.print(f"\nRun it: {command}", highlight=False, markup=False, soft_wrap=True)
    return found


def _scale(question: Question, sizes: str, as_json: bool) -> int:
    from thinwire.cli.planning import scaled
    from thinwire.planner import scale_table

    title, assumptions, found = scaled(question, sizes)
    errors = Console(stderr=True)
    results = []
    with errors.status("simulating ...") as status:
        for each in found:
            results.append(each)
            status.update(f"simulating ... {each.method} on {each.size:,} workers done")
    if as_json:
        print(json.dumps({"schema": 1, "scaled": [asdict(each) for each in results]}, indent=2))
        return 0
    console = Console()
    console.print(scale_table(results, title))
    for sentence in assumptions:
        console.print(f"Assumed: {sentence}", style="dim", highlight=False)
    return 0


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
