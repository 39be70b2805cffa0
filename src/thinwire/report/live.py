"""What a comparison shows while it runs, driven by the lines of its record.

On a terminal: an overall bar with the time left, and a line per method with its seeds, its accuracy
and its clock. Elsewhere (a pipe, a log file): one plain line every few seconds and one at each end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from thinwire.report.record import End, Eval, Line, Run, Step
from thinwire.report.screen import redrawn
from thinwire.report.table import plain
from thinwire.report.words import accuracy_words, time_words

__all__ = ["LiveView"]

_MARKS = {"waiting": "·", "running": "◌", "ok": "●", "failed": "✗", "interrupted": "–"}
_ASCII_MARKS = {"waiting": ".", "running": "o", "ok": "#", "failed": "x", "interrupted": "-"}


class _Seen:
    """One run as far as its lines have come."""

    def __init__(self, start: Run):
        self.start = start
        self.status = "running"
        self.step = 0
        self.time = 0.0
        self.accuracy: float | None = None


class LiveView:
    """A progress display; use it as a context manager and feed it every line as it is written.

    Args:
        total_runs: how many runs are to come.
        console: where to show; None is the error stream, which leaves a pipe to the results.
        num_steps: label to the steps of one run, where known; else the steps of a method's first
            finished run stand for its next ones.
        labels: the methods to come, in their order, so that they are listed from the beginning.
        interval: seconds between plain lines.
        clock: real seconds; replaced in tests.
    """

    def __init__(
        self,
        total_runs: int,
        *,
        console: Console | None = None,
        num_steps: dict[str, int] | None = None,
        labels: Iterable[str] = (),
        interval: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._total = max(total_runs, 1)
        self._console = console if console is not None else Console(stderr=True)
        self._steps = dict(num_steps or {})
        self._runs: dict[str, _Seen] = {}
        self._labels = list(dict.fromkeys(labels))
        self._interval = interval
        self._clock = clock
        self._began = clock()
        self._told = self._began
        self._live: Live | None = None

    def __enter__(self) -> LiveView:
        self._began = self._told = self._clock()
        self._live = redrawn(self._console, self.render)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    @property
    def share(self) -> float:
        """How much of everything is done, 0..1."""
        done = sum(self._share_of(run) for run in self._seen())
        return min(done / self._total, 1.0)

    @property
    def remaining(self) -> float | None:
        """Real seconds left if things go on as so far; None while that is a guess."""
        elapsed = self._clock() - self._began
        if self.share < 0.02 or elapsed <= 0:
            return None
        return elapsed * (1 - self.share) / self.share

    def feed(self, line: Line) -> None:
        """Take note of one line of the record; shows it at once, or with the next refresh."""
        if isinstance(line, Run):
            self._runs[line.run] = _Seen(line)
            if line.label not in self._labels:
                self._labels.append(line.label)
        elif isinstance(line, Step | Eval | End):
            seen = self._runs.get(line.run)
            if seen is not None:
                self._note(seen, line)
        if self._live is None:
            self._tell_plainly()

    def feed_all(self, lines: Iterable[Line]) -> None:
        """Take note of many lines; with none, only what is due by the clock is shown."""
        for line in lines:
            self.feed(line)
        if self._live is None:
            self._tell_plainly()

    def _note(self, seen: _Seen, line: Step | Eval | End) -> None:
        seen.time = max(seen.time, line.time)
        if isinstance(line, End):
            seen.status = line.status
            seen.step = line.steps or seen.step
            if line.status == "ok":
                self._steps.setdefault(seen.start.label, seen.step)
            if self._live is None:
                self._print(self._ended(seen, line))
        else:
            seen.step = max(seen.step, line.step)
            if isinstance(line, Eval):
                seen.accuracy = line.accuracy

    def _seen(self) -> list[_Seen]:
        """A copy: the display is drawn by a thread of its own while lines are fed."""
        return list(self._runs.values())

    def _share_of(self, run: _Seen) -> float:
        if run.status != "running":
            return 1.0
        steps = self._steps.get(run.start.label)
        return min(run.step / steps, 0.99) if steps else 0.0

    def _ended(self, seen: _Seen, end: End) -> str:
        name = f"{seen.start.label}, seed {seen.start.seed}"
        if end.status != "ok":
            return f"{name}: {end.status}{': ' if end.error else ''}{end.error}"
        return (
            f"{name}: {accuracy_words(seen.accuracy)} test accuracy after "
            f"{time_words(end.time)} ({seen.start.mode}); took {time_words(end.wall)}"
        )

    def _tell_plainly(self) -> None:
        now = self._clock()
        if now - self._told < self._interval:
            return
        running = [
            f"{run.start.label} seed {run.start.seed} step {run.step} "
            f"{accuracy_words(run.accuracy)}"
            for run in self._seen()
            if run.status == "running"
        ]
        self._print(f"{self._headline()}; {', '.join(running) or 'nothing running'}")

    def _print(self, text: str) -> None:
        self._told = self._clock()
        shown = plain(text, self._console)
        self._console.print(shown, highlight=False, markup=False, soft_wrap=True)

    def _headline(self) -> str:
        ended = sum(run.status != "running" for run in self._seen())
        left = self.remaining
        about = "" if left is None else f", about {time_words(max(round(left), 1))} left"
        return f"{ended} of {self._total} runs, {self.share * 100:.0f} %{about}"

    def render(self) -> Group:
        """The display as it stands."""
        bar = Table.grid(padding=(0, 1))
        width = max(10, min(40, self._console.width - 44))
        bar.add_row(
            ProgressBar(total=1.0, completed=self.share, width=width),
            Text(plain(self._headline(), self._console)),
        )
        table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
        table.add_column("method", no_wrap=True)
        table.add_column("seeds", no_wrap=True)
        for title in ("step", "test accuracy", "clock"):
            table.add_column(title, justify="right", no_wrap=True)
        for label in self._labels:
            table.add_row(*self._row(label))
        return Group(bar, table)

    def _row(self, label: str) -> list[Text]:
        runs = [run for run in self._seen() if run.start.label == label]
        runs.sort(key=lambda run: run.start.seed)
        per_label = max(round(self._total / max(len(self._labels), 1)), len(runs))
        unicode = plain("●", self._console) == "●"
        marks = _MARKS if unicode else _ASCII_MARKS
        dots = Text()
        for run in runs:
            style = {"ok": "green", "failed": "red"}.get(run.status, "cyan")
            dots.append(marks.get(run.status, "?"), style)
        dots.append(marks["waiting"] * (per_label - len(runs)), "dim")
        # What runs now is shown; once all have ended, the last of them.
        now = next((run for run in runs if run.status == "running"), runs[-1] if runs else None)
        if now is None:
            return [Text(label, "dim"), dots, Text(""), Text(""), Text("")]
        steps = self._steps.get(label)
        step = f"{now.step}/{steps}" if steps and now.status == "running" else str(now.step)
        busy = "bold" if now.status == "running" else ""
        cells = [step, accuracy_words(now.accuracy), time_words(now.time)]
        return [
            Text(label, busy),
            dots,
            *(Text(plain(cell, self._console), busy) for cell in cells),
        ]
