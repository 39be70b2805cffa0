"""The researcher's verbs: cite."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["add_to"]

PANEL = "Research"


def add_to(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    app.command(rich_help_panel=PANEL)(cite)


def cite(
    name: Annotated[str, typer.Argument(help="A method, or module:Class.")],
) -> int:
    """Print where a method was published.

    thinwire cite gtopk
    """
    from thinwire.methods import load_method

    paper = load_method(name).paper
    print(f"{name}: no publication is stated" if paper is None else paper.cite())
    return 0
