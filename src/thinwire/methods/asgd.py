"""Asynchronous SGD with a parameter server."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from thinwire.methods.base import Method, Paper, Traits
from thinwire.wire.base import ANY
from thinwire.worker import Server, Worker

__all__ = ["ASGD"]


@dataclass(frozen=True, kw_only=True)
class ASGD(Method):
    """Each worker sends its gradient to the server and goes on with what comes back.

    Nobody waits for anybody: slow machines contribute less. Traffic per worker and step: m values
    up and m down; all of it crosses the server's link. Staleness: the updates of others between a
    worker's pull and its push, P−1 on average for equal speeds.

    The server owns the parameters, the optimizer state (momentum too) and the learning rate; the
    workers only take gradients. It runs beside worker 0 and shares its processor and link.

    Update rule at the server, on each arrival: `x ← x − lr · g_i(x_stale)`.

    Example:
        >>> ASGD().num_servers
        1
    """

    paper: ClassVar[Paper | None] = Paper(
        authors="Dean, Corrado, Monga, Chen, Devin, Mao, Ranzato, Senior, Tucker, Yang, Le and Ng",
        title="Large Scale Distributed Deep Networks",
        venue="NeurIPS",
        year=2012,
    )
    traits: ClassVar[Traits] = Traits(
        traffic="4·m up, 4·m down",
        staleness="P−1 updates on average",
        evaluate_at="call",
        packets_only=True,
    )
    num_servers: ClassVar[int] = 1

    def worker(self, w: Worker) -> None:
        """See `Method`."""
        server = w.size
        for batch in w.batches(steps=math.inf):
            w.send(server, w.gradient(batch), "gradient")
            _, params = w.receive(server, "params")
            if params.numel() == 0:  # the server's word for: it is done
                break
            with w.phase("apply"):
                w.params.copy_(params)
        else:  # somebody's own loop has ended first: wait for the model that all end with
            w.send(server, torch.empty(0), "gradient")
            w.params.copy_(w.receive(server, "params")[1])

    def server(self, s: Server) -> None:
        """See `Method`."""
        samples, working = 0, s.size
        ended: list[int] = []
        s.evaluate(samples)
        while working:
            src, gradient = s.receive(ANY, "gradient")
            if gradient.numel() == 0:
                ended.append(src)
                working -= 1
                continue
            if samples >= s.plan.samples:
                s.send(src, torch.empty(0), "params")
                working -= 1
                continue
            s.apply(gradient)
            samples += s.plan.shares[src]
            s.evaluate(samples, final=samples >= s.plan.samples)
            s.send(src, s.params, "params")
        for src in ended:
            s.send(src, s.params, "params")
