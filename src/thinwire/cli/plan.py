"""The verb `plan`: what a run will cost, before it runs."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from thinwire.cli._output import check_file, write_file
from thinwire.errors import InputError

if TYPE_CHECKING:
    from thinwire.cli.piloting import Course
    from thinwire.cli.planning import Asked, Question
    from thinwire.planner.pilot import Pilot
    from thinwire.planner.refine import Refined
    from thinwire.planner.steps import StepTimeline

__all__ = ["plan"]


def plan(
    where: Annotated[
        str,
        typer.Argument(metavar="[CLUSTER]", help="A preset or a TOML file; the same as --cluster."),
    ] = "",
    model: Annotated[
        str, typer.Option(help="A known model (resnet50, bert-base, ...); or use --params.")
    ] = "",
    batch: Annotated[
        int | None,
        typer.Option(
            help="Samples per worker and step. Default: 32, of a task's own model as tuned."
        ),
    ] = None,
    cluster: Annotated[
        str, typer.Option("--cluster", "-c", help="A preset or a TOML file; or use --nodes.")
    ] = "",
    nodes: Annotated[int, typer.Option(help="Number of equal machines on one switch.")] = 0,
    link: Annotated[
        str,
        typer.Option(help="Each machine's link, a rate or a name: 1gbit, 100 Mbit/s, 10gbe-tcp."),
    ] = "",
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
        str,
        typer.Option(help="What simulated methods are ranked by: time, energy, bytes or price."),
    ] = "time",
    samples: Annotated[
        str,
        typer.Option(
            help="What the training sees, all epochs together: 115M. Shows what it takes."
        ),
    ] = "",
    deadline: Annotated[
        str, typer.Option(help="For these samples: 3 h. What misses it is ranked behind.")
    ] = "",
    layer_times: Annotated[
        str, typer.Option(help="Measured layer times of the model, as thinwire probe writes them.")
    ] = "",
    write: Annotated[
        Path | None,
        typer.Option(help="Write the choice as a settings file for --config of run and compare."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg",
            help="Draw who computes, sends and waits in a few steps of the best three methods.",
        ),
    ] = None,
    pilot: Annotated[
        bool,
        typer.Option(
            "--pilot",
            help="Train the best few for a short while, too, and rank them by loss per second.",
        ),
    ] = False,
    task: Annotated[
        str,
        typer.Option(
            help="What the pilot learns, as compare takes it; without --model and --params, whose "
            "model is planned for. Default of a pilot: digits."
        ),
    ] = "",
    data: Annotated[
        str | None, typer.Option(help="Where the task's data are (or THINWIRE_DATA).")
    ] = None,
    pilot_steps: Annotated[
        int | None,
        typer.Option(min=1, help="Of each method. Default: about half a minute in all."),
    ] = None,
    pilot_best: Annotated[
        int | None,
        typer.Option(
            min=1, help="Lossy methods, beside one machine and the best dense one. Default: 4."
        ),
    ] = None,
    pilot_seed: Annotated[int | None, typer.Option(min=0, help="Default: 0.")] = None,
    set_: Annotated[
        list[str],
        typer.Option(
            "--set",
            "-s",
            metavar="KEY=VALUE",
            help="A training setting of the pilot: train.lr=0.1, gtopk.train.lr=0.05.",
        ),
    ] = [],  # noqa: B006 - typer reads the default
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> int:
    """Predict step time, bytes and speed-up of each method: closed forms first, then a simulation.

    thinwire plan office --model resnet50 --batch 32 --write plan.toml

    thinwire plan --model resnet50 --batch 32 --nodes 4 --link 1gbit --no-simulate

    thinwire plan --params 25.6M --step-time 0.2s --nodes 8 --link "100 Mbit/s"

    thinwire plan rented.toml --model bert-base --target price --samples 10M --deadline "3 h"

    thinwire plan two-sites --model bert-base --batch 8 --plot steps.svg

    thinwire plan office --task digits --pilot

    thinwire plan --model resnet50 --link 1gbit --scale 2,8,32,128,1000,10000
    """
    from thinwire.cli.planning import SIMULATED_UP_TO, Question, answer

    if where and cluster:
        raise InputError(f"--cluster {cluster} has no effect: the cluster is {where}")
    options = {"--pilot-steps": pilot_steps, "--pilot-best": pilot_best,
               "--pilot-seed": pilot_seed, "--set": set_}  # fmt: skip
    task = _task_of(task, data, bool(model or params), pilot, options)
    question = Question(
        model=model,
        params=params,
        batch=_batch(batch, "" if model or params else task),
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
        target=target,
        samples=samples,
        deadline=deadline,
        task=task,
        data=data,
    )
    extras = {"--target": target if target != "time" else "", "--samples": samples,
              "--deadline": deadline, "--layer-times": layer_times, "--write": write,
              "--pilot": pilot, "--simulate": simulate}  # fmt: skip
    if sizes:
        _refuse_extras({**extras, "--plot": plot}, "with --scale")
        return _scale(question, sizes, as_json)
    if simulate is False:
        _refuse_extras(extras, "with --no-simulate")
    check_file("--plot", plot, ".svg")
    result, asked = answer(question)
    course = None
    if pilot:
        from thinwire.cli.piloting import Course

        course = Course.of(asked, steps=pilot_steps, best=pilot_best, seed=pilot_seed or 0,
                           set_=set_, batch=batch)  # fmt: skip
    watched = not as_json and sys.stdout.isatty()
    wanted = any(extras.values()) or (watched and asked.cluster.size <= SIMULATED_UP_TO)
    if not as_json:
        from thinwire.planner import plan_report

        Console().print(plan_report(result))
    told = _Told()
    if wanted and simulate is not False:
        told = _refined(question, asked, course, write, plot, as_json)
    elif plot is not None:
        from thinwire.planner.steps import closed_timelines

        _draw(plot, closed_timelines(result, asked.cluster), asked)
    if as_json:
        print(json.dumps({**result.to_dict(), **told.to_dict()}, indent=2))
    return 130 if told.stopped else 0


@dataclass(frozen=True, kw_only=True)
class _Told:
    """What follows the closed forms; whether the user stopped it."""

    refined: Refined | None = None
    pilot: Pilot | None = None
    stopped: bool = False

    def to_dict(self) -> dict[str, Any]:
        """For JSON; a pilot only where one was asked for."""
        told = {"simulation": None if self.refined is None else self.refined.to_dict()}
        return told if self.pilot is None else {**told, "pilot": self.pilot.to_dict()}


def _task_of(
    task: str, data: str | None, modelled: bool, pilot: bool, options: dict[str, Any]
) -> str:
    """The task's name; digits for a pilot that names none. What has no effect is refused."""
    if pilot:
        from thinwire.run.forks import start_server

        start_server()  # imports torch for its processes while this one plans
        return task or "digits"
    _refuse_extras(options, "without --pilot")
    if task and modelled:
        raise InputError(f"--task {task} has no effect beside --model or --params without --pilot")
    if data is not None and not task:
        raise InputError(f"--data {data} has no effect without --task or --pilot")
    return task


def _batch(given: int | None, task: str) -> int:
    """Samples per worker where none are given; `task` is the one whose model is planned for."""
    if given is not None:
        return given
    if not task:
        return 32
    from thinwire.run.pilot import own_batch

    return own_batch(task)


def _refuse_extras(extras: dict[str, Any], where: str) -> None:
    for name, value in extras.items():
        if value or (value == 0 and value is not False):  # 0 is a seed
            raise InputError(f"{name} has no effect {where}")


def _refined(
    question: Question,
    asked: Asked,
    course: Course | None,
    write: Path | None,
    plot: Path | None,
    as_json: bool,
) -> _Told:
    """Simulate, print unless JSON is asked for, train, draw the best, and write the choice."""
    from thinwire.cli.planning import refined
    from thinwire.planner.known import KNOWN_ERROR
    from thinwire.planner.refined_table import refined_report

    console = Console()
    with _simulating() as tell:
        found, scene = refined(question, asked, tell)
    if not as_json:
        console.print()
        console.print(refined_report(found, KNOWN_ERROR))
    piloted, stopped = None, False
    if course is not None:
        piloted, stopped = course.run(question, asked, found)
        if not as_json:
            from thinwire.planner.pilot_table import pilot_report

            console.print()
            console.print(pilot_report(piloted))
    if plot is not None:
        from thinwire.planner.traced import traced_timelines

        with _simulating() as tell:
            timelines = traced_timelines(found, scene, tell)
        _draw(plot, timelines, asked, piloted)
    if write is not None:
        _write(found, question, write, None if as_json else console)
    return _Told(refined=found, pilot=piloted, stopped=stopped)


@contextlib.contextmanager
def _simulating() -> Iterator[Callable[[str, int, int], None]]:
    """A line on the terminal that says what is being simulated."""
    with Console(stderr=True).status("simulating ...") as status:

        def tell(label: str, done: int, of: int) -> None:
            status.update(f"simulating {done + 1} of {of}: {label}")

        yield tell


def _write(found: Refined, question: Question, write: Path, console: Console | None) -> None:
    from thinwire.planner.chosen import command_of, write_config

    write_config(found, question.batch, question.cluster, write)
    if console is not None:
        command = command_of(found, question.cluster, str(write))
        console.print(f"\nRun it: {command}", highlight=False, markup=False, soft_wrap=True)


def _draw(
    plot: Path, timelines: Sequence[StepTimeline], asked: Asked, pilot: Pilot | None = None
) -> None:
    """The timelines into a file."""
    from thinwire.cli.plan_picture import timelines_svg

    job = asked.workload
    title = f"{job.name}, batch {job.batch} per worker, on {asked.cluster.name}"
    write_file("--plot", plot, timelines_svg(title, timelines, pilot))


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
