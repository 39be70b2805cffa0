"""The verb reproduce: published results beside ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from thinwire.cli._output import check_file, write_file
from thinwire.cli.research import PANEL
from thinwire.errors import InputError

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command(rich_help_panel=PANEL)(reproduce)


def reproduce(
    name: Annotated[
        str,
        typer.Argument(metavar="[NAME]", help="As listed by --list, or module:Class."),
    ] = "",
    list_: Annotated[bool, typer.Option("--list", help="Print what can be reproduced.")] = False,
    json_: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write everything there too.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw it: FILE.svg, or FILE.html with the tables."),
    ] = None,
) -> int:
    """Put a publication's figures beside ours, and say whether its claims hold.

        thinwire reproduce --list

        thinwire reproduce gtopk --plot gtopk.html

    Exit codes: 0 every judged line holds, 3 one does not, 2 bad input.
    """
    from rich.console import Console

    if list_ and (name or json_ is not None or plot is not None):
        raise InputError("--list stands alone: it prints the names of what can be reproduced")
    from thinwire import reproduce as reproducing

    console = Console()
    if list_:
        rows = [(key, made().title) for key, made in reproducing.REPRODUCTIONS.items()]
        console.print(reproducing.list_table(rows))
        return 0
    if not name:
        names = ", ".join(reproducing.REPRODUCTIONS)
        raise InputError(f"what is to be reproduced? Give one of: {names}")
    check_file("--json", json_)
    check_file("--plot", plot, ".svg", ".html")
    reproduction = reproducing.load_reproduction(name)
    with Console(stderr=True).status(f"reproducing {name}: under a minute"):
        result = reproduction.run()
    if json_ is not None:
        write_file(
            "--json", json_, json.dumps(result.to_dict(), indent=2, ensure_ascii=False) + "\n"
        )
    if plot is not None:
        draw = reproducing.picture_svg if plot.suffix == ".svg" else reproducing.picture_page
        write_file("--plot", plot, draw(result))
    console.print(reproducing.report(result))
    return result.exit_code
