"""A probe from the command line's words to its files."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from thinwire.errors import ThinwireError
from thinwire.run.probe.fit import fit
from thinwire.run.probe.report import Survey
from thinwire.run.probe.show import Gauge, show
from thinwire.run.probe.survey import Request, Watcher, survey
from thinwire.run.probe.write import check_target, commented, write_json, write_text

__all__ = ["Files", "layers_beside", "probe", "refusal_of"]


@dataclass(frozen=True, kw_only=True)
class Files:
    """Where what comes out is kept.

    Args:
        cluster: the cluster's TOML.
        layers: the layer times.
        json: all figures; None: nowhere.
        name: of the cluster.
    """

    cluster: Path
    layers: Path
    json: Path | None = None
    name: str = "measured"


def layers_beside(cluster: Path) -> Path:
    """Where layer times go that nobody has named a file for.

    >>> layers_beside(Path("lab.toml")).name
    'lab.layers.toml'
    """
    return cluster.with_name(f"{cluster.stem}.layers.toml")


def refusal_of(files: Files, force: bool) -> str:
    """Why this process could not keep what comes out; empty where it can, or need not."""
    if os.environ.get("RANK", "0") != "0":
        return ""
    targets = [("-o", files.cluster), ("--layers", files.layers)]
    targets += [("--json", files.json)] if files.json else []
    problems = [check_target(option, path, force) for option, path in targets]
    return next((problem for problem in problems if problem), "")


def probe(request: Request, files: Files) -> int:
    """Measure, and keep what comes out after every part of it.

    Args:
        request: what to measure.
        files: where to keep it, on rank 0.

    Returns:
        0, or 1 where something could not be measured.

    Raises:
        ThinwireError: nothing was measured, or see `survey`.
        KeyboardInterrupt: after what was measured has been kept.
    """
    gauge = Gauge()
    keeper = _Keeper(files, gauge)
    with _ended_by_signal():
        try:
            found = survey(request, keeper)
        except KeyboardInterrupt:
            gauge.stop()
            kept = f"is in {files.cluster}" if keeper.wrote else "is too little for a cluster"
            print(f"probe: interrupted; what was measured until now {kept}", flush=True)
            raise
        finally:
            gauge.stop()
    if found is None:
        return 0
    fitted = fit(found, files.name)  # again, for an error that the keeper has swallowed
    show(found, fitted)
    kept = f"written: {files.cluster}"
    print(kept + (f", {files.layers}" if fitted.layers else ""), flush=True)
    return int(bool(found.problems))


class _Keeper(Watcher):
    """Writes the files anew after each part."""

    def __init__(self, files: Files, gauge: Gauge):
        self._files = files
        self._gauge = gauge
        self.wrote = False

    def say(self, text: str, done: int, total: int) -> None:
        """See `Watcher`."""
        self._gauge.say(text, done, total)

    def keep(self, found: Survey) -> None:
        """See `Watcher`; nothing is written as long as no machine has been measured."""
        if self._files.json is not None:
            write_json(found, self._files.json)
        try:
            fitted = fit(found, self._files.name)
        except ThinwireError:
            return
        write_text(self._files.cluster, commented(fitted))
        if fitted.layers is not None:
            write_text(self._files.layers, fitted.layers.to_toml())
        self.wrote = True


@contextlib.contextmanager
def _ended_by_signal() -> Iterator[None]:
    """A launcher ends its processes by SIGTERM: what was measured is to be kept then, too."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
