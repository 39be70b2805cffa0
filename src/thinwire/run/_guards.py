"""What a script may not do on the virtual cluster, found where it does it.

torch.distributed's traffic would go past the virtual network and its clock, and a CUDA graph would
replay passes that nobody can count. Rank, size and barrier of torch.distributed are answered by the
clock server, so that samplers and "only on rank 0" work as they do under torchrun.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from thinwire.errors import ThinwireError
from thinwire.wire.virtual.remote import Session

__all__ = ["install"]


class _Engine:
    """Stands for torch.distributed's default process group."""

    def __init__(self, session: Session):
        self._session = session
        self._begun = False

    def init_process_group(self, *args: Any, **kwargs: Any) -> None:
        self._begun = True

    def destroy_process_group(self, *args: Any, **kwargs: Any) -> None:
        self._begun = False

    def is_initialized(self) -> bool:
        return self._begun

    def get_rank(self, group: Any = None) -> int:
        self._check()
        return self._session.rank

    def get_world_size(self, group: Any = None) -> int:
        self._check()
        return self._session.size

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        self._check()
        self._session.barrier()

    def _check(self) -> None:
        if not self._begun:
            raise ValueError("call torch.distributed.init_process_group() first")


_TRAFFIC = (
    "all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all",
    "all_to_all_single", "batch_isend_irecv", "broadcast", "broadcast_object_list", "gather",
    "gather_object", "irecv", "isend", "monitored_barrier", "new_group", "recv", "recv_object_list",
    "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list", "send",
    "send_object_list",
)  # fmt: skip


def install(session: Session) -> None:
    """Guard this process, which is a rank of a world; there is no way back."""
    engine = _Engine(session)
    for name in [n for n in vars(_Engine) if not n.startswith("_")]:
        _replace(name, getattr(engine, name))
    for name in _TRAFFIC:
        if hasattr(dist, name):
            _replace(name, _refuser(session, f"torch.distributed.{name}()", _WHY_TRAFFIC))
    # Whatever else wants the default group, DistributedDataParallel for one.
    refuse = _refuser(session, "torch.distributed", _WHY_TRAFFIC)
    setattr(c10d, "_get_default_group", refuse)  # noqa: B010 - no attribute of the stubs
    graph = _refuser(session, "a CUDA graph", _WHY_GRAPH)
    for name in ("graph", "CUDAGraph", "make_graphed_callables"):
        setattr(torch.cuda, name, graph)


_WHY_TRAFFIC = (
    "its traffic would go past the virtual network, only rank, size and barrier are there. Let "
    "tw.distribute() do the exchange, or run the script under torchrun"
)
_WHY_GRAPH = "its replays cannot be timed: run the passes as they are, or under torchrun"


def _replace(name: str, function: Callable[..., Any]) -> None:
    setattr(dist, name, function)
    setattr(c10d, name, function)


def _refuser(session: Session, what: str, why: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise ThinwireError(
            f"rank {session.rank}: {what} is not to be had on the virtual cluster: {why}"
        )

    return refuse
