"""Distributed training for slow links and uneven machines.

The names here are what a method, codec or task of one's own is made of. Each is loaded when it is
first asked for, so that `import thinwire` and the commands that don't train stay quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from thinwire._version import __version__

if TYPE_CHECKING:
    from thinwire.cluster import Cluster, load_cluster
    from thinwire.compress import Codec
    from thinwire.errors import InputError, ThinwireError
    from thinwire.loop import (
        ddp_hook,
        digests,
        distribute,
        finish,
        load_state_dict,
        log,
        rank,
        size,
        state_dict,
    )
    from thinwire.methods import Method, Paper, Traits
    from thinwire.tasks import Task
    from thinwire.wire import ANY, Comm, Packet, Work
    from thinwire.worker import Server, Worker

__all__ = [
    "ANY",
    "Cluster",
    "Codec",
    "Comm",
    "InputError",
    "Method",
    "Packet",
    "Paper",
    "Server",
    "Task",
    "ThinwireError",
    "Traits",
    "Work",
    "Worker",
    "__version__",
    "ddp_hook",
    "digests",
    "distribute",
    "finish",
    "load_cluster",
    "load_state_dict",
    "log",
    "rank",
    "size",
    "state_dict",
]

_HOMES = {
    "ANY": "thinwire.wire",
    "Cluster": "thinwire.cluster",
    "Codec": "thinwire.compress",
    "Comm": "thinwire.wire",
    "InputError": "thinwire.errors",
    "Method": "thinwire.methods",
    "Packet": "thinwire.wire",
    "Paper": "thinwire.methods",
    "Server": "thinwire.worker",
    "Task": "thinwire.tasks",
    "ThinwireError": "thinwire.errors",
    "Traits": "thinwire.methods",
    "Work": "thinwire.wire",
    "Worker": "thinwire.worker",
    "ddp_hook": "thinwire.loop",
    "digests": "thinwire.loop",
    "distribute": "thinwire.loop",
    "finish": "thinwire.loop",
    "load_cluster": "thinwire.cluster",
    "load_state_dict": "thinwire.loop",
    "log": "thinwire.loop",
    "rank": "thinwire.loop",
    "size": "thinwire.loop",
    "state_dict": "thinwire.loop",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'thinwire' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
