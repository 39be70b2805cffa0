"""`distribute`, `finish`, `rank`, `size`, `log`: three lines in a loop that exists already."""

from __future__ import annotations

import atexit
import hashlib
import os
import sys
import traceback
import warnings
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import nn

from thinwire.errors import InputError
from thinwire.flat import Flat, digest
from thinwire.loop._ask import Asked, asked
from thinwire.loop._journal import Journal, VirtualBook
from thinwire.loop._loop import Loop
from thinwire.loop._refuse import check, check_free, check_method, optimized
from thinwire.loop._talk import LoopComm
from thinwire.loop.ddp import close_hooks
from thinwire.methods import Method, build_method, load_method
from thinwire.methods.fit import check_optimizer
from thinwire.wire.rendezvous import place_from_environment
from thinwire.wire.sockets import connect
from thinwire.wire.virtual.remote import RemoteComm, session

__all__ = [
    "Distributed",
    "digests",
    "distribute",
    "finish",
    "load_state_dict",
    "log",
    "rank",
    "size",
    "state_dict",
]

M = TypeVar("M", bound=nn.Module)
O = TypeVar("O", bound=torch.optim.Optimizer)  # noqa: E741 - an optimizer

_open: list[Loop] = []
_ended: list[tuple[weakref.ref[torch.optim.Optimizer], Journal | None]] = []
"""The journals of what has been finished since the last `distribute` on its own, and whose."""
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
    warn_after: float = 10.0,
    interface: str | None = None,
    record: str | os.PathLike[str] | None = None,
    tensorboard: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    log_every: int = 10,
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
        warn_after: seconds of such a wait after which it says who is missing.
        interface: name or address of the network to use.
        record: a run folder, to which rank 0 appends a record for `thinwire report`; also by the
            environment variable THINWIRE_RECORD. On all ranks or on none. On the virtual cluster
            `thinwire run` has its own.
        tensorboard: a folder to which rank 0 writes scalars; needs the package tensorboard.
        progress: whether rank 0 tells on the error stream, every few seconds, how far and how fast
            the training is; by default where that is a terminal, or as THINWIRE_PROGRESS says.
        log_every: steps between lines of the record, and between scalars; at least 1.
        settings: of the method. For one that sends during backward (wfbp, lags), `accumulate` is
            how many backward passes come before each step, by default 1: it sends in the last.

    Returns:
        The same model and optimizer.

    Raises:
        InputError: what cannot work, naming it.
        RendezvousError: the ranks cannot find or accept each other.
    """
    wanted = asked(record, tensorboard, progress, log_every)
    check(model, optimizer)
    chosen, accumulate = _method(method, settings)
    check_method(chosen, size())
    for group in optimizer.param_groups:
        check_optimizer(chosen, type(optimizer).__name__, group.get("momentum", 0.0))
    check_free(model, optimizer, [p for loop in _open for p in loop.flat.params])
    flat = Flat(model, optimized(optimizer))
    expected = _expected(chosen, name, seed, optimizer, flat)
    if chosen.traits.kind == "overlapped":
        expected["accumulate"] = str(accumulate)
    if wanted.record is not None:
        expected["record"] = "yes"  # all ranks report at the end, or none
    comm = _communicator(chosen, flat, expected, deadline, warn_after, interface)
    loop = Loop(chosen, model, optimizer, flat, comm, seed, accumulate)
    try:
        loop.begin()
        _tell(loop, wanted, name, seed, method, settings)
    except BaseException as error:
        loop.close(error)
        raise
    _watch_exit()
    if not _open:
        _ended.clear()
    _open.append(loop)
    return Distributed(model, optimizer)


def _tell(
    loop: Loop,
    wanted: Asked,
    name: str,
    seed: int,
    method: str | Method,
    settings: Mapping[str, Any],
) -> None:
    """Give the loop a journal if anything is to be told."""
    comm, size = loop.comm, loop.comm.size
    if isinstance(comm, RemoteComm):
        if comm.rank == 0:
            loop.keep(Journal(VirtualBook(comm), size, wanted.every))
        return
    if not wanted.anything:
        return
    from thinwire.loop import _book  # what reports are made of takes half a second to load

    if comm.rank:
        book = _book.RankBook(wanted, comm, loop.talk, loop.flat)
    else:
        about = _book.about(loop.method, method, settings, name, seed)
        book = _book.WireBook(wanted, comm, loop.talk, loop.flat, about, part=len(_open) or None)
    loop.keep(Journal(book, size, wanted.every))
    book.begin(loop.servers)
    book.start()


def _method(method: str | Method, settings: Mapping[str, Any]) -> tuple[Method, int]:
    """The method, and the backward passes before each step where it must know them."""
    cls = load_method(method) if isinstance(method, str) else type(method)
    passes = 1
    if cls.traits.kind == "overlapped" and "accumulate" not in cls.__dataclass_fields__:
        settings = dict(settings)
        passes = settings.pop("accumulate", 1)
        if not isinstance(passes, int) or passes < 1:
            raise InputError(f"accumulate = {passes!r}: a number of backward passes, at least 1")
    if isinstance(method, str):
        return build_method(method, settings), passes
    if settings:
        raise InputError(
            f"{', '.join(settings)}: settings go with a method's name; a {type(method).__name__} "
            "has its own"
        )
    return method, passes


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
    warn_after: float,
    interface: str | None,
) -> LoopComm:
    """The one place where a loop's communicator comes from."""
    virtual = session()
    if virtual is not None:
        about = {"method": repr(method), "num_params": flat.params_P.numel()}
        return virtual.meet(method.num_servers, expected, about)
    return connect(
        deadline=deadline,
        warn_after=warn_after,
        num_servers=method.num_servers,
        interface=interface,
        expected=expected,
    )


def finish() -> None:
    """End what `distribute` began: the method's last exchange, a check that all ranks have equal
    parameters where the method says so, and the goodbye; close the hooks of `ddp_hook`. Blocks.

    Ranks may have taken unequal numbers of steps. With a synchronous method the ones that end first
    go on here with empty gradients until the last has ended, so that all take as many.

    Raises:
        ThinwireError: what went wrong; the other ranks are told.
    """
    _end(list(_open))
    close_hooks()


def log(*, optimizer: torch.optim.Optimizer | None = None, **values: Any) -> None:
    """Put numbers into the record, the view and TensorBoard; rank 0's count, others are left out.

        tw.log(loss=loss, lr=scheduler.get_last_lr()[0])
        tw.log(accuracy=0.91, loss=0.3)

    `loss` is the training loss of the last step, of which every `log_every`-th is kept. With an
    `accuracy` (of the test, 0..1) it is an evaluation, always kept, and `loss` that of the test: a
    report then has a curve. Also after `finish`. Where nothing is recorded or shown, this costs
    nothing.

    Args:
        optimizer: of the pair that is meant; by default all.
        values: numbers, or tensors of one, which are read only when written.

    Raises:
        InputError: before `distribute`, or no number, naming it.
    """
    open_ = [lo for lo in _open if optimizer in (None, lo.optimizer)]
    for loop in open_:
        loop.log(values)
    ended = [] if _open else [j for of, j in _ended if optimizer in (None, of())]
    for journal in ended:
        if journal is not None:
            journal.log(journal.steps, values)
    if not open_ and not ended:
        raise InputError("log() found no model that distribute() was called for: call it after")


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
    loop = _meant("digests()", optimizer)
    return loop.talk.share(digest(loop.flat.params_P), "digests")


def state_dict(optimizer: torch.optim.Optimizer | None = None) -> dict[str, Any]:
    """This rank's part of the method's state, for a checkpoint beside the model's and the
    optimizer's: error memories, steps done, generators. Each rank saves its own, after a step.

    Args:
        optimizer: of the pair that is meant, where there are several.

    Raises:
        InputError: a method that can't be gone on with, or no such pair, or inside a step.
    """
    return _meant("state_dict()", optimizer).state_dict()


def load_state_dict(
    state: Mapping[str, Any], optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Go on where a run was: with what `state_dict` gave, right after `distribute`. Load the
    model's and the optimizer's state after `distribute`, too. All ranks call. Blocks.

    The run then ends with the bits of one that was never interrupted, if its data go on where they
    were.

    Args:
        state: of this rank, of a run with the same method and as many ranks.
        optimizer: of the pair that is meant, where there are several.

    Raises:
        InputError: another run's, method's or rank's state, or after a step.
    """
    _meant("load_state_dict()", optimizer).load_state_dict(state)


def _meant(what: str, optimizer: torch.optim.Optimizer | None) -> Loop:
    meant = [lo for lo in _open if optimizer is None or lo.optimizer is optimizer]
    if len(meant) != 1:
        raise InputError(
            f"{what} found {len(meant)} models between distribute() and finish(); call it in "
            "between, and name the optimizer where there are several"
        )
    return meant[0]


# The end, however it comes.


def _end(loops: list[Loop]) -> None:
    for loop in loops:
        try:
            loop.finish()
        except BaseException as error:
            _close(list(_open), error)
            raise
        _open.remove(loop)
        _ended.append((weakref.ref(loop.optimizer), loop.journal))


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
