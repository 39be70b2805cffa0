"""The verbs, and what a failure looks like: one message, one exit code, no traceback.

Exit codes: 0 done, 1 a run failed, 2 bad input, 3 a published claim does not hold, 130
interrupted.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import click
import typer

from thinwire._version import __version__
from thinwire.cli import describe, everyday, machines, reproducing, research
from thinwire.errors import ThinwireError

__all__ = ["app", "main"]

app = typer.Typer(
    name="thinwire",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Train over slow links and uneven machines: predict what a method will cost on your "
    "cluster, compare methods on a virtual copy of it, then run the same text for real.",
    epilog="Start with `thinwire compare`: it needs no network, no GPU and no data.",
)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"thinwire {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None: ...


everyday.add_to(app)
describe.add_to(app)
machines.add_to(app)
research.add_to(app)
reproducing.add_to(app)


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    sys.exit(_code())


def _code() -> int:
    sys.path.insert(0, os.getcwd())  # for module:Class, as `python -m` would have it
    try:
        result = app(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return 2
    except (KeyboardInterrupt, click.Abort):
        print("interrupted", file=sys.stderr)
        return 130
    except ThinwireError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return result if isinstance(result, int) else 0
