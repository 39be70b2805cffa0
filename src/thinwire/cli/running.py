"""The verb `run`: a task on real processes, or a script of one's own on the virtual cluster."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import click
import typer
from click.core import ParameterSource
from typer.core import TyperCommand

from thinwire.cli.everyday import (
    ConfigOption,
    DataOption,
    SetOption,
    TaskOption,
    given_settings,
)
from thinwire.errors import InputError

__all__ = ["RunCommand", "run"]


def run(
    context: typer.Context,
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CLUSTER | SCRIPT [ARGS]...",
            help="For a task: a preset or TOML file that describes the hosts. After --cluster: a "
            "script and its own arguments.",
        ),
    ] = None,
    cluster: Annotated[
        str,
        typer.Option(
            "--cluster",
            "-c",
            help="Run a script of your own on this virtual cluster: a preset or TOML file.",
        ),
    ] = "",
    workers: Annotated[
        int,
        typer.Option(min=0, help="Script: use the cluster's first nodes only. Default: all."),
    ] = 0,
    link_model: Annotated[
        str, typer.Option(help="Script: fair (streams share links) or queue.")
    ] = "fair",
    deadline: Annotated[
        float,
        typer.Option(
            min=1.0,
            help="Script: real seconds for which the others wait for a rank's own code.",
        ),
    ] = 1800.0,
    method: Annotated[
        str, typer.Option(help="With settings after colons: gtopk:density=0.001.")
    ] = "ssgd",
    task: TaskOption = "digits",
    data: DataOption = None,
    processes: Annotated[
        int,
        typer.Option(
            min=0,
            help="Start this many processes on this machine; without it, torchrun has.",
        ),
    ] = 0,
    seed: Annotated[
        int, typer.Option(min=0, help="Of everything random; script: of the cluster's jitter.")
    ] = 0,
    set_: SetOption = [],  # noqa: B006 - typer reads the default
    config: ConfigOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder of rank 0. Default: runs/run-DATE-TIME.")
    ] = None,
    interface: Annotated[
        str, typer.Option(help="Network interface or address to use (or THINWIRE_INTERFACE).")
    ] = "",
    predict: Annotated[
        bool,
        typer.Option(
            "--predict",
            help="Predict the step first, from the cluster's description; the record and the "
            "report show it beside what was measured.",
        ),
    ] = False,
) -> int:
    """Train for real: every worker a process, the same text of the method. Or run a training
    script of your own on a virtual cluster.

        thinwire run --processes 4 office --method gtopk

        torchrun --nproc-per-node 4 -m thinwire run office --method gtopk

    On several hosts, start the torchrun line on each with --nnodes, --node-rank, --master-addr.

        thinwire run --cluster office train.py --epochs 5

    The script has tw.distribute() in its loop; each worker is a process of its own, time is
    virtual. Options after the script are the script's.
    """
    if cluster:
        _refuse_others(context, _SCRIPT_OPTIONS, "with --cluster, which runs a script")
        return _run_script(what or [], cluster, workers, link_model, deadline, seed, out)
    _refuse_others(context, _TASK_OPTIONS, "without --cluster, which would run a script")
    from thinwire.run.real import Running, run_here, start_processes

    request = Running(
        cluster=_one_cluster(what or []),
        method=method,
        task=task,
        data=data,
        seed=seed,
        given=given_settings(set_, config),
        out=out,
        interface=interface or None,
        predict=predict,
    )
    if processes:
        return start_processes(processes, request, sys.argv[1:])
    return run_here(request)


_SCRIPT_OPTIONS = ("what", "cluster", "workers", "link_model", "deadline", "seed", "out")
_TASK_OPTIONS = ("what", "method", "task", "data", "processes", "seed", "set_", "config", "out",
                 "interface", "predict")  # fmt: skip


class RunCommand(TyperCommand):
    """`run`: what follows a script on the command line belongs to the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See click."""
        given = any(a in ("--cluster", "-c") or a.startswith("--cluster=") for a in args)
        ctx.allow_interspersed_args = not given
        return super().parse_args(ctx, args)


def _refuse_others(context: typer.Context, allowed: tuple[str, ...], where: str) -> None:
    for param in context.command.params:
        source = context.get_parameter_source(param.name or "")
        if source is ParameterSource.COMMANDLINE and param.name not in allowed:
            raise InputError(f"{param.opts[0]} has no effect {where}")


def _one_cluster(what: list[str]) -> str:
    if not what:
        raise click.UsageError("Missing argument 'CLUSTER'; or a script, after --cluster")
    if len(what) > 1:
        raise click.UsageError(f"Got unexpected extra argument ({' '.join(what[1:])})")
    if what[0].endswith(".py"):
        raise InputError(
            f"{what[0]} is a script: thinwire run --cluster office {what[0]} runs it on a virtual "
            f"cluster, torchrun --nproc-per-node 4 {what[0]} for real"
        )
    return what[0]


def _run_script(
    what: list[str],
    cluster: str,
    workers: int,
    link_model: str,
    deadline: float,
    seed: int,
    out: Path | None,
) -> int:
    if not what:
        raise click.UsageError("Missing argument 'SCRIPT': as in --cluster office train.py")
    # Read when the numerical libraries are loaded, and copied into the ranks' processes.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from thinwire.run.script import Scripting, run_script

    script, *arguments = what
    run_script(
        Scripting(
            cluster=cluster,
            script=Path(script),
            arguments=tuple(arguments),
            workers=workers,
            link_model=link_model,
            seed=seed,
            deadline=deadline,
            out=out,
        )
    )
    return 0
