"""The run record: JSON lines, append-only, schema 1.

One file `record.jsonl` in a run folder holds one or more runs (a comparison has many). Each line is
one of the structs below, told apart by its `kind`; times are seconds on the run's own clock,
virtual or real. A reader must skip unknown kinds and fields. Fields are only ever added within a
schema.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

__all__ = ["SCHEMA", "End", "Eval", "Header", "Line", "Note", "Run", "Span", "Step"]

SCHEMA = 1


class Header(msgspec.Struct, tag_field="kind", tag="header", kw_only=True):
    """First line: what was asked for, and on what it ran.

    `command` is the command line, `settings` every setting in force, `cluster` the cluster as its
    TOML text, `versions` package to version, `machine` cores, memory, platform.
    """

    schema: int = SCHEMA
    created: str
    command: list[str]
    settings: dict[str, Any]
    cluster: str
    versions: dict[str, str]
    machine: dict[str, Any]


class Run(msgspec.Struct, tag_field="kind", tag="run", kw_only=True):
    """A run begins: `run` is its id in this file, `label` groups the seeds of one method.

    `mode` is "virtual" or "real"; `nodes` is the cluster node of each worker. `wire_model` says
    how the network was modelled ("fair", "queue"), empty on a real one. `predicted` is what was
    foreseen before it began, where it was asked for: `step_time` in seconds, `bytes_per_step` sent
    per worker, `waiting` as a share of the workers' time, 0..1.
    """

    run: str
    label: str
    method: str
    seed: int
    mode: str
    settings: dict[str, Any]
    nodes: list[str]
    num_params: int
    wire_model: str = ""
    predicted: dict[str, float] = {}


class Step(msgspec.Struct, tag_field="kind", tag="step", kw_only=True):
    """A worker's step: training loss, and the bytes it has sent so far."""

    run: str
    rank: int
    step: int
    time: float
    loss: float
    sent: int = 0
    values: dict[str, float] = {}


class Eval(msgspec.Struct, tag_field="kind", tag="eval", kw_only=True):
    """Test accuracy (0..1) and loss after `step` steps, `samples` training samples of the whole
    cluster and `sent` bytes of the evaluating endpoint's own sending."""

    run: str
    step: int
    time: float
    samples: int
    sent: int
    accuracy: float
    loss: float


class Span(msgspec.Struct, tag_field="kind", tag="span", kw_only=True):
    """What an endpoint did from `start` to `end`: `what` is "compute", "wait" or "send".

    `peer` is the other end (-1: anyone), `nbytes` a message's size. Kept for the first seed only,
    and only up to a limit.
    """

    run: str
    rank: int
    what: str
    start: float
    end: float
    peer: int = -1
    nbytes: int = 0


class Note(msgspec.Struct, tag_field="kind", tag="note", kw_only=True):
    """Something a reader should know: a warning, a peer that left."""

    run: str
    time: float
    text: str


class End(msgspec.Struct, tag_field="kind", tag="end", kw_only=True):
    """A run ended: `status` is "ok", "failed" or "interrupted", `error` says why.

    Lists are per worker: seconds waited and computed, bytes and messages sent; `server_sent` is
    the servers' bytes together. `phases` is where the time of each worker's program went: seconds
    by the names in `thinwire.phases.PHASES`, those without any left out. `digest` is the
    parameters' digest, equal on all ranks or not as `agree` says. `joules` is per node, empty where
    the cluster states no power. `interfaces` is, of a script's real run, the network interface used
    with the bytes that it sent and received meanwhile, of all programs, by the system's counters.

    A run that failed says what was known then: `failed_rank` is the rank it failed on (-1: none in
    particular), and the lists of a real run hold rank 0 alone, which couldn't ask the others.
    """

    run: str
    status: str
    time: float
    steps: int = 0
    samples: int = 0
    sent: list[int] = []
    messages: list[int] = []
    waited: list[float] = []
    computed: list[float] = []
    server_sent: int = 0
    digest: str = ""
    agree: bool = True
    joules: list[float] = []
    wall: float = 0.0
    error: str = ""
    failed_rank: int = -1
    phases: list[dict[str, float]] = []
    interfaces: list[tuple[str, int, int]] = []


Line: TypeAlias = Header | Run | Step | Eval | Span | Note | End
