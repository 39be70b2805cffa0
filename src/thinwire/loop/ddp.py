"""For those who keep DistributedDataParallel: its gradient buckets by a method's exchange.

DDP goes on deciding when a bucket is ready; each then travels in a task beside the rest of the
backward pass, over thinwire's own wire.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from thinwire import collectives
from thinwire.collectives import all_gather_sparse
from thinwire.compress import accumulate_and_select, add_sets, prepare
from thinwire.compress.warmup import num_warmed
from thinwire.errors import InputError, ThinwireError
from thinwire.methods import METHODS, SSGD, GTopK, Method, TopK, build_method
from thinwire.wire.base import Comm
from thinwire.wire.sockets import SocketComm, connect

__all__ = ["DDPHook", "close_hooks", "ddp_hook"]

_open: list[DDPHook] = []

Future: TypeAlias = "torch.futures.Future[torch.Tensor]"

_SUPPORTED = (SSGD, TopK, GTopK)


def ddp_hook(
    model: DistributedDataParallel,
    *,
    method: str | Method = "gtopk",
    deadline: float = 300.0,
    interface: str | None = None,
    **settings: Any,
) -> DDPHook:
    """Let a method exchange the gradients of a DDP model.

        ddp = DistributedDataParallel(model)
        with tw.ddp_hook(ddp, method="gtopk", density=0.001):
            ...  # the loop as it is

    Each bucket is a vector of its own: `density` holds in every bucket, and what isn't sent waits
    in an error memory as large as the gradients. The mean counts all ranks alike. Call before the
    first backward pass, on every rank, under torchrun.

    Args:
        model: of a process group of all ranks, without another hook.
        method: `ssgd`, `topk` or `gtopk`, by name or made.
        deadline: seconds that a wait for another rank may take.
        interface: name or address of the network to use.
        settings: of the method.

    Returns:
        The hook, registered. Leaving its `with` block, or `close()`, says goodbye.

    Raises:
        InputError: a method that is none of an exchange of gradients, or settings of another.
        RendezvousError: the ranks cannot find or accept each other.
    """
    if isinstance(method, str):
        chosen = build_method(method, settings)
    elif settings:
        raise InputError(f"{', '.join(settings)}: settings go with a method's name")
    else:
        chosen = method
    if not isinstance(chosen, _SUPPORTED) or getattr(chosen, "accumulate", 1) != 1:
        names = ", ".join(n for n, c in METHODS.items() if c in _SUPPORTED)
        raise InputError(
            f"method = {chosen!r}: inside DDP a method can only exchange gradients, every step; "
            f"valid: {names} (without accumulation). For the others use tw.distribute"
        )
    comm = connect(
        deadline=deadline, interface=interface, expected={"method inside DDP": repr(chosen)}
    )
    group: Any = model.process_group
    ranks = group.size()
    if comm.size != ranks:
        error = InputError(f"the DDP model has {ranks} ranks, this run has {comm.size}")
        comm.__exit__(InputError, error, None)
        raise error
    hook = DDPHook(chosen, comm)
    _open.append(hook)
    # DDP reads a hook's annotations as objects; this one has none.
    model.register_comm_hook(None, lambda state, bucket: hook.send(bucket))
    return hook


def close_hooks() -> None:
    """Close every hook that is still open, the first first."""
    for hook in list(_open):
        hook.close()


class DDPHook:
    """What carries the buckets of one DDP model; made by `ddp_hook`."""

    def __init__(self, method: Method, comm: SocketComm):
        self.comm = comm
        self._method = method
        self._memories = _Memories()
        self._step = 0
        self._pending: list[Future] = []
        self._error: BaseException | None = None
        self._closed = False

    def send(self, bucket: Any) -> Future:
        """Begin to exchange a bucket; called by DDP inside the backward pass.

        Returns:
            A future of the bucket's mean gradient.
        """
        if not self._pending:
            self._step += 1
            self.comm.step = self._step
            # Before DDP's own, which would take what came of a failed exchange for a gradient.
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._finish_step)
        future: Future = torch.futures.Future()
        self._pending.append(future)
        buffer = bucket.buffer()
        exchange = self._prepare(bucket, buffer)

        def program(comm: Comm) -> None:
            try:
                buffer.copy_(exchange(comm))
            except BaseException as error:
                self._error = self._error or error
                raise
            finally:
                future.set_result(buffer)

        self.comm.start(program, f"ddp/{self._step}/{bucket.index()}")
        return future

    def _prepare(self, bucket: Any, buffer: torch.Tensor) -> Callable[[Comm], torch.Tensor]:
        """What is to be done with a bucket beside the backward pass, after what is done at once."""
        method, size = self._method, self.comm.size
        if not isinstance(method, TopK | GTopK):
            mean = buffer / size
            return lambda comm: collectives.all_reduce(comm, mean)
        k = num_warmed(method.density, self._step - 1, method.warmup, buffer.numel())
        memory = self._memories.of(bucket.parameters(), buffer)
        own = accumulate_and_select(memory, buffer, 1 / size, k)
        if isinstance(method, TopK):
            return lambda comm: add_sets(all_gather_sparse(comm, own), torch.zeros_like(buffer))
        return lambda comm: method.exchange(comm, own, k, memory).to_dense()

    def _finish_step(self) -> None:
        """Wait for all buckets of a backward pass, and let a failure out of it."""
        pending, self._pending = self._pending, []
        for future in pending:
            future.wait()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Say goodbye; the model must not be trained any more. Blocks."""
        self._leave(None)

    def _leave(self, error: BaseException | None) -> None:
        if not self._closed:
            self._closed = True
            if self in _open:
                _open.remove(self)
            trace = None if error is None else error.__traceback__
            self.comm.__exit__(None if error is None else type(error), error, trace)

    def __enter__(self) -> DDPHook:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._leave(error)


class _Memories:
    """The error memory of each bucket. DDP deals its parameters out anew after the first step."""

    def __init__(self) -> None:
        self._of_bucket: dict[tuple[int, ...], torch.Tensor] = {}
        self._of_param: dict[int, torch.Tensor] = {}

    def of(self, params: Sequence[nn.Parameter], buffer: torch.Tensor) -> torch.Tensor:
        """A vector like the bucket's buffer, holding what its parameters have not sent."""
        names = tuple(map(id, params))
        memory = self._of_bucket.get(names)
        if memory is None:
            sizes = [p.numel() for p in params]
            if sum(sizes) != buffer.numel():
                raise ThinwireError("DDP's bucket holds more than its parameters' gradients")
            memory = torch.zeros_like(buffer)
            prepare(memory)
            for name, view in zip(names, memory.split(sizes), strict=True):
                if name in self._of_param:
                    view.copy_(self._of_param[name])
                self._of_param[name] = view
            self._of_bucket = {
                ids: kept for ids, kept in self._of_bucket.items() if not set(ids) & set(names)
            }
            self._of_bucket[names] = memory
        return memory
