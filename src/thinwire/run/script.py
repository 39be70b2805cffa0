"""A user's own script on the virtual cluster: `thinwire run --cluster office train.py`.

Starts a process for each worker, serves their clock, labels what they print, writes the record, and
leaves no process behind.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from thinwire.cluster import Cluster, cluster_to_toml, load_cluster
from thinwire.errors import InputError, ThinwireError
from thinwire.report import End, Recorder
from thinwire.report.record import Eval, Line, Note, Run, Span, Step
from thinwire.run._processes import Processes
from thinwire.run.compare import header
from thinwire.run.folders import claim_folder, refuse_used
from thinwire.units import format_size, format_time
from thinwire.wire.virtual import LinkModel
from thinwire.wire.virtual.clock_server import ClockServer, Logged

__all__ = ["Scripting", "run_script"]

MAX_SPANS = 6000


@dataclass(frozen=True, kw_only=True)
class Scripting:
    """A script on the virtual cluster.

    Args:
        cluster: a preset or TOML file; rank r is its node r.
        script: a Python file.
        arguments: the script's own.
        workers: use the cluster's first nodes only; 0 is all.
        link_model: of the network.
        seed: of the cluster's jitter; the script's own seeds are its own.
        warn_after: see `ClockServer`.
        deadline: see `ClockServer`.
        out: run folder; None is a new one under `runs`.
    """

    cluster: str
    script: Path
    arguments: tuple[str, ...] = ()
    workers: int = 0
    link_model: str = "fair"
    seed: int = 0
    warn_after: float = 10.0
    deadline: float = 1800.0
    out: Path | None = None


def run_script(request: Scripting) -> ClockServer:
    """Run it to its end.

    Returns:
        The clock server, with what it counted.

    Raises:
        InputError: no such script, or a cluster that is too small.
        ThinwireError: a rank failed; all processes have ended.
    """
    cluster = _cluster(request)
    refuse_used(request.out)
    folder = claim_folder(request.out, "run")
    command = [str(request.script), *request.arguments]
    with Recorder(folder) as recorder, Processes(command, cluster.size, folder) as processes:
        settings = {
            "verb": "run",
            "script": str(request.script),
            "arguments": list(request.arguments),
            "link_model": request.link_model,
            "seed": request.seed,
        }
        recorder.write(header(settings, cluster_to_toml(cluster)))
        server = ClockServer(
            cluster,
            processes.lines,
            ended=processes.how_ended,
            warn=processes.say,
            link_model=cast(LinkModel, request.link_model),
            seed=request.seed,
            trace=True,
            max_spans=MAX_SPANS,
            warn_after=request.warn_after,
            deadline=request.deadline,
        )
        with _recorded(recorder, request, cluster, server), _pointed_to(processes, folder):
            server.run()
            processes.join()
    _summarize(server, folder)
    return server


def _cluster(request: Scripting) -> Cluster:
    if not request.script.is_file():
        raise InputError(f"script {str(request.script)!r}: there is no such file")
    if request.link_model not in ("fair", "queue"):
        raise InputError(f"--link-model {request.link_model!r}; valid: fair, queue")
    cluster = load_cluster(request.cluster)
    if not 0 <= request.workers <= cluster.size:
        raise InputError(
            f"--workers {request.workers}: cluster {cluster.name!r} has {cluster.size} nodes"
        )
    return cluster.select(range(request.workers or cluster.size))


@contextlib.contextmanager
def _pointed_to(processes: Processes, folder: Path) -> Iterator[None]:
    try:
        yield
    except ThinwireError:
        processes.say(f"what each rank printed is in {folder}")
        raise


# The record.


@contextlib.contextmanager
def _recorded(
    recorder: Recorder, request: Scripting, cluster: Cluster, server: ClockServer
) -> Iterator[None]:
    """Write the run's lines, however it ends."""
    began = time.perf_counter()
    status, text = "ok", ""
    try:
        yield
    except BaseException as error:
        status = "failed" if isinstance(error, Exception) else "interrupted"
        text = str(error) or type(error).__name__
        raise
    finally:
        run = str(request.seed)
        recorder.write(_run_line(run, request, cluster, server))
        recorder.write_many(_logged(run, server.logged))
        spans = server.spans[:MAX_SPANS]
        recorder.write_many(
            Span(run=run, rank=rank, what=what, start=start / 1e9, end=end / 1e9, peer=peer,
                 nbytes=nbytes)
            for rank, what, start, end, peer, nbytes in spans
        )  # fmt: skip
        if len(spans) == MAX_SPANS:
            note = f"the timeline has the first {MAX_SPANS} spans"
            recorder.write(Note(run=run, time=spans[-1][3] / 1e9, text=note))
        workers = server.meters[: server.size]
        recorder.write(
            End(
                run=run,
                status=status,
                time=server.elapsed,
                steps=server.steps,
                sent=[m.sent for m in workers],
                messages=[m.messages_sent for m in workers],
                waited=[m.waited for m in workers],
                computed=[m.computed for m in workers],
                server_sent=sum(m.sent for m in server.meters[server.size :]),
                digest=server.digests[0] if server.digests else "",
                agree=len(set(server.digests)) <= 1,
                wall=time.perf_counter() - began,
                error=text,
            )
        )


def _logged(run: str, logged: Sequence[Logged]) -> Iterator[Line]:
    """What the script has logged."""
    last = Logged("measure", 0, 0.0, 0, 0.0, {})
    for each in logged:
        values = dict(each.values)
        loss = values.pop("loss", math.nan)
        if each.kind == "evaluation":
            yield Eval(
                run=run,
                step=each.step,
                time=each.time,
                samples=int(values["samples"]),
                sent=each.sent,
                accuracy=values["accuracy"],
                loss=loss,
            )
            continue
        elapsed, steps = each.time - last.time, each.step - last.step
        if elapsed > 0 and steps > 0:
            values["step_time"] = elapsed / steps
            values["wait_share"] = (each.waited - last.waited) / elapsed
        last = each
        yield Step(
            run=run, rank=0, step=each.step, time=each.time, loss=loss, sent=each.sent,
            values=values,
        )  # fmt: skip


def _run_line(run: str, request: Scripting, cluster: Cluster, server: ClockServer) -> Run:
    return Run(
        run=run,
        label=request.script.stem,
        method=str(server.about.get("method", "")),
        seed=request.seed,
        mode="virtual",
        settings={"script": str(request.script), "arguments": list(request.arguments)},
        nodes=[node.name for node in cluster.nodes],
        num_params=int(server.about.get("num_params", 0)),
        wire_model=request.link_model,
    )


def _summarize(server: ClockServer, folder: Path) -> None:
    meters = server.meters[: server.size]
    sent = sum(m.sent for m in meters) / max(1, len(meters))
    waited = sum(m.waited for m in meters) / max(1, len(meters))
    share = waited / server.elapsed if server.elapsed else 0.0
    print(
        f"{server.size} ranks, {server.steps} steps, virtual time {format_time(server.elapsed)}: "
        f"{format_size(sent)} sent and {share:.0%} of the time waited per rank.\n"
        f"Record and output of each rank: {folder}"
    )
