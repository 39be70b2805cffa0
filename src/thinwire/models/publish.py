"""Counts the published models anew and writes what is shipped of them.

    python -m thinwire.models.publish

It needs torchvision. A test holds the shipped files to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from thinwire.models.describe import count_model
from thinwire.models.table import ModelTable

__all__ = ["NAMES", "totals_text", "write"]

NAMES = (
    "alexnet",
    "bert-base",
    "bert-large",
    "densenet121",
    "densenet161",
    "densenet201",
    "efficientnet-b0",
    "inception-v4",
    "lstm-ptb",
    "mobilenet-v2",
    "resnet101",
    "resnet152",
    "resnet18",
    "resnet20",
    "resnet34",
    "resnet50",
    "vgg16",
    "vgg16-cifar",
    "vit-b-16",
)

_HERE = Path(__file__).parent
_HEAD = '''"""Totals of the published models. Written by `python -m thinwire.models.publish`."""

from __future__ import annotations

__all__ = ["TOTALS"]

# name, parameters, tensors, forward MACs of one sample, sample, source
TOTALS = (
'''


def totals_text(tables: Mapping[str, ModelTable]) -> str:
    """The whole text of the module with the totals."""
    return _HEAD + "".join(_lines(tables)) + ")\n"


def _lines(tables: Mapping[str, ModelTable]) -> Iterable[str]:
    for name, table in tables.items():
        yield "    (\n"
        for value in (
            f'"{name}"',
            f"{table.num_params:_}",
            f"{len(table.tensors)}",
            f"{table.macs:_}",
            f'"{table.sample}"',
            f'"{table.source}"',
        ):
            yield f"        {value},\n"
        yield "    ),\n"


def write(folder: Path = _HERE) -> None:
    """Write a table for each model, and the module with the totals, below a folder."""
    tables = {name: count_model(name) for name in NAMES}
    (folder / "tables").mkdir(exist_ok=True)
    for name, table in tables.items():
        (folder / "tables" / f"{name}.toml").write_text(table.to_toml(), encoding="utf-8")
    (folder / "_totals.py").write_text(totals_text(tables), encoding="utf-8")


if __name__ == "__main__":
    write()
