"""A loop's lines on the real wire: run record, TensorBoard, and what rank 0 shows meanwhile."""

from __future__ import annotations

import math
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, NamedTuple

import msgspec
from rich.console import Console

from thinwire.errors import DeadlineError, PeerDiedError
from thinwire.flat import Flat, digest
from thinwire.loop._ask import Asked
from thinwire.loop._interface import counters, interface_of
from thinwire.loop._journal import Book
from thinwire.loop._outlets import Errors, event_writer
from thinwire.loop._talk import AbstractTalk
from thinwire.methods import METHODS, Method
from thinwire.report import End, Eval, Line, Note, Recorder, Run, RunView, Step
from thinwire.report.heading import header
from thinwire.report.words import size_words, time_words
from thinwire.wire.meter import Meter
from thinwire.wire.sockets import SocketComm

__all__ = ["About", "RankBook", "WireBook", "about"]

_INTERVAL = 5.0
"""Seconds between the lines of a loop that is shown."""


def about(
    built: Method, method: str | Method, settings: Mapping[str, Any], name: str, seed: int
) -> About:
    """A loop in words: a method's runs with other settings, or of other pairs, are other rows.

    Args:
        built: the method at work.
        method: as the script gave it.
        settings: as the script gave them.
        name: of the pair.
        seed: of the method.
    """
    known = {cls: key for key, cls in METHODS.items()}
    short = method if isinstance(method, str) else known.get(type(built), type(built).__name__)
    given = ",".join(f"{key}={value}" for key, value in settings.items())
    label = f"{short}:{given}" if given else short
    if isinstance(method, Method) and is_dataclass(method):
        settings = asdict(method)
    return About(
        label=f"{label} ({name})" if name else label,
        method=short,
        seed=seed,
        settings=dict(settings),
        agree=built.traits.agree,
    )


class About(NamedTuple):
    """What a record says of a loop at its beginning."""

    label: str
    method: str
    seed: int
    settings: dict[str, Any]
    agree: bool


class _Report(msgspec.Struct):
    """What a rank tells rank 0 at its end. `interface` is its name, bytes sent and received."""

    digest: str
    sent: int
    messages: int
    waited: float
    computed: float
    phases: dict[str, float]
    samples: int
    interface: tuple[str, int, int] | None


class RankBook(Book):
    """Of any rank but 0, whose lines are in rank 0's record: it reports at the end.

    Args:
        asked: what to tell; alike on all ranks as to whether there is a record.
        comm: this rank's.
        talk: with the other ranks.
        flat: the parameters.
    """

    def __init__(self, asked: Asked, comm: SocketComm, talk: AbstractTalk, flat: Flat):
        self._asked = asked
        self._comm = comm
        self._talk = talk
        self._flat = flat
        address = comm.local_address
        self._interface = interface_of(address) if address else None
        self._start = self._measured(0)
        self._sent_before = 0, 0
        self._carried = counters(self._interface) if self._interface else None

    def begin(self, servers: Sequence[Meter] = ()) -> list[str]:
        """Meet the other ranks' books; the hosts, by rank. All ranks call. Blocks.

        Args:
            servers: meters of those that run here.
        """
        if self._asked.record is None:
            return []
        return self._talk.share(socket.gethostname(), "hosts")

    def start(self) -> None:
        """The training begins: nothing before is counted."""
        meter = self._comm.meter
        meter.phases.restart()
        self._start = self._measured(0)
        self._sent_before = meter.sent, meter.messages_sent
        self._carried = counters(self._interface) if self._interface else None

    def _measured(self, step: int) -> _Measured:
        meter = self._comm.meter
        return _Measured(step, self._comm.now(), meter.sent, _waited(meter))

    def _time(self) -> float:
        return self._comm.now() - self._start.time

    def measure(self, step: int, samples: int) -> None:
        """See `Book`: nothing."""

    def step(self, values: dict[str, float]) -> None:
        """See `Book`: nothing."""

    def evaluation(self, step: int, samples: int, accuracy: float, loss: float) -> None:
        """See `Book`: nothing."""

    def end(self, steps: int, samples: int) -> None:
        """See `Book`."""
        self._reports(samples)
        del self._flat  # what is logged later needs no parameters

    def fail(self, error: BaseException, steps: int) -> None:
        """See `Book`: rank 0 learns of it by itself."""

    def _reports(self, samples: int) -> list[_Report]:
        """Of every rank, at rank 0 and only where there is a record."""
        own = self._report(samples)
        if self._asked.record is None:
            return [own]
        found = self._talk.gather(msgspec.to_builtins(own), "report")
        return [msgspec.convert(each, _Report) for each in found]

    def _report(self, samples: int) -> _Report:
        meter = self._comm.meter
        return _Report(
            digest=digest(self._flat.params_P),
            sent=meter.sent - self._sent_before[0],
            messages=meter.messages_sent - self._sent_before[1],
            waited=_waited(meter),
            computed=meter.computed,
            phases=meter.phases.seconds(),
            samples=samples,
            interface=self._over_interface(),
        )

    def _over_interface(self) -> tuple[str, int, int] | None:
        """Its name, and bytes of all programs since the beginning."""
        name, before = self._interface, self._carried
        now = counters(name) if name else None
        if name is None or now is None or before is None:
            return None
        return name, now.sent - before.sent, now.received - before.received


class WireBook(RankBook):
    """Rank 0's: record, view and TensorBoard.

    Args:
        asked: what to tell.
        comm: rank 0's.
        talk: with the other ranks.
        flat: the parameters.
        about: the loop.
        part: of the record, see `Recorder`; a number where another loop has the main file.
    """

    def __init__(
        self,
        asked: Asked,
        comm: SocketComm,
        talk: AbstractTalk,
        flat: Flat,
        about: About,
        part: int | None = None,
    ):
        super().__init__(asked, comm, talk, flat)
        self._about = about
        self._run = f"{about.label}/{about.seed}"
        self._part = part
        self._recorder: Recorder | None = None
        self._view: RunView | None = None
        self._end_time: float | None = None
        self._events = event_writer(asked.tensorboard) if asked.tensorboard else None
        self._servers: Sequence[Meter] = ()
        self._began = time.perf_counter()
        self._last = self._now = self._start

    def begin(self, servers: Sequence[Meter] = ()) -> list[str]:
        """See `RankBook`."""
        self._servers = servers
        if self._asked.record is not None:
            self._recorder = Recorder(self._asked.record, self._part)
        hosts = super().begin()
        if self._recorder is not None:
            self._open(self._recorder, hosts)
        if self._asked.progress:
            stream: Any = Errors()
            console = Console(file=stream, force_terminal=False)
            self._view = RunView(
                self._about.label,
                None,
                0,
                whose="rank 0" if self._comm.size > 1 else "",
                console=console,
                interval=_INTERVAL,
            )
        return hosts

    def start(self) -> None:
        """See `RankBook`."""
        super().start()
        self._last = self._now = self._start
        self._began = time.perf_counter()
        comm, before = self._comm, self._start.sent
        if self._view is not None:
            self._view.__enter__()
            self._view.begin(
                lambda: (comm.step, comm.meter.sent - before, comm.meter.phases.seconds())
            )

    def _open(self, recorder: Recorder, hosts: list[str]) -> None:
        about = self._about
        script = sys.argv[0] if sys.argv else ""
        settings = {
            "verb": "script",
            "script": script,
            "arguments": sys.argv[1:],
            "methods": [about.label],
            **about.settings,
        }
        recorder.write(header(settings, "", command=[os.path.basename(script), *sys.argv[1:]]))
        recorder.write(
            Run(
                run=self._run,
                label=about.label,
                method=about.method,
                seed=about.seed,
                mode="real",
                settings=about.settings,
                nodes=hosts,
                num_params=self._flat.params_P.numel(),
            )
        )

    def _emit(self, line: Line) -> None:
        if self._recorder is not None:
            self._recorder.write(line)
        elif self._asked.record is not None:  # closed at the end of the loop
            with Recorder(self._asked.record, self._part) as again:
                again.write(line)
        if self._view is not None:
            self._view.feed(line)

    def measure(self, step: int, samples: int) -> None:
        """See `Book`."""
        self._last, self._now = self._now, self._measured(step)
        if self._view is not None:
            self._view.step_samples = round(samples / step)

    def step(self, values: dict[str, float]) -> None:
        """See `Book`."""
        last, now = self._last, self._now
        elapsed, steps = now.time - last.time, now.step - last.step
        loss = values.pop("loss", math.nan)
        told = {
            "step_time": elapsed / steps if steps else 0.0,
            "wait_share": (now.waited - last.waited) / elapsed if elapsed else 0.0,
            "bytes_per_second": (now.sent - last.sent) / elapsed if elapsed else 0.0,
            **values,
        }
        self._emit(
            Step(
                run=self._run,
                rank=0,
                step=now.step,
                time=now.time - self._start.time,
                loss=loss,
                sent=now.sent - self._start.sent,
                values=told,
            )
        )
        self._chart(now.step, {"loss": loss, **told})

    def evaluation(self, step: int, samples: int, accuracy: float, loss: float) -> None:
        """See `Book`."""
        self._emit(
            Eval(
                run=self._run,
                step=step,
                time=self._time() if self._end_time is None else self._end_time,
                samples=samples,
                sent=self._comm.meter.sent - self._start.sent,
                accuracy=accuracy,
                loss=loss,
            )
        )
        self._chart(step, {"accuracy": accuracy, "test_loss": loss})

    def _chart(self, step: int, values: dict[str, float]) -> None:
        if self._events is not None:
            for name, value in values.items():
                if not math.isnan(value):
                    self._events.add_scalar(name, value, step)
            self._events.flush()

    def end(self, steps: int, samples: int) -> None:
        """See `Book`."""
        self._end_time = self._time()  # before the others are waited for
        reports = self._reports(samples)
        digests = {report.digest for report in reports}
        text = _counted(reports[0]) if self._comm.size > 1 else ""
        if text:
            self._emit(Note(run=self._run, time=self._end_time, text=text))
        self._emit_end(
            status="ok",
            steps=steps,
            samples=sum(r.samples for r in reports),
            digest=reports[0].digest,
            agree=not self._about.agree or len(digests) == 1,
            **_columns(reports),
        )
        if self._view is not None:
            took = time_words(time.perf_counter() - self._began)
            more = f"; rank 0: {text}" if text else ""
            self._view.tell(f"{self._about.label}: {steps} steps in {took}{more}")
        self._close()

    def _emit_end(self, **fields: Any) -> None:
        self._emit(
            End(
                run=self._run,
                time=self._time() if self._end_time is None else self._end_time,
                server_sent=sum(m.sent for m in self._servers),
                wall=time.perf_counter() - self._began,
                **fields,
            )
        )

    def fail(self, error: BaseException, steps: int) -> None:
        """See `Book`."""
        failed = isinstance(error, Exception)
        rank = error.rank if isinstance(error, PeerDiedError) else 0
        try:
            self._emit_end(
                status="failed" if failed else "interrupted",
                steps=steps,
                error=str(error) or (type(error).__name__ if failed else ""),
                failed_rank=-1 if not failed or isinstance(error, DeadlineError) else rank,
                **_columns([self._report(0)]),
            )
        finally:
            self._close()

    def _close(self) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.close()
        view, self._view = self._view, None
        if view is not None:
            view.__exit__(None, None, None)
        del self._flat  # what is logged later needs no parameters


class _Measured(NamedTuple):
    step: int
    time: float
    sent: int
    waited: float


def _columns(reports: Sequence[_Report]) -> dict[str, Any]:
    """The fields of an `End` that are lists by worker."""
    named = [r.interface for r in reports if r.interface is not None]
    return {
        "sent": [r.sent for r in reports],
        "messages": [r.messages for r in reports],
        "waited": [r.waited for r in reports],
        "computed": [r.computed for r in reports],
        "phases": [r.phases for r in reports],
        "interfaces": named if len(named) == len(reports) else [],
    }


def _counted(own: _Report) -> str:
    """The wire's own count beside the interface's."""
    meter = f"meter {size_words(own.sent)} sent"
    if own.interface is None:
        return f"{meter}; the interface's own counters can't be read here"
    name, sent, received = own.interface
    return (
        f"{meter}, interface {name} {size_words(sent)} sent and {size_words(received)} received "
        "meanwhile, by all programs"
    )


def _waited(meter: Meter) -> float:
    """Seconds, of the program alone: a task beside it waits all the time for loops that end."""
    return meter.phases.so_far()["wait"] / 1e9
