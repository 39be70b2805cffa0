"""What a real run shows while it goes on: who has come, then how far it is and how fast.

On a terminal a bar with the figures below it; elsewhere one plain line every few seconds.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TypeAlias

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from thinwire.report.record import End, Eval, Line, Step
from thinwire.report.screen import redrawn
from thinwire.report.table import plain
from thinwire.report.words import accuracy_words, percent_words, size_words, time_words

__all__ = ["RunView"]

_WINDOW = 15.0
"""Seconds over which rates are taken."""

_TICK = 0.25
_MOST = 3

Progress: TypeAlias = tuple[int, int, Mapping[str, float]]
"""A step, bytes sent, seconds by phase."""


class RunView:
    """A progress display of one real run, for the process of rank 0; a context manager.

    Args:
        label: the method.
        steps: of the whole run; None where nobody knows.
        step_samples: training samples of one step; 0 where nobody knows.
        whose: "" if those are the samples of all ranks, else whose they are.
        console: where to show; None is the error stream.
        interval: seconds between plain lines.
        clock: real seconds; replaced in tests.

    Attributes:
        step_samples: as given; to be set when it becomes known.
    """

    def __init__(
        self,
        label: str,
        steps: int | None,
        step_samples: int,
        *,
        whose: str = "",
        console: Console | None = None,
        interval: float = 3.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._label = label
        self._steps = steps
        self.step_samples = step_samples
        self._whose = f" ({whose})" if whose else ""
        self._console = console if console is not None else Console(stderr=True)
        self._interval = interval
        self._clock = clock
        self._told = clock()
        self._gathered = ""
        self._look: Callable[[], Progress] | None = None
        self._seen: deque[tuple[float, int, int]] = deque()
        self._phases: deque[Mapping[str, float]] = deque()
        self._loss = math.nan
        self._accuracy: float | None = None
        self._live: Live | None = None
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._run, name="thinwire-progress", daemon=True)

    def __enter__(self) -> RunView:
        self._told = self._clock()
        self._live = redrawn(self._console, self.render)
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

    def begin(self, look: Callable[[], Progress]) -> None:
        """The training begins.

        Args:
            look: the step that rank 0 is at, counted from 1, the bytes it has sent, and its seconds
                by phase; called from another thread.
        """
        self._seen.append((self._clock(), 0, 0))
        self._phases.append({})
        self._look = look

    def feed(self, line: Line) -> None:
        """Take note of a line of the record."""
        if isinstance(line, Step):
            self._loss = self._loss if math.isnan(line.loss) else line.loss
        elif isinstance(line, Eval):
            self._accuracy = line.accuracy
        elif isinstance(line, End):
            self._look = None
            if self._live is None and (line.status != "ok" or self._steps is not None):
                self._print(self._ended(line))

    def tell(self, text: str) -> None:
        """Show a line of its own."""
        self._print(text)

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
            step, sent, phases = self._look()
            self._seen.append((self._clock(), max(step - 1, 0), sent))
            self._phases.append(phases)
            while self._seen[-1][0] - self._seen[1][0] > _WINDOW:
                self._seen.popleft()
                self._phases.popleft()
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
        if self._steps is None:
            return None
        rate = self._rate(1)
        return (self._steps - self.step) / rate if rate else None

    def _rate(self, what: int) -> float:
        """A second, over the window: 1 steps, 2 bytes sent."""
        if len(self._seen) < 2:
            return 0.0
        first, last = self._seen[0], self._seen[-1]
        span = last[0] - first[0]
        return (last[what] - first[what]) / span if span > 0 else 0.0

    def _shares(self) -> list[str]:
        """The phases that rank 0 spent most of the window in, the largest first."""
        if len(self._phases) < 2:
            return []
        first, last = self._phases[0], self._phases[-1]
        spent = {name: max(took - first.get(name, 0.0), 0.0) for name, took in last.items()}
        total = sum(spent.values())
        most = sorted(spent, key=lambda name: -spent[name])[:_MOST]
        shares = [(name, spent[name] / total) for name in most if total]
        return [f"{percent_words(share)} {name}" for name, share in shares if share >= 0.01]

    def text(self) -> str:
        """Everything in one line."""
        if not self._seen:
            return self._gathered or "connecting"
        of = "" if self._steps is None else f" of {self._steps}"
        told = [f"{self._label}: step {self.step}{of}"]
        if not math.isnan(self._loss):
            told.append(f"loss {self._loss:.3g}")
        if self._accuracy is not None:
            told.append(f"{accuracy_words(self._accuracy)} test accuracy")
        rate = self._rate(1) * (self.step_samples or 1)
        what = "samples/s" if self.step_samples else "steps/s"
        told.append(f"{rate:.{0 if rate >= 100 else 1}f} {what}{self._whose}")
        told.append(f"rank 0 sends {size_words(self._rate(2))}/s")
        if shares := self._shares():
            told.append(f"its time: {' + '.join(shares)}")
        if self.remaining is not None:
            told.append(f"about {time_words(max(round(self.remaining), 1))} left")
        return ", ".join(told)

    def render(self) -> Group:
        """The display as it stands."""
        text = Text(plain(self.text(), self._console))
        if not self._seen or self._steps is None:
            return Group(text)
        width = max(10, min(60, self._console.width - 2))
        return Group(ProgressBar(total=self._steps, completed=self.step, width=width), text)
