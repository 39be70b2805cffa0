"""Where rank 0's lines can go beside the record: the error stream, and TensorBoard's files."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

from thinwire.errors import InputError

__all__ = ["Errors", "event_writer"]


class Errors:
    """The error stream, whichever it is now; a progress bar of tqdm's that is shown there makes
    room for the line."""

    def write(self, text: str) -> int:
        """Write between the bars."""
        bars = sys.modules.get("tqdm")
        stream = sys.stderr
        with bars.tqdm.external_write_mode(file=stream) if bars else contextlib.nullcontext():
            return stream.write(text)

    def flush(self) -> None:
        """As of any stream."""
        sys.stderr.flush()

    def isatty(self) -> bool:
        """Never: whoever asks would move the cursor."""
        return False

    @property
    def encoding(self) -> str:
        """Of the error stream."""
        return getattr(sys.stderr, "encoding", None) or "ascii"


def event_writer(folder: Path) -> Any:
    """A `SummaryWriter`.

    Raises:
        InputError: the package tensorboard is missing.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError(
            f"tensorboard = {str(folder)!r} needs the package tensorboard: pip install tensorboard"
        ) from error
    return SummaryWriter(str(folder))
