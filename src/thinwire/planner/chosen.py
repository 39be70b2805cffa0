"""A plan's choice as the settings file that `thinwire run` and `thinwire compare` take."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from thinwire.errors import InputError
from thinwire.planner.refine import Refined

__all__ = ["command_of", "config_text", "write_config"]


def config_text(refined: Refined, batch: int, cluster: str, path: str) -> str:
    """The file: what the choice is set to, and how it is used.

    Args:
        refined: whose choice.
        batch: samples per worker and step.
        cluster: as the command line names it; empty where no file or preset was planned for.
        path: of the file, for the command in it.
    """
    choice = refined.choice.simulated
    lines = [
        f"# {refined.verdict}",
        f"# {command_of(refined, cluster, path)}",
        "",
        "[train]",
        f"batch = {batch}",
    ]
    if choice.settings:
        lines += ["", f"[{choice.method}]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in choice.settings.items()]
    return "\n".join(lines) + "\n"


def command_of(refined: Refined, cluster: str, path: str) -> str:
    """The command line that runs the choice."""
    where = shlex.quote(cluster) if cluster else "CLUSTER"
    method = refined.choice.simulated.method
    return f"thinwire run {where} --method {method} --config {shlex.quote(path)}"


def write_config(refined: Refined, batch: int, cluster: str, path: Path) -> None:
    """Write the file, which must not be there yet.

    Raises:
        InputError: it is, or cannot be written.
    """
    text = config_text(refined, batch, cluster, str(path))
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(f"--write {path}: is there already; give another name") from None
    except OSError as error:
        raise InputError(f"--write {path}: cannot be written: {error.strerror}") from None
