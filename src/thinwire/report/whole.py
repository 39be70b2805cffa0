"""Writing a file whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["write_whole"]


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file: whoever reads it, or kills the writer, never meets half of it.

    Args:
        path: in a folder that exists.
        data: everything.

    Raises:
        OSError: the folder cannot be written.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
        os.chmod(temporary, 0o644)  # a temporary file is private, a report is to be shared
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
