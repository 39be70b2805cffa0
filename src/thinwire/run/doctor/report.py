"""What the doctor hands on: facts of each rank, measurements of each pair, findings."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

__all__ = [
    "Examination",
    "Facts",
    "Finding",
    "Interface",
    "Level",
    "Lookup",
    "MeterState",
    "Pair",
    "StepTime",
]

SCHEMA = 1
Level: TypeAlias = Literal["fix", "look", "note"]


class Interface(msgspec.Struct, kw_only=True, frozen=True):
    """The network interface a rank would use.

    Attributes:
        name: such as eth0; empty where it could not be told.
        address: empty where none could be chosen, and `problem` says why.
        speed: bytes per second as the driver states it, 0 where it does not.
        mtu: bytes, 0 where unknown.
        kind: "wire", "radio", "virtual" or "loopback".
        others: name and address of the other interfaces here.
    """

    name: str = ""
    address: str = ""
    problem: str = ""
    speed: float = 0.0
    mtu: int = 0
    kind: str = "wire"
    others: list[str] = []


class Lookup(msgspec.Struct, kw_only=True, frozen=True):
    """A host name and what it resolves to on a rank."""

    name: str
    addresses: list[str] = []
    problem: str = ""


class MeterState(msgspec.Struct, kw_only=True, frozen=True):
    """Whether a meter can be read, and what it said or why not."""

    name: str
    readable: bool
    detail: str
    todo: str = ""


class StepTime(msgspec.Struct, kw_only=True, frozen=True):
    """Seconds of a training step: median, fastest and slowest of `count`; `problem` if none."""

    what: str
    median: float = 0.0
    fastest: float = 0.0
    slowest: float = 0.0
    count: int = 0
    num_params: int = 0
    problem: str = ""


class Facts(msgspec.Struct, kw_only=True, frozen=True):
    """What a rank says of itself and its machine. Sizes in bytes.

    Attributes:
        host: equal for processes that share a loopback.
        versions: of python, torch, thinwire, numpy.
        cores: that this process may use.
        threads: that torch would use in this process.
        load: average number of runnable processes over a minute, before the examination.
        ports: the range from which the system gives listening ports.
        master_port: None where it is as it should be, else what is wrong with it.
        memory_total: of the machine or its container.
        shared_memory: size of /dev/shm, 0 where there is none.
        model_problem: why the model of the step time cannot be had.
    """

    rank: int
    size: int
    hostname: str
    host: str
    pid: int
    versions: dict[str, str]
    byte_order: str
    interface: Interface
    own_name: Lookup
    master_name: Lookup | None
    cores: int
    threads: int
    load: float
    ports: str
    port_problem: str
    memory_total: int
    memory_available: int
    shared_memory: int
    gpus: list[str]
    meters: list[MeterState]
    model_problem: str = ""


class Pair(msgspec.Struct, kw_only=True, frozen=True):
    """Two ranks and the wire between them; `high` dialled, as in a run.

    Attributes:
        round_trip: seconds of a small message and its answer, the quickest of several.
        up: bytes per second from `high` to `low`.
        down: bytes per second from `low` to `high`.
        clock_offset: seconds by which `low`'s clock is ahead of `high`'s, within half a round trip.
        problem: empty, or what did not work; numbers measured until then are kept.
    """

    low: int
    high: int
    round_trip: float = 0.0
    up: float = 0.0
    down: float = 0.0
    clock_offset: float = 0.0
    problem: str = ""


class Finding(msgspec.Struct, kw_only=True, frozen=True):
    """One thing found: "fix" before a run, "look" at it, or a "note".

    Attributes:
        what: it is, naming ranks and hosts where `where` does not.
        where: the machines it was found on, if each has it by itself.
        why: it matters.
        todo: what to do about it; empty for most notes.
    """

    level: Level
    topic: str
    what: str
    why: str = ""
    todo: str = ""
    where: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Where and what."""
        return f"{', '.join(self.where)}: {self.what}" if self.where else self.what


class Examination(msgspec.Struct, kw_only=True):
    """Everything rank 0 knows at the end.

    Attributes:
        ranks: of those that came, in order.
        absent: ranks that never came.
        pairs: in the order measured.
        at_once: several pairs were measured at the same time.
        steps: by rank; a rank that came and gave none is missing.
    """

    schema: int = SCHEMA
    size: int = 1
    ranks: list[Facts] = []
    absent: list[int] = []
    pairs: list[Pair] = []
    at_once: bool = False
    steps: dict[int, StepTime] = {}
    findings: list[Finding] = []

    @property
    def exit_code(self) -> int:
        """1 where something must be fixed, else 0."""
        return int(any(finding.level == "fix" for finding in self.findings))
