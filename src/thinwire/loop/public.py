"""`distribute`, `finish`, `rank`, `size`: three lines in a loop that exists already."""

from __future__ import annotations

import atexit
import hashlib
import os
import sys
import traceback
import warnings
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import nn

from thinwire.errors import InputError
from thinwire.flat import Flat, digest
from thinwire.loop._loop import Loop
from thinwire.loop._refuse import check, check_free, check_method, optimized
from thinwire.loop._talk import LoopComm
from thinwire.methods import Method, build_method
from thinwire.methods.fit import check_optimizer
from thinwire.wire.rendezvous import place_from_environment
from thinwire.wire.sockets import connect
from thinwire.wire.virtual.remote import session

__all__ = ["Distributed", "digests", "distribute", "finish", "rank", "size"]

M = TypeVar("M", bound=nn.Module)
O = TypeVar("O", bound=torch.optim.Optimizer)  # noqa: E741 - an optimizer

_open: list[Loop] = []
_owner = 0


class Distributed(NamedTuple, Generic[M, O]):
    """The model and the optimizer that `distribute` was given, to be unpacked, or used by `with`:
    leaving the block finishes, or tells the other ranks of the exception."""

    model: M
    optimizer: O

    def __enter__(self) -> Distributed[M, O]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        loop = next((lo for lo in _open if lo.optimizer is self.optimizer), None)
        if loop is None:
            return
        if error is None or (isinstance(error, SystemExit) and not error.code):
            _end([loop])
        else:
            _close([loop], error)


def distribute(
    model: M,
    optimizer: O,
    *,
    method: str | Method = "ssgd",
    name: str = "",
    seed: int = 0,
    deadline: float = 300.0,
    interface: str | None = None,
    **settings: Any,
) -> Distributed[M, O]:
    """Train as a method says, in the loop that follows.

        model, optimizer = tw.distribute(model, optimizer, method="gtopk", density=0.001)

    Alone it is a world of one; under torchrun each process is a rank. All ranks begin with rank 0's
    parameters and buffers. From here to `finish`, `optimizer.step()` takes the method's step with
    the gradient that this rank's loop has accumulated, and may wait for other ranks;
    `optimizer.zero_grad()` keeps the gradients allocated, whatever `set_to_none` says. The mean
    over the ranks counts every rank alike. What stays the loop's own: data, accumulation, clipping
    (of this rank's gradient, before the exchange), schedulers, evaluation, buffers.

    Args:
        model: in training mode and on its device; its trainable parameters must share one dtype.
            Returned as it is: its forward pass and state dict are the same as ever.
        optimizer: made from the model's parameters. Frozen ones take no part.
        method: a name in `thinwire methods`, `module:Class`, or a method.
        name: of this pair, equal on all ranks; tells several pairs apart in messages.
        seed: of the method's random choices.
        deadline: seconds that a wait for another rank may take.
        interface: name or address of the network to use.
        settings: of the method.

    Returns:
        The same model and optimizer.

    Raises:
        InputError: what cannot work, naming it.
        RendezvousError: the ranks cannot find or accept each other.
    """
    check(model, optimizer)
    chosen = _method(method, settings)
    check_method(chosen, size())
    for group in optimizer.param_groups:
        check_optimizer(chosen, type(optimizer).__name__, group.get("momentum", 0.0))
    check_free(model, optimizer, [p for loop in _open for p in loop.flat.params])
    flat = Flat(model, optimized(optimizer))
    expected = _expected(chosen, name, seed, optimizer, flat)
    comm = _communicator(chosen, flat, expected, deadline, interface)
    loop = Loop(chosen, model, optimizer, flat, comm, seed)
    try:
        loop.begin()
    except BaseException as error:
        comm.__exit__(type(error), error, error.__traceback__)
        raise
    _watch_exit()
    _open.append(loop)
    return Distributed(model, optimizer)


def _method(method: str | Method, settings: Mapping[str, Any]) -> Method:
    if isinstance(method, str):
        return build_method(method, settings)
    if settings:
        raise InputError(
            f"{', '.join(settings)}: settings go with a method's name; a {type(method).__name__} "
            "has its own"
        )
    return method


def _expected(
    method: Method, name: str, seed: int, optimizer: torch.optim.Optimizer, flat: Flat
) -> dict[str, str]:
    """What must be equal on all ranks for the loops to fit together."""
    table = ";".join(
        f"{la.name}{tuple(p.shape)}" for la, p in zip(flat.layers, flat.params, strict=True)
    )
    mark = hashlib.blake2b(table.encode(), digest_size=4).hexdigest()
    params_P = flat.params_P
    return {
        "name of the model": name,
        "method": repr(method),
        "seed": str(seed),
        "optimizer": type(optimizer).__name__,
        "parameters": f"{params_P.numel()} of {params_P.dtype} in {len(flat.layers)} tensors "
        f"(names and shapes: {mark})",
    }


def _communicator(
    method: Method,
    flat: Flat,
    expected: Mapping[str, str],
    deadline: float,
    interface: str | None,
) -> LoopComm:
    """The one place where a loop's communicator comes from."""
    virtual = session()
    if virtual is not None:
        about = {"method": repr(method), "num_params": flat.params_P.numel()}
        return virtual.meet(method.num_servers, expected, about)
    return connect(
        deadline=deadline,
        num_servers=method.num_servers,
        interface=interface,
        expected=expected,
    )


def finish() -> None:
    """End what `distribute` began: the method's last exchange, a check that all ranks have equal
    parameters where the method says so, and the goodbye. Blocks.

    Ranks may have taken unequal numbers of steps. With a synchronous method the ones that end first
    go on here with empty gradients until the last has ended, so that all take as many.

    Raises:
        ThinwireError: what went wrong; the other ranks are told.
    """
    _end(list(_open))


def rank() -> int:
    """This process's rank, 0..size-1; 0 alone. Also before `distribute`, to divide the data."""
    place = session() or place_from_environment()
    return 0 if place is None else place.rank


def size() -> int:
    """Number of ranks; 1 alone."""
    place = session() or place_from_environment()
    return 1 if place is None else place.size


def digests(optimizer: torch.optim.Optimizer | None = None) -> list[str]:
    """16 hex digits of every rank's parameters, by rank; all ranks must call. Blocks.

    Args:
        optimizer: of the pair that is meant, where there are several.

    Raises:
        InputError: no such pair is being trained.
    """
    meant = [lo for lo in _open if optimizer is None or lo.optimizer is optimizer]
    if len(meant) != 1:
        raise InputError(
            f"digests() found {len(meant)} models between distribute() and finish(); call it in "
            "between, and name the optimizer where there are several"
        )
    loop = meant[0]
    return loop.talk.share(digest(loop.flat.params_P), "digests")


# The end, however it comes.


def _end(loops: list[Loop]) -> None:
    for loop in loops:
        try:
            loop.finish()
        except BaseException as error:
            _close(list(_open), error)
            raise
        _open.remove(loop)


def _close(loops: list[Loop], error: BaseException) -> None:
    for loop in loops:
        if loop in _open:
            _open.remove(loop)
        loop.close(error)


def _watch_exit() -> None:
    """Once a process: tell the other ranks why it ends, if it ends before `finish`."""
    global _owner
    if _owner == os.getpid():
        return
    _owner = os.getpid()
    before = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        if _owner == os.getpid():
            _close(list(_open), error)

    sys.excepthook = tell
    atexit.register(_at_exit)


def _at_exit() -> None:
    if not _open or _owner != os.getpid():
        return
    warnings.warn("tw.finish() was not called; it is now, at the end of the program", stacklevel=1)
    try:
        finish()
    except BaseException:
        # An exception in an exit handler does not change the exit code.
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
