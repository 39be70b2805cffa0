"""torch.distributed's own all-reduce, broadcast and all-gather, in a process group of its own.

Faster than the written-out collectives where gloo or NCCL uses shared memory, NVLink or several
connections; equal to them within float rounding, not to the bit, because the order of additions is
the back end's. The group is made directly from a store, so the global default group of
torch.distributed is neither needed nor touched.

gloo cannot say who died: its errors name no rank. The packet wire beside it does.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from thinwire.errors import DeadlineError, InputError, PeerDiedError, RendezvousError

__all__ = ["NativeGroup", "join_native"]


class NativeGroup:
    """Collectives of torch.distributed for one worker; call them from one thread, in one order.

    Every call blocks at most `deadline` seconds, then raises `DeadlineError`; a peer that closed
    its connection raises `PeerDiedError` with rank -1. The group is of no use after either.

    Args:
        group: a back end as `join_native` makes it.
        rank: this worker, 0..size-1.
        size: number of workers.
        deadline: seconds, for the errors' texts; the back end keeps its own copy.
    """

    def __init__(self, group: Any, rank: int, size: int, deadline: float):
        self.rank = rank
        self.size = size
        self._group = group
        self._deadline = deadline

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum over the workers into `x`, which is returned."""
        flat = x.detach().contiguous()
        self._run("all_reduce", lambda: self._group.allreduce([flat]))
        return _brought_home(x, flat)

    def broadcast(self, x: torch.Tensor, root: int = 0) -> torch.Tensor:
        """Copy the root's tensor into `x`, which is returned."""
        if not 0 <= root < self.size:
            raise InputError(f"root = {root!r}; valid: 0..{self.size - 1}")
        options = dist.BroadcastOptions()
        options.rootRank = root
        flat = x.detach().contiguous()
        self._run("broadcast", lambda: self._group.broadcast([flat], options))
        return _brought_home(x, flat)

    def all_gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Every worker's tensor, by rank, shaped like `x`, private."""
        flat = x.detach().contiguous()
        gathered = [torch.empty_like(flat) for _ in range(self.size)]
        if x.numel():  # the back end divides by the size
            self._run("all_gather", lambda: self._group.allgather([gathered], [flat]))
        return gathered

    def barrier(self) -> None:
        """Return only when every worker has called."""
        self._run("barrier", self._group.barrier)

    def close(self) -> None:
        """Give up the connections; the others' next call fails."""
        self._group.shutdown()

    def _run(self, what: str, call: Callable[[], Any]) -> None:
        try:
            call().wait()
        except RuntimeError as error:
            raise self._error(what, error) from error

    def _error(self, what: str, error: RuntimeError) -> Exception:
        where = f"rank {self.rank}: {what} of the native group"
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "imed out" in text or "timeout" in text.lower():
            return DeadlineError(f"{where}: not finished within {self._deadline:g} s ({text})")
        if "onnection" in text or "peer" in text.lower():
            return PeerDiedError(-1, f"{where}: a peer has gone ({text})")
        return error


def join_native(
    store: Store,
    rank: int,
    size: int,
    *,
    device: str = "cpu",
    deadline: float = 300.0,
    address: str | None = None,
    name: str = "thinwire",
) -> NativeGroup:
    """Make the group with the other workers, who call this too.

    Args:
        store: reachable by all, such as torchrun's.
        rank: this worker, 0..size-1.
        size: number of workers.
        device: `cpu` (gloo) or `cuda` (NCCL, on the current device).
        deadline: seconds each call may take, this one included, > 0.
        address: address of this machine for gloo to listen at; None lets it look up the host name.
        name: equal on all ranks, one per group made from the store.

    Raises:
        RendezvousError: the others did not come in time.
    """
    if not 0 <= rank < size:
        raise InputError(f"rank = {rank!r}; valid: 0..{size - 1}")
    if not deadline > 0:
        raise InputError(f"deadline = {deadline!r} seconds; it must be > 0")
    make = {"cpu": _gloo, "cuda": _nccl}.get(device)
    if make is None:
        raise InputError(f"device = {device!r}; valid: cpu, cuda")
    prefixed = PrefixStore(f"native/{name}", store)
    try:
        group = make(prefixed, rank, size, timedelta(seconds=deadline), address)
    except RuntimeError as error:
        raise RendezvousError(
            f"rank {rank}: the native group of {size} workers did not form within {deadline:g} s: "
            f"{str(error).splitlines()[0]}"
        ) from error
    return NativeGroup(group, rank, size, deadline)


def _brought_home(x: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    """`contiguous` gave a copy where `x` was not."""
    if not x.is_contiguous():
        x.detach().copy_(flat)
    return x


def _gloo(
    store: Store, rank: int, size: int, timeout: timedelta, address: str | None
) -> dist.ProcessGroupGloo:
    if address is None:
        return dist.ProcessGroupGloo(store, rank, size, timeout)
    options: Any = dist.ProcessGroupGloo._Options()  # pyright: ignore[reportAttributeAccessIssue]
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = timeout
    return dist.ProcessGroupGloo(store, rank, size, options)


def _nccl(
    store: Store, rank: int, size: int, timeout: timedelta, address: str | None
) -> dist.ProcessGroupNCCL:
    if address is not None:
        raise InputError("address has no effect on NCCL; set NCCL_SOCKET_IFNAME")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, size, options)
