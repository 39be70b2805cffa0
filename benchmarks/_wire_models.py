"""Models for `benchmarks/wire.py`: what a gradient is made of, and when each part of it comes."""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from thinwire.flat import Layer
from thinwire.models import published_table
from thinwire.seeds import generator_for
from thinwire.tasks.models import ResNet20
from thinwire.wire.base import Comm
from thinwire.worker import Batch, Plan

MLP = ((2048, 784), (2048,), (2048, 2048), (2048,), (10, 2048), (10,))
"""Two hidden layers: 5.8M parameters."""


def mlp() -> nn.Module:
    """The same as a module, for `thinwire probe`."""
    return nn.Sequential(
        nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)
    )


TURN = 1_000_003
"""Elements by which the gradient of a step is turned against that of the step before."""

FORWARD = 1 / 3
"""The forward pass's share of a step; backward takes twice as long."""


@dataclass(frozen=True)
class Shapes:
    """Parameter tensors of a model and when their gradients come.

    Args:
        layers: in the order of the flat vector.
        order: of the gradients, by index into layers.
        ready: share of the backward pass that is done when a layer's gradient is complete.
    """

    layers: tuple[Layer, ...]
    order: tuple[int, ...]
    ready: tuple[float, ...]

    @property
    def numel(self) -> int:
        """Parameters."""
        return self.layers[-1].stop


@functools.cache
def load_shapes(model: str) -> Shapes:
    """A published table, or "mlp"."""
    if model == "mlp":
        shapes = MLP
        sizes = [math.prod(shape) for shape in shapes]
        order = tuple(reversed(range(len(shapes))))
        done = list(itertools.accumulate(sizes[i] for i in order))
        share = {index: d / done[-1] for index, d in zip(order, done, strict=True)}
        names = [f"layer{i}" for i in range(len(shapes))]
    else:
        table = published_table(model)
        shapes, names = [t.shape for t in table.tensors], [t.name for t in table.tensors]
        sizes = [t.numel for t in table.tensors]
        order = table.ready_order
        share = {i: t.ready_flops / table.backward_flops for i, t in enumerate(table.tensors)}
    starts = list(itertools.accumulate(sizes, initial=0))
    layers = tuple(
        Layer(name, start, start + size, tuple(shape))
        for name, start, size, shape in zip(names, starts, sizes, shapes, strict=False)
    )
    return Shapes(layers, order, tuple(share[i] for i in range(len(layers))))


class Clock:
    """Sleeps as long as computing would take; oversleeping is made up for at the next call."""

    def __init__(self) -> None:
        self._until = time.perf_counter()

    def restart(self) -> None:
        """Computation begins now."""
        self._until = time.perf_counter()

    def busy(self, seconds: float) -> None:
        """Compute for so long."""
        self._until += seconds
        left = self._until - time.perf_counter()
        if left > 0:
            time.sleep(left)

    def idle(self, action: Callable[[], None]) -> None:
        """Something that computation has to wait for."""
        began = time.perf_counter()
        action()
        self._until += time.perf_counter() - began


class Emulated:
    """A worker's body (`thinwire.worker.Body`) whose gradient is a random vector that comes after
    a given time. SGD with momentum as `Replica` does it, on one flat parameter.

    Args:
        shapes: of the model.
        source: (P,), the gradient, left alone.
        compute: seconds of forward and backward together.
        plan: how much there is to do.
        comm: whose phases are charged.
        serial: whether computing stands still while `on_layer` is called, as on one processor;
            otherwise it goes on, as on an accelerator.
    """

    def __init__(
        self,
        shapes: Shapes,
        source: torch.Tensor,
        compute: float,
        plan: Plan,
        comm: Comm,
        serial: bool = False,
    ):
        self.done, self._serial = 0, serial
        self.plan = plan
        self.layers = shapes.layers
        self._shapes, self._source, self._seconds, self._comm = shapes, source, compute, comm
        self._param = nn.Parameter(torch.zeros(shapes.numel))
        self._optimizer = plan.optimizer.build(self._param)
        self._grad = torch.zeros(shapes.numel)
        self._clock, self._turned = Clock(), 0

    @property
    def params(self) -> torch.Tensor:
        """See `Body`."""
        return self._param.data

    def next_batch(self, step: int, stream: Any) -> Batch:
        """See `Body`."""
        nothing = torch.empty(0)
        share = self.plan.shares[self._comm.rank]
        return Batch(nothing, nothing, nothing, share / self.plan.global_batch)

    def gradient(
        self,
        batch: Batch,
        before_layer: Callable[[int], None] | None = None,
        on_layer: Callable[[int, torch.Tensor], None] | None = None,
    ) -> torch.Tensor:
        """See `Body`."""
        clock, layers, forward = self._clock, self.layers, FORWARD * self._seconds
        with self._comm.phase("compute"):
            clock.restart()
            if before_layer is None:
                clock.busy(forward)
            else:
                for i, layer in enumerate(layers):
                    clock.idle(functools.partial(before_layer, i))
                    clock.busy(forward * layer.numel / self._shapes.numel)
            self._refill()
            backward, done = self._seconds - forward, 0.0
            for i in self._shapes.order if on_layer is not None else ():
                assert on_layer is not None
                clock.busy(backward * (self._shapes.ready[i] - done))
                done = self._shapes.ready[i]
                call = functools.partial(on_layer, i, self._grad[layers[i].start : layers[i].stop])
                clock.idle(call) if self._serial else call()
            clock.busy(backward * (1 - done))
        return self._grad

    def _refill(self) -> None:
        """The source, turned by another amount at each step: a memory that were given the same
        vector again and again would grow in proportion, and a threshold would no longer hold."""
        self._turned = (self._turned + TURN) % self._shapes.numel
        left = self._shapes.numel - self._turned
        self._grad[:left].copy_(self._source[self._turned :])
        self._grad[left:].copy_(self._source[: self._turned])

    def apply(self, direction: torch.Tensor) -> None:
        """See `Body`."""
        with self._comm.phase("apply"):
            self._param.grad = direction
            self._optimizer.step()
            self._param.grad = None

    def evaluate(self, steps: int, samples: int, *, final: bool = False) -> None:
        """See `Body`: nothing to test."""

    def log(self, values: dict[str, float]) -> None:
        """See `Body`: nothing is recorded."""


class _Step(torch.autograd.Function):
    """A layer whose backward takes its time and gives a fixed gradient."""

    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, param: torch.Tensor, after: Any) -> torch.Tensor:
        ctx.after = after
        return token.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        return grads[0], ctx.after(), None


class SleepingModel(nn.Module):
    """The same for DistributedDataParallel: gradients come layer by layer during backward.

    Args:
        shapes: of the model.
        source: (P,), the gradient.
        compute: seconds of forward and backward together.
    """

    def __init__(self, shapes: Shapes, source: torch.Tensor, compute: float):
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(layer.shape) for layer in shapes.layers)
        self._shapes, self._source, self._seconds = shapes, source, compute
        self._clock = Clock()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Sleeps, and chains the layers in the order in which their gradients are to come."""
        self._clock.restart()
        self._clock.busy(FORWARD * self._seconds)
        token = x.clone().requires_grad_()
        for i in reversed(self._shapes.order):
            token = _Step.apply(token, self.weights[i], functools.partial(self._after, i))
        return token

    def _after(self, i: int) -> torch.Tensor:
        shapes = self._shapes
        at = shapes.order.index(i)
        before = shapes.ready[shapes.order[at - 1]] if at else 0.0
        self._clock.busy((1 - FORWARD) * self._seconds * (shapes.ready[i] - before))
        layer = shapes.layers[i]
        return self._source[layer.start : layer.stop].view(layer.shape)


class RandomImages:
    """A `thinwire.worker.Learner`: ResNet-20, or `mlp`, on 512 random images of its size, ten
    classes. The arithmetic is real, there is nothing to learn.

    Args:
        model: "resnet20" or "mlp".
    """

    uses_rngs: ClassVar[tuple[str, ...]] = ()
    timing_only: ClassVar[bool] = False
    num_train = 512
    flops_per_sample = 0.0

    def __init__(self, model: str = "resnet20"):
        self._model = model

    def model(self) -> nn.Module:
        """See `Learner`."""
        return mlp() if self._model == "mlp" else ResNet20()

    def train_data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Learner`."""
        return _images(self.num_train, (784,) if self._model == "mlp" else (3, 32, 32))

    def loss(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """See `Learner`."""
        return nn.functional.cross_entropy(model(x), y)

    def evaluate(self, model: nn.Module) -> tuple[float, float]:
        """See `Learner`: of no account."""
        return 0.0, 0.0


@functools.cache
def _images(count: int, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    generator = generator_for(0, "images")
    x = torch.randn(count, *shape, generator=generator)
    return x, torch.randint(0, 10, (count,), generator=generator)
