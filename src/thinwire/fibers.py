"""Suspend and resume blocking programs, with torch's hidden state kept apart.

A fibre runs a plain function until it calls `pause()`; whoever called `resume` then goes on. The
virtual cluster runs each worker in one, the real wire runs started tasks in them. greenlets are
used because a program that waits must read the same here and on a real network; generators would
colour every helper between the program and its wait.

Two facts of torch are handled here and nowhere else. Grad mode and autocast belong to the thread,
so all fibres of a thread share them: each fibre keeps its own and they are swapped at each switch.
And suspending inside an autograd hook hangs the engine, so `pause` refuses there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from greenlet import GreenletExit, getcurrent, greenlet

from thinwire.errors import WaitInBackwardError

__all__ = ["Fiber", "FiberExit", "ThreadFiber", "inside_backward", "pause", "refuse_in_backward"]

FiberExit = GreenletExit

_GRAPH_TASK = torch._C._current_graph_task_id


def inside_backward() -> bool:
    """Whether the caller runs inside an autograd hook of this thread."""
    return _GRAPH_TASK() != -1


def refuse_in_backward(what: str, in_hook: bool = False) -> None:
    """Raise `WaitInBackwardError` when called inside an autograd hook.

    Args:
        what: was called.
        in_hook: the caller stands for a hook although no backward runs now.
    """
    if in_hook or _GRAPH_TASK() != -1:
        raise WaitInBackwardError(
            f"{what} was called inside backward (in an autograd hook). Hooks may only post, start "
            "and spend; wait before gradient(), after it, or in a task begun with comm.start()."
        )


def _device_types() -> tuple[str, ...]:
    accelerator = (
        torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    )
    return ("cpu",) if accelerator is None else ("cpu", accelerator.type)


_DEVICES = _device_types()
_grad_enabled = torch.is_grad_enabled
_any_autocast = torch._C._is_any_autocast_enabled


def _torch_state() -> tuple[bool, tuple[tuple[bool, torch.dtype], ...] | None]:
    """Grad mode, and autocast per device type (None: nowhere on). Asked at every switch."""
    if not _any_autocast():
        return (True, None) if _grad_enabled() else (False, None)
    autocast = tuple((torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES)
    return _grad_enabled(), autocast


def _set_torch_state(new: tuple[bool, Any], now: tuple[bool, Any]) -> None:
    if new[0] != now[0]:
        torch._C._set_grad_enabled(new[0])
    if new[1] != now[1]:
        off = tuple((False, torch.get_autocast_dtype(d)) for d in _DEVICES)
        for device, (enabled, dtype) in zip(_DEVICES, new[1] or off, strict=True):
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)


class Fiber:
    """A program that can pause.

    Args:
        function: called without arguments at the first `resume`.
    """

    def __init__(self, function: Callable[[], Any]):
        self._greenlet = greenlet(function)
        self._state: tuple[bool, Any] | None = None
        self._outer: tuple[bool, Any] = (True, None)

    @property
    def alive(self) -> bool:
        """Whether the program has neither returned nor raised (true before the first resume)."""
        return not self._greenlet.dead

    @property
    def running(self) -> bool:
        """Whether the caller is this program."""
        return getcurrent() is self._greenlet

    def resume(self, value: Any = None) -> Any:
        """Run until the next `pause` or the end; an exception of the program comes out here.

        Always to be called from the same place, with the same grad mode and autocast: the fibre's
        first resumer is where it pauses to.

        Args:
            value: what `pause` returns inside; ignored by the first resume.
        """
        fiber = self._greenlet
        if self._state is None:
            fiber.parent = getcurrent()
            self._outer = _torch_state()
        elif self._state != self._outer:
            _set_torch_state(self._state, self._outer)
        try:
            return fiber.switch() if self._state is None else fiber.switch(value)
        finally:
            self._state = _torch_state()
            if self._state != self._outer:
                _set_torch_state(self._outer, self._state)

    def resume_anywhere(self, value: Any = None) -> Any:
        """As `resume`, for a resumer that may be another one, or in another grad mode and autocast:
        the fibre pauses to the one that resumed it last."""
        self._outer = _torch_state()
        self._greenlet.parent = getcurrent()
        return self.resume(value)

    def kill(self) -> None:
        """End a paused program by raising `FiberExit` in it; its `finally` blocks run."""
        if self._greenlet and not self._greenlet.dead:
            self._greenlet.parent = getcurrent()  # where the program's end leads to
            self._greenlet.throw(FiberExit)


def pause() -> Any:
    """Inside a fibre: go back to whoever resumed it; returns what the next resume is given."""
    if _GRAPH_TASK() != -1:
        refuse_in_backward("a wait")
    local = _thread_fiber.current
    if local is not None:
        return local._pause()
    parent = getcurrent().parent
    assert parent is not None, "pause() outside a fibre"
    return parent.switch()


class _Current(threading.local):
    current: ThreadFiber | None = None


_thread_fiber = _Current()


class ThreadFiber:
    """The same contract on a thread: slower, without greenlet, kept to cross-check `Fiber`.

    Exactly one of resumer and program runs at a time. torch's grad mode and autocast are the
    thread's own here, so nothing has to be swapped.
    """

    def __init__(self, function: Callable[[], Any]):
        self._function = function
        self._thread: threading.Thread | None = None
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._inbox: Any = None
        self._error: BaseException | None = None
        self._killed = False
        self._done = False

    @property
    def alive(self) -> bool:
        """Whether the program has neither returned nor raised (true before the first resume)."""
        return not self._done

    @property
    def running(self) -> bool:
        """As `Fiber.running`."""
        return _thread_fiber.current is self

    def resume(self, value: Any = None) -> Any:
        """As `Fiber.resume`."""
        self._inbox = value
        if self._thread is None:
            self._thread = threading.Thread(target=self._main, daemon=True)
            self._thread.start()
        else:
            self._go.release()
        self._back.acquire()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def kill(self) -> None:
        """As `Fiber.kill`."""
        if self._thread is not None and not self._done:
            self._killed = True
            self.resume()

    def _main(self) -> None:
        _thread_fiber.current = self
        try:
            self._function()
        except FiberExit:
            pass
        except BaseException as error:
            self._error = error
        self._done = True
        self._back.release()

    def _pause(self) -> Any:
        self._back.release()
        self._go.acquire()
        if self._killed:
            raise FiberExit
        return self._inbox
