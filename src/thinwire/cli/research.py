"""The researcher's verbs: check, cite."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["add_to"]

PANEL = "Research"


def add_to(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    for verb in (check, cite):
        app.command(rich_help_panel=PANEL)(verb)


def check(
    method: Annotated[
        str, typer.Argument(help="A method, or module:Class; settings after colons.")
    ],
    real: Annotated[
        bool, typer.Option(help="Also run it on three processes of this machine.")
    ] = True,
) -> int:
    """Hold a training method, your own for example, to what every method must keep.

    thinwire check my_module:MyMethod

    thinwire check gtopk:density=0.1 --no-real
    """
    from thinwire.run.settings import MethodSpec
    from thinwire.testing.check_method import check_method

    spec = MethodSpec.parse(method)
    failed = 0
    for finding in check_method(spec.name, spec.settings, real=real):
        print(f"{'ok  ' if finding.kept else 'FAIL'}  {finding.promise}", flush=True)
        if not finding.kept:
            failed += 1
            print(f"      {finding.detail}")
    if failed:
        print(f"\n{spec.label}: {failed} promise{'s' if failed > 1 else ''} not kept")
    return 1 if failed else 0


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
