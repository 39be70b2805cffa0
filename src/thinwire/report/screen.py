"""A view that is redrawn in place on a terminal, and not at all on a pipe."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console, RenderableType
from rich.live import Live

__all__ = ["redrawn"]


def redrawn(console: Console, render: Callable[[], RenderableType]) -> Live | None:
    """Begin to show what `render` gives, four times a second; None where nothing is redrawn.

    Whoever called stops it; then nothing of it is left on the screen.
    """
    if not console.is_terminal or console.is_dumb_terminal:
        return None
    live = Live(console=console, get_renderable=render, refresh_per_second=4, transient=True)
    live.start()
    return live
