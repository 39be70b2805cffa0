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
    name: Annotated[
        str,
        typer.Argument(help="A method, or module:Class of a method or codec; settings after it."),
    ],
    real: Annotated[
        bool, typer.Option(help="Also run it on three processes of this machine.")
    ] = True,
) -> int:
    """Hold a training method or a codec, your own for example, to what every one must keep.

    thinwire check my_module:MyMethod

    thinwire check gtopk:density=0.1 --no-real

    thinwire check my_module:MyCodec:bits=4
    """
    from thinwire.run.settings import MethodSpec
    from thinwire.testing.check_codec import check_codec, load_codec
    from thinwire.testing.check_method import check_method

    spec = MethodSpec.parse(name)
    codec = load_codec(spec.name, spec.settings)
    if codec is not None:
        findings = check_codec(codec)
    else:
        findings = check_method(spec.name, spec.settings, real=real)
    failed = 0
    for finding in findings:
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
