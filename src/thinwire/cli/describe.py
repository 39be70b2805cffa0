"""The verb `model`: a model as a table of layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from thinwire.cli._output import write_file
from thinwire.cli.everyday import PANEL
from thinwire.units import format_compute, format_size

if TYPE_CHECKING:
    from thinwire.models import LayerRow, ModelTable

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command(rich_help_panel=PANEL)(model)


def model(
    name: Annotated[
        str,
        typer.Argument(
            help="A known model (resnet50, bert-base, ...), one of torchvision's, or "
            "module:function that returns a torch module, or a module and its inputs."
        ),
    ],
    batch: Annotated[int, typer.Option(help="Samples of a step.")] = 32,
    sequence: Annotated[
        int, typer.Option(help="Length of sequences. Default: as published, or 64.")
    ] = 0,
    image: Annotated[
        int, typer.Option(help="Height and width of images. Default: as published, or 224.")
    ] = 0,
    depth: Annotated[
        int,
        typer.Option(min=0, help="Sum up layers by so many parts of their names; 0 shows each."),
    ] = 1,
    toml: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every layer and tensor there too.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> int:
    """Describe a model: parameters, operations, kept bytes and gradient order of its layers.

    Nothing is downloaded or computed: torch counts on tensors without data.

    thinwire model resnet50 --batch 32

    thinwire model bert-base --sequence 128 --depth 2

    thinwire model my_module:make_model --json
    """
    from thinwire.models import describe

    table = describe(name, batch=batch, sequence=sequence or None, image=image or None)
    if toml is not None:
        write_file("--toml", toml, table.to_toml())
    if as_json:
        print(json.dumps(table.to_dict(), indent=2))
    else:
        _show(table, table.grouped(depth) if depth else table.layers)
    return 0


def _show(table: ModelTable, rows: tuple[LayerRow, ...]) -> None:
    console = Console()
    console.print(
        f"{table.name}: {table.num_params:,} parameters in {len(table.tensors)} tensors, "
        f"{table.macs / 1e9:,.4g} GMAC forward per sample ({table.sample})",
        highlight=False,
    )
    shown = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
    shown.add_column("layer", overflow="fold")
    for title in ("parameters", "forward", "backward", "kept", "gradient"):
        shown.add_column(title, justify="right")
    ordered = sorted(row.order for row in rows if row.order is not None)
    places = {order: place for place, order in enumerate(ordered, start=1)}
    for row in rows:
        shown.add_row(
            row.name or "(itself)",
            *_figures(row.num_params, row.forward_flops, row.backward_flops, row.activation_bytes),
            f"{places[row.order]}" if row.order is not None else "",
        )
    shown.add_section()
    total = (table.num_params, table.forward_flops, table.backward_flops, table.activation_bytes)
    shown.add_row("all", *_figures(*total), style="bold")
    console.print(shown)
    console.print(
        f"Operations (two per multiply-accumulate) and bytes kept for backward, of {table.batch} "
        f"samples; gradient: in which order complete. Source: {table.source}.",
        style="dim",
        highlight=False,
    )
    for note in table.notes:
        console.print(f"note: {note}", style="yellow", highlight=False)


def _figures(params: int, forward: int, backward: int, kept: int) -> tuple[str, ...]:
    operations = (format_compute(n).removesuffix("/s") if n else "" for n in (forward, backward))
    return f"{params:,}" if params else "", *operations, format_size(kept) if kept else ""
