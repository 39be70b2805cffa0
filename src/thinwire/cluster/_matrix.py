"""The n x n matrices of a cluster's TOML: measured rates and latencies, inline or from CSV."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from thinwire.cluster._lines import line_of
from thinwire.cluster._paths import Paths
from thinwire.cluster._table import Table, number_of, text_of
from thinwire.errors import InputError
from thinwire.units import parse_rate, parse_time

__all__ = ["read_matrix"]

_Pair: TypeAlias = tuple[int, int]
_Cells: TypeAlias = list[list[Any]]
# File and line of a cell, or of its row.
_Places: TypeAlias = Callable[[int, int | None], str]

_MATRICES = {"rates": ("rate", parse_rate, "Mbit/s"), "latencies": ("latency", parse_time, "ms")}
_SYMMETRIC: dict[str, Callable[[float, float], float]] = {
    "min": min,
    "max": max,
    "mean": lambda one, other: (one + other) / 2,
}


def read_matrix(table: Table, name: str, paths: Paths) -> None:
    """Note every pair's rate or latency.

    Args:
        table: unit, matrix or file, symmetric.
        name: "rates" or "latencies".
        paths: takes what is read.
    """
    attribute, parse, example = _MATRICES[name]
    table.only(("unit", "matrix", "file", "symmetric"), name)
    unit = table.need("unit", text_of, f'{name} has no unit: add unit = "{example}"')
    table.get("unit", lambda unit: parse(f"1 {unit}"), 0.0)
    symmetric = table.get("symmetric", _symmetric, None)
    if ("matrix" in table.items) == ("file" in table.items):
        table.fail("matrix", f"{name} needs either matrix (rows of numbers) or file (CSV)")
    cells, place = _inline_cells(table) if "matrix" in table.items else _csv_cells(table)
    _check_shape(table, cells, place, paths)
    values: dict[_Pair, float] = {}
    for i, row in enumerate(cells):
        for j, cell in enumerate(row):
            if i != j:
                try:
                    values[i, j] = parse(f"{number_of(cell)!r} {unit}")
                except InputError as error:
                    raise InputError(
                        f"{place(i, j)}: row {i}, column {j} of {name}: {error}"
                    ) from None
    for (i, j), value in values.items():
        both = value if symmetric is None else symmetric(value, values[j, i])
        if problem := paths.set(attribute, (i, j), both, place(i, j)):
            raise InputError(f"{place(i, j)}: row {i}, column {j} of {name}: {problem}")


def _check_shape(table: Table, cells: _Cells, place: _Places, paths: Paths) -> None:
    n = len(paths.nodes)
    if len(cells) != n:
        key = "matrix" if "matrix" in table.items else "file"
        table.fail(
            key,
            f"the matrix has {len(cells)} rows: it needs {n}, one for each node in their order "
            "(row: from, column: to)",
        )
    for i, row in enumerate(cells):
        if len(row) != n:
            raise InputError(
                f"{place(i, None)}: row {i} ({paths.nodes[i].name}) has {len(row)} numbers: it "
                f"needs {n}, one for each node in their order"
            )


def _symmetric(value: Any) -> Callable[[float, float], float]:
    if not isinstance(value, str) or value not in _SYMMETRIC:
        raise InputError(
            f"{value!r} must be one of {', '.join(_SYMMETRIC)} (of both directions), or left out "
            "to keep each direction as it is"
        )
    return _SYMMETRIC[value]


def _inline_cells(table: Table) -> tuple[_Cells, _Places]:
    rows, path = table.items["matrix"]
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        table.fail("matrix", "matrix must be a list of rows, each a list of numbers")
    source = table.source

    def place(row: int, column: int | None) -> str:
        cell = (*path, row) if column is None else (*path, row, column)
        return f"{source.name}:{line_of(source.lines, cell)}"

    return rows, place


def _csv_cells(table: Table) -> tuple[_Cells, _Places]:
    file = table.source.file(table.place("file"), table.need("file", text_of, ""))
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        table.fail("file", f"file: {file} cannot be read as text: {error}")
    rows: _Cells = []
    lines: list[int] = []
    for i, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            rows.append([float(cell) for cell in line.split(",")])
        except ValueError:
            raise InputError(
                f"{file}:{i}: {line!r}: must be numbers with commas between, no header"
            ) from None
        lines.append(i)
    return rows, lambda row, column: f"{file}:{lines[row]}"
