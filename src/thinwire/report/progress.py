"""What a real run shows while it goes on: who has come, then how far it is and how fast.

On a terminal a bar with the figures below it; elsewhere one plain line every few seconds.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from thinwire.report.record import End, Eval, Line, Step
from thinwire.report.table import plain
from thinwire.report.words import accuracy_words, size_words, time_words

__all__ = ["RunView"]

_WINDOW = 15.0
"""Seconds over which rates are taken."""

_TICK = 0.25


class RunView:
    """A progress display of one real run, for the process of rank 0; a context manager.

    Args:
        label: the method.
        steps: of the whole run.
        step_samples: training samples of one step.
        whose: "" if those are the samples of all ranks, else whose they are.
        console: where to show; None is the error stream.
        interval: seconds between plain lines.
        clock: real seconds; replaced in tests.
    """

    def __init__(
        self,
        label: str,
        steps: int,
        step_samples: int,
        *,
        whose: str = "",
        console: Console | None = None,
        interval: float = 3.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._label = label
        self._steps = steps
        self._step_samples = step_samples
        self._whose = f" ({whose})" if whose else ""
        self._console = console if console is not None else Console(stderr=True)
        self._interval = interval
        self._clock = clock
        self._told = clock()
        self._gathered = ""
        self._look: Callable[[], tuple[int, int]] | None = None
        self._seen: deque[tuple[float, int, int]] = deque()
        self._loss: float | None = None
        self._accuracy: float | None = None
        self._live: Live | None = None
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._run, name="thinwire-progress", daemon=True)

    def __enter__(self) -> RunView:
        self._told = self._clock()
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(
                console=self._console,
                get_renderable=self.render,
                refresh_per_second=4,
                transient=True,
            )
            self._live.start()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave.set()
        self._thread.join()
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _run(self) -> None:
        while not self._leave.wait(_TICK):
            self.tick()

    def gather(self, ranks: Sequence[int], size: int) -> None:
        """Ranks are being waited for.

        Args:
            ranks: that have come.
            size: how many there are to be.
        """
        absent = [str(rank) for rank in range(size) if rank not in ranks]
        # A long list helps nobody.
        more = f" and {len(absent) - 8} more" if len(absent) > 8 else ""
        wanting = f"; waiting for rank {', '.join(absent[:8])}{more}" if absent else ""
        self._gathered = f"{len(ranks)} of {size} ranks connected{wanting}"
        if self._live is None and not absent:
            self._print(self._gathered)

    def begin(self, look: Callable[[], tuple[int, int]]) -> None:
        """The training begins.

        Args:
            look: the step that rank 0 is at, counted from 1, and the bytes it has sent; called
                from another thread.
        """
        self._seen.append((self._clock(), 0, 0))
        self._look = look

    def feed(self, line: Line) -> None:
        """Take note of a line of the record."""
        if isinstance(line, Step):
            self._loss = line.loss
        elif isinstance(line, Eval):
            self._accuracy = line.accuracy
        elif isinstance(line, End):
            self._look = None
            if self._live is None:
                self._print(self._ended(line))

    def _ended(self, end: End) -> str:
        if end.status != "ok":
            return f"{self._label}: {end.status}{': ' if end.error else ''}{end.error}"
        return (
            f"{self._label}: {accuracy_words(self._accuracy)} test accuracy after "
            f"{time_words(end.time)}; took {time_words(end.wall)}"
        )

    def tick(self) -> None:
        """Look how far the run is; elsewhere than on a terminal, tell when it is time to."""
        if self._look is not None:
            step, sent = self._look()
            self._seen.append((self._clock(), max(step - 1, 0), sent))
            while self._seen[-1][0] - self._seen[1][0] > _WINDOW:
                self._seen.popleft()
        if self._live is None and self._clock() - self._told >= self._interval:
            self._print(self.text())

    def _print(self, text: str) -> None:
        self._told = self._clock()
        shown = plain(text, self._console)
        self._console.print(shown, highlight=False, markup=False, soft_wrap=True)

    @property
    def step(self) -> int:
        """Steps done."""
        return self._seen[-1][1] if self._seen else 0

    @property
    def remaining(self) -> float | None:
        """Real seconds left at the present rate; None while that is a guess."""
        rate = self._rate(1)
        return (self._steps - self.step) / rate if rate else None

    def _rate(self, what: int) -> float:
        """A second, over the window: 1 steps, 2 bytes sent."""
        if len(self._seen) < 2:
            return 0.0
        first, last = self._seen[0], self._seen[-1]
        span = last[0] - first[0]
        return (last[what] - first[what]) / span if span > 0 else 0.0

    def text(self) -> str:
        """Everything in one line."""
        if not self._seen:
            return self._gathered or "connecting"
        told = [f"{self._label}: step {self.step} of {self._steps}"]
        if self._loss is not None:
            told.append(f"loss {self._loss:.3g}")
        if self._accuracy is not None:
            told.append(f"{accuracy_words(self._accuracy)} test accuracy")
        rate = self._rate(1) * self._step_samples
        told.append(f"{rate:.{0 if rate >= 100 else 1}f} samples/s{self._whose}")
        told.append(f"rank 0 sends {size_words(self._rate(2))}/s")
        if self.remaining is not None:
            told.append(f"about {time_words(max(round(self.remaining), 1))} left")
        return ", ".join(told)

    def render(self) -> Group:
        """The display as it stands."""
        text = Text(plain(self.text(), self._console))
        if not self._seen:
            return Group(text)
        width = max(10, min(60, self._console.width - 2))
        return Group(ProgressBar(total=self._steps, completed=self.step, width=width), text)
