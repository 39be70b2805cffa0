"""The in-loop form: a method at work inside somebody's own training loop."""

from thinwire.loop.ddp import ddp_hook
from thinwire.loop.public import (
    Distributed,
    digests,
    distribute,
    finish,
    load_state_dict,
    log,
    rank,
    size,
    state_dict,
)

__all__ = [
    "Distributed",
    "ddp_hook",
    "digests",
    "distribute",
    "finish",
    "load_state_dict",
    "log",
    "rank",
    "size",
    "state_dict",
]
