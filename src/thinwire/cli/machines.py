"""The verbs for machines: doctor, probe, launch."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import click
import typer
from typer.core import TyperCommand

from thinwire.cli.everyday import PANEL, DataOption, TaskOption
from thinwire.errors import InputError

__all__ = ["add_to"]

ProcessesOption = Annotated[
    int, typer.Option(min=0, max=64, help="Start this many processes on this machine.")
]
InterfaceOption = Annotated[
    str, typer.Option(help="Network interface or address to use (or THINWIRE_INTERFACE).")
]
DeadlineOption = Annotated[
    float, typer.Option(min=1.0, help="Seconds for which absent ranks are waited for.")
]


def add_to(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    app.command(rich_help_panel=PANEL)(doctor)
    app.command(rich_help_panel=PANEL)(probe)
    app.command(cls=_LaunchCommand, rich_help_panel=PANEL)(launch)


def doctor(
    task: TaskOption = "digits",
    model: Annotated[
        str,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Time a model of your own instead of a task: the function returns the model and a "
            "function without arguments that does one training step.",
        ),
    ] = "",
    data: DataOption = None,
    batch: Annotated[int, typer.Option(min=1, help="Samples of a timed step.")] = 32,
    processes: ProcessesOption = 0,
    interface: InterfaceOption = "",
    deadline: DeadlineOption = 60.0,
    json_: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write everything there too.")
    ] = None,
) -> int:
    """Examine this machine, or all machines of a run, before the run; say what to mend.

        thinwire doctor

        thinwire doctor --processes 4

    On several hosts start it on each, as the run will be started:

        torchrun --nnodes 2 --node-rank 0 --master-addr 192.168.1.10 -m thinwire doctor

    Exit codes: 0 nothing must be fixed, 1 something must, 2 bad input.
    """
    from thinwire.run import doctor as doctors
    from thinwire.run.doctor.render import check_json

    if model and task != "digits":
        raise InputError("--task has no effect with --model, which is timed instead")
    if json_ is not None:
        check_json(json_)
    if processes:
        if "RANK" in os.environ:
            raise InputError("--processes has no effect in a process that torchrun has started")
        if processes > 1:
            return doctors.start_processes(processes, _without_processes(sys.argv[1:]))
    examination = doctors.examine(
        doctors.Request(
            task=task,
            model=model,
            data=data,
            batch=batch,
            interface=interface or None,
            deadline=deadline,
        )
    )
    code = 0
    if examination is not None:
        doctors.show(examination)
        if json_ is not None:
            doctors.write_json(examination, json_)
        code = examination.exit_code
    if doctors.stuck():  # something that hangs would keep the process from ending
        sys.stdout.flush()
        os._exit(code)
    return code


def probe(
    out: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="FILE", help="Where the cluster is written."),
    ] = Path("cluster.toml"),
    model: Annotated[
        str,
        typer.Option(
            help="Whose training step is timed: a name that `thinwire model` knows (resnet50, "
            "bert-base, ...), or module:function that returns a torch module, or a module and its "
            "inputs."
        ),
    ] = "resnet20",
    batch: Annotated[int, typer.Option(min=1, help="Samples of a step, on each machine.")] = 32,
    threads: Annotated[
        int,
        typer.Option(min=0, help="Of each process; 0 shares a machine's cores, as `run` does."),
    ] = 0,
    processes: ProcessesOption = 0,
    seconds: Annotated[
        float,
        typer.Option(
            min=0.1, max=60.0, help="Of each stream between two machines, in each direction."
        ),
    ] = 1.0,
    interface: InterfaceOption = "",
    deadline: DeadlineOption = 60.0,
    name: Annotated[str, typer.Option(help="Of the cluster.")] = "measured",
    layers: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where layer times are written; default: FILE.layers.toml."
        ),
    ] = None,
    json_: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all figures there too.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over files that exist.")] = False,
) -> int:
    """Measure this machine, or all machines of a run, and write them down as a cluster.

    The machines should do nothing else meanwhile. One alone has no wire to measure:

        thinwire probe -o mine.toml --model resnet50 --batch 16

        thinwire probe -o two.toml --processes 2

    On several hosts start it on each, as a run is started; rank 0 writes the files:

        torchrun --nnodes 2 --node-rank 0 --master-addr 192.168.1.10 -m thinwire probe -o lab.toml

        thinwire launch --ssh hosts.toml -m thinwire probe -o lab.toml

    Then ask what would pay on them:

        thinwire plan --cluster lab.toml --model resnet50

        thinwire compare --cluster lab.toml

    It takes about 20 seconds, and 5 more for each pair. Each value in the file says how it was
    measured, how it spread, and what could not be seen. What was measured stays in the file if a
    host dies or at Ctrl-C.

    Exit codes: 0 all was measured, 1 something could not be (the rest is written), 2 bad input.
    """
    from thinwire.run import doctor as doctors
    from thinwire.run import probe as probes
    from thinwire.run.probe.wires import WireLimits

    if processes:
        if "RANK" in os.environ:
            raise InputError("--processes has no effect in a process that torchrun has started")
        if processes > 1:
            words = _without_processes(sys.argv[1:])
            return doctors.start_processes(processes, words, farewell=20.0)
    files = probes.Files(
        cluster=out, layers=layers or probes.layers_beside(out), json=json_, name=name
    )
    request = probes.Request(
        model=model,
        batch=batch,
        threads=threads,
        interface=interface or None,
        deadline=deadline,
        wire=WireLimits(stream=seconds),
        crowd=max(3.0, 2 * seconds),
        refusal=probes.refusal_of(files, force),
    )
    interrupted = False
    try:
        code = probes.probe(request, files)
    except KeyboardInterrupt:
        interrupted, code = True, 130
        print("interrupted", file=sys.stderr, flush=True)
    # A step in a thread cannot be interrupted, and torch aborts when Python ends around it.
    if interrupted or doctors.stuck():  # something that hangs would keep the process from ending
        sys.stdout.flush()
        os._exit(code)
    return code


def _without_processes(arguments: list[str]) -> list[str]:
    kept, skip = [], False
    for argument in arguments:
        if not skip and argument != "--processes" and not argument.startswith("--processes="):
            kept.append(argument)
        skip = not skip and argument == "--processes"
    return kept


class _LaunchCommand(TyperCommand):
    """`launch`: what follows the file of hosts belongs to the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See click."""
        ctx.allow_interspersed_args = False
        return super().parse_args(ctx, args)


def launch(
    hosts: Annotated[Path, typer.Argument(metavar="HOSTS.TOML", help="The machines.")],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="SCRIPT [ARGS]...", help="A script, or -m and a module."),
    ] = None,
    ssh: Annotated[
        bool, typer.Option("--ssh/--print", help="Start it over ssh, or print what to type.")
    ] = False,
) -> int:
    """Start a script on several machines: print the torchrun line of each, or start them by ssh.

        thinwire launch hosts.toml train.py --epochs 5

        thinwire launch --ssh hosts.toml -m thinwire doctor

    Over ssh the output of all is shown, labelled by host; when one fails, or at Ctrl-C, all are
    ended. The exit code is that of the first that failed. The script must lie on every host.
    """
    from thinwire.run.launch import launch_lines, load_hosts, run_over_ssh

    words = command or []
    if words and words[0] in ("--ssh", "--print"):
        raise InputError(f"{words[0]} must come before {hosts}: what follows is the script's")
    if not words or (words[0].startswith("-") and (words[0] != "-m" or len(words) < 2)):
        raise click.UsageError("Missing argument 'SCRIPT': as in hosts.toml train.py, or -m module")
    found = load_hosts(hosts)
    if ssh:
        return run_over_ssh(found, words)
    for machine, line in zip(found.machines, launch_lines(found, words), strict=True):
        print(f"# on {machine.name} ({machine.address})\n{line}")
    return 0
