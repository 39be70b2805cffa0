"""The virtual cluster: every program a fibre in this process, time from the cluster description.

A world runs one program per endpoint to its end. Nothing in it depends on the machine it runs on:
events are ordered by (time, serial number), so two runs are identical in every number.
"""

from __future__ import annotations

import contextlib
import gc
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np

from thinwire.cluster import Cluster
from thinwire.errors import (
    DeadlockError,
    InputError,
    NonFiniteError,
    PeerDiedError,
    ThinwireError,
    WorkerFailedError,
)
from thinwire.fibers import Fiber, FiberExit
from thinwire.seeds import seed_for
from thinwire.wire.base import ANY, Arrival, Comm, Losses
from thinwire.wire.faults import FaultPlan, InjectedCrash
from thinwire.wire.virtual.clock import NS, Clock, to_ns
from thinwire.wire.virtual.comm import VirtualComm
from thinwire.wire.virtual.compute import Processor
from thinwire.wire.virtual.endpoint import Endpoint, Waiter, died_error
from thinwire.wire.virtual.network import Deliver, FairNetwork, Message, Network, QueueNetwork

__all__ = ["DETECTION", "LinkModel", "World"]

LinkModel: TypeAlias = Literal["fair", "queue"]
Program: TypeAlias = Callable[[Comm], Any]

NETWORKS: dict[str, Callable[[Clock, Cluster, Deliver, int], Network]] = {
    "fair": FairNetwork,
    "queue": QueueNetwork,
}

DETECTION = 1.0
"""Seconds until the others notice that an endpoint has died."""


class World:
    """A cluster with programs on it.

    Args:
        cluster: nodes, links and their changes over time.
        placement: the node of each worker; by default worker r runs on node r.
        num_servers: servers; they are co-located with worker 0 unless `server_nodes` says else.
        server_nodes: the node of each server.
        link_model: `fair` or `queue`, see `wire/virtual/network.py`.
        losses: `strict` or `elastic`, see `wire/base.py`.
        faults: what goes wrong and when.
        seed: of jitter.
        trace: keep spans (who computed, waited, sent when) in `spans`.
        charge_headers: whether packet headers take time and count as bytes; switched off only to
            compare with formulas that know no headers.

    Attributes:
        spans: (rank, "compute"|"wait"|"send", start ns, end ns, peer, bytes), if traced.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        placement: Sequence[int] | None = None,
        num_servers: int = 0,
        server_nodes: Sequence[int] | None = None,
        link_model: LinkModel = "fair",
        losses: Losses = "strict",
        faults: FaultPlan | None = None,
        seed: int = 0,
        trace: bool = False,
        charge_headers: bool = True,
    ):
        workers = list(range(len(cluster.nodes)) if placement is None else placement)
        servers = workers[:1] * num_servers if server_nodes is None else list(server_nodes)
        _check_world(cluster, workers + servers, num_servers, servers, link_model)
        self.cluster = cluster
        self.size = len(workers)
        self.num_servers = num_servers
        self.losses: Losses = losses
        self.faults = faults
        self.charge_headers = charge_headers
        self.clock = Clock()
        self.network = NETWORKS[link_model](
            self.clock, cluster, self._deliver, seed_for(seed, "latency")
        )
        self.processors = [
            Processor(self.clock, node, np.random.default_rng(seed_for(seed, "jitter", i)))
            for i, node in enumerate(cluster.nodes)
        ]
        self.endpoints = [Endpoint(r, node) for r, node in enumerate(workers + servers)]
        self.task_keys: list[dict[str, None]] = [{} for _ in self.endpoints]
        self.spans: list[tuple[int, str, int, int, int, int]] | None = [] if trace else None
        self.meetings: dict[str | None, dict[Any, Any]] = {}
        self._programs: dict[VirtualComm, Fiber] = {}
        self._known_dead: PeerDiedError | None = None
        self.anyone_gone = False

    @property
    def elapsed(self) -> float:
        """Virtual seconds so far."""
        return self.clock.now / NS

    def name(self, rank: int) -> str:
        """How messages call an endpoint."""
        return f"rank {rank}" if rank < self.size else f"server {rank - self.size}"

    def run(self, program: Program, server: Program | None = None) -> list[Any]:
        """Run `program(comm)` on each worker, `server(comm)` on each server, to their ends.

        Returns:
            What each program returned, by endpoint; None for one that crashed (elastic losses).

        Raises:
            WorkerFailedError: a program raised; the cause is chained.
            DeadlockError: programs wait and nothing can happen any more.
            PeerDiedError: an endpoint crashed under strict losses.
        """
        results: list[Any] = [None] * len(self.endpoints)
        for endpoint in self.endpoints:
            chosen = program if endpoint.rank < self.size else server
            if chosen is None:
                raise InputError("the world has servers but no server program was given")
            comm = VirtualComm(self, endpoint)
            self.launch(comm, _store(results, endpoint.rank, chosen, comm))
        gc.freeze()  # or each full collection walks through all that torch has ever made
        try:
            self.clock.run()
            if self._programs:
                raise DeadlockError(self._describe(list(self._programs)))
        finally:
            gc.unfreeze()
            self.clock.clear()
            for fiber in self._programs.values():
                fiber.kill()
            self._programs.clear()
        return results

    def launch(self, comm: VirtualComm, program: Callable[[], None]) -> None:
        """Begin a program at the present virtual time."""
        fiber = Fiber(program)
        comm.resume = partial(self._resume, comm, fiber)
        comm.endpoint.programs += 1
        self._programs[comm] = fiber
        self.clock.at(self.clock.now, comm.resume, None)

    def running(self) -> VirtualComm | None:
        """The comm of the program that runs now, None between programs."""
        return next((comm for comm, fiber in self._programs.items() if fiber.running), None)

    def _resume(self, comm: VirtualComm, fiber: Fiber, value: Any) -> None:
        if comm not in self._programs:
            return  # ended with its endpoint's crash, while something was on its way to it
        try:
            fiber.resume(value)
        except InjectedCrash as crash:
            self._died(comm, str(crash))
        except Exception as error:
            raise self._failure(comm, error) from error
        if not fiber.alive:
            del self._programs[comm]
            self._ended(comm.endpoint)

    def _failure(self, comm: VirtualComm, error: Exception) -> ThinwireError:
        if self._known_dead is not None and isinstance(error, PeerDiedError):
            return self._known_dead
        if isinstance(error, WorkerFailedError):
            return error
        where = f"{self.name(comm.rank)}, step {comm.step}, virtual time {self.elapsed:.6f} s"
        if isinstance(error, NonFiniteError):  # a replica's says where by itself
            text = str(error)
            return WorkerFailedError(
                comm.rank, text if text.startswith("rank ") else f"{where}: {text}"
            )
        return WorkerFailedError(comm.rank, f"{where}: {type(error).__name__}: {error}")

    def transmit(self, message: Message) -> None:
        """Put a posted packet on the network now."""
        src, target, nbytes = message.src, message.dst, message.nbytes
        delay: float | None = 0.0
        if self.faults is not None:
            delay = self.faults.on_post(src.rank, target.rank, message.tag, nbytes, self.elapsed)
        if src.gone == "died" or (target.gone and self.losses == "elastic"):
            message.mark_left()
            return
        counter = src.meter.local if src.node == target.node else src.meter.peers[target.rank]
        counter.sent += nbytes
        counter.messages_sent += 1
        if delay is None:
            message.mark_left()
            return
        src.in_flight += 1
        message.began = now = self.clock.now
        if delay:
            self.clock.at(now + to_ns(delay), self.network.send, message)
        else:
            self.network.send(message)

    def transmit_held(self, message: Message) -> None:
        """Put a packet on the network that was held back, and counted as in flight, until now."""
        src = message.src
        src.in_flight -= 1
        self.transmit(message)
        if src.gone == "finished" and src.in_flight == 0:
            self._announce(src)

    def _deliver(self, message: Message) -> None:
        src, dst, tag = message.src, message.dst, message.tag
        now, nbytes = self.clock.now, message.nbytes
        src.in_flight -= 1
        if self.spans is not None:
            self.spans.append((src.rank, "send", message.began, now, dst.rank, nbytes))
        if dst.gone:
            return
        counter = dst.meter.local if src.node == dst.node else dst.meter.peers[src.rank]
        counter.received += nbytes
        counter.messages_received += 1
        arrival = Arrival(src.rank, tag, message.packet, now / NS)
        waiter = dst.waiters.get(tag)
        if waiter is not None and waiter.src in (ANY, src.rank):
            del dst.waiters[tag]
            waiter.resume(arrival)
        else:
            box = dst.boxes.get(tag)
            if box is None:
                box = dst.boxes[tag] = deque()
            box.append(arrival)
        if src.gone == "finished" and src.in_flight == 0:
            self._announce(src)

    # Endings: a goodbye, a crash, and who is told.

    def departed(self, rank: int) -> bool:
        """Whether nothing more can come from `rank`."""
        endpoint = self.endpoints[rank]
        known = endpoint.gone == "finished" or endpoint.missed
        return known and endpoint.in_flight == 0

    def check_losses(self, rank: int) -> None:
        """Raise what a wait of `rank` must raise because a peer has died."""
        if self._known_dead is not None and self._known_dead.rank != rank:
            raise self._known_dead

    def _ended(self, endpoint: Endpoint) -> None:
        endpoint.programs -= 1
        if endpoint.programs == 0 and not endpoint.gone:
            endpoint.gone = "finished"
            self.anyone_gone = True
            if endpoint.in_flight == 0:
                self._announce(endpoint)

    def _died(self, comm: VirtualComm, why: str) -> None:
        endpoint = comm.endpoint
        endpoint.gone = "died"
        self.anyone_gone = True
        for other in [c for c in self._programs if c.endpoint is endpoint and c is not comm]:
            self._programs.pop(other).kill()
        self.clock.at(self.clock.now + to_ns(DETECTION), self._notice, endpoint, why)

    def _notice(self, dead: Endpoint, why: str) -> None:
        dead.missed = True
        if self.losses == "elastic":
            self._announce(dead)
            return
        self._known_dead = died_error(dead, self.name(dead.rank), why)
        waiters = [w for e in self.endpoints for w in e.waiters.values() if e is not dead]
        for endpoint in self.endpoints:
            endpoint.waiters.clear()
        for waiter in waiters:
            with contextlib.suppress(PeerDiedError):
                waiter.resume(self._known_dead)  # its last chance to save something
        raise self._known_dead

    def _announce(self, gone: Endpoint) -> None:
        """Tell whoever waits for `gone` that nothing more will come."""
        if self.losses == "elastic":
            for endpoint in self.endpoints:
                if endpoint is not gone and not endpoint.gone:
                    endpoint.departures.append(gone.rank)
        for comm in list(self._programs):
            endpoint = comm.endpoint
            if comm.waiting is not None and endpoint is not gone and not endpoint.gone:
                self._tell(endpoint, comm.waiting, gone)

    def _tell(self, endpoint: Endpoint, waiter: Waiter, gone: Endpoint) -> None:
        if endpoint.waiters.get(waiter.tag) is not waiter or waiter.src not in (ANY, gone.rank):
            return
        outcome: Any
        if self.losses == "elastic":
            if waiter.src == ANY:
                endpoint.departures.remove(gone.rank)
            outcome = Arrival(gone.rank, waiter.tag, None, self.elapsed)
        elif waiter.src != ANY or all(
            self.departed(e.rank) for e in self.endpoints if e is not endpoint
        ):
            outcome = waiter.comm.finished_error(waiter.src, waiter.tag)
        else:
            return
        del endpoint.waiters[waiter.tag]
        waiter.resume(outcome)

    def _describe(self, stuck: list[VirtualComm]) -> str:
        lines = [f"deadlock at virtual time {self.elapsed:.6f} s: no message is on its way and"]
        for comm in stuck:
            assert comm.waiting is not None
            src, tag = comm.waiting.src, comm.waiting.tag
            whom = "anyone" if src == ANY else self.name(src)
            lines.append(
                f"  {self.name(comm.rank)} waits for {whom} (tag {tag!r}, step {comm.step})"
            )
        return "\n".join(lines)


def _store(
    results: list[Any], rank: int, program: Program, comm: VirtualComm
) -> Callable[[], None]:
    def run() -> None:
        with contextlib.suppress(FiberExit):
            try:
                results[rank] = program(comm)
            finally:
                comm.settle()  # also where it has failed: its time is part of the message

    return run


def _check_world(
    cluster: Cluster, nodes: list[int], num_servers: int, servers: list[int], link_model: str
) -> None:
    if not nodes:
        raise InputError("a world needs at least one worker")
    for node in nodes:
        if not 0 <= node < len(cluster.nodes):
            raise InputError(
                f"placement on node {node}: cluster {cluster.name!r} has nodes "
                f"0..{len(cluster.nodes) - 1}"
            )
    if len(servers) != num_servers:
        raise InputError(f"{num_servers} servers but {len(servers)} server nodes")
    if link_model not in NETWORKS:
        raise InputError(f"link_model = {link_model!r}; valid: {', '.join(NETWORKS)}")
