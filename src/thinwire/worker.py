"""What a method's program is given: a replica of the model, its data, and the communicator.

Shape suffixes: P all parameters.
"""

from __future__ import annotations

import contextlib
import functools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from thinwire import collectives
from thinwire.batches import SampleStream, batch_slice
from thinwire.errors import InputError, NonFiniteError
from thinwire.flat import Flat, Layer, digest, is_finite
from thinwire.operations import Inputs, layer_shares
from thinwire.optim import LAMB, LARS, FlatSGD
from thinwire.passes import step_bytes
from thinwire.seeds import generator_for, seed_for
from thinwire.wire.base import ANY, Comm, Tag, Work
from thinwire.wire.packet import Packet

__all__ = [
    "Batch",
    "Body",
    "Group",
    "Layered",
    "Learner",
    "Optimizer",
    "Plan",
    "Replica",
    "Server",
    "Trainee",
    "Worker",
    "step_work",
]


class Group(Protocol):
    """Collectives to be used instead of our own; `collectives.native.NativeGroup` is one."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum in place over all workers."""
        ...


class Learner(Protocol):
    """What a replica needs of a task; `thinwire.tasks.Task` is one."""

    uses_rngs: ClassVar[tuple[str, ...]]
    timing_only: ClassVar[bool]

    def model(self) -> nn.Module:
        """A fresh model, initialised from torch's global generator."""
        ...

    def train_data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of the training samples; the same tensors at each call."""
        ...

    def loss(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Mean loss over a batch, a scalar."""
        ...

    def evaluate(self, model: nn.Module) -> tuple[float, float]:
        """Accuracy in 0..1 and mean loss on the test split."""
        ...

    @property
    def num_train(self) -> int:
        """Number of training samples."""
        ...

    @property
    def flops_per_sample(self) -> float:
        """Floating-point operations of one sample's forward pass."""
        ...


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """The step that `apply` takes; each replica has its own state.

    Args:
        name: "sgd" (with momentum), "adam" or "adamw"; for large batches "lars" or "lamb", see
            `thinwire.optim`.
        lr: learning rate, above 0.
        momentum: of sgd and lars, 0..1.
        weight_decay: at least 0.
        warmup: the first updates, over which the learning rate rises linearly to `lr`.
        decay: how the rate falls over the run: "none", "linear" (to zero) or "cosine" (half a
            period of it, to zero; Loshchilov & Hutter 2017 without restarts).
    """

    name: str = "sgd"
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    warmup: int = 0
    decay: Literal["none", "linear", "cosine"] = "none"

    def __post_init__(self) -> None:
        if self.name not in _OPTIMIZERS:
            raise InputError(f"optimizer = {self.name!r}; valid: {', '.join(_OPTIMIZERS)}")
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise InputError(f"lr = {self.lr}: a finite number above 0 is needed")
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum = {self.momentum}: 0 <= momentum < 1 is needed")
        if self.momentum and self.name not in ("sgd", "lars"):
            raise InputError(f"momentum = {self.momentum} has no effect with {self.name}")
        if not self.weight_decay >= 0:
            raise InputError(f"weight_decay = {self.weight_decay}: at least 0 is needed")
        if self.warmup < 0:
            raise InputError(f"warmup = {self.warmup}: a number of updates, at least 0")
        if self.decay not in ("none", "linear", "cosine"):
            raise InputError(f"decay = {self.decay!r}; valid: none, linear, cosine")

    def rate(self, updates: int, progress: float) -> float:
        """The learning rate of an update.

        Args:
            updates: before it.
            progress: the part of the run that is done, 0..1.

        >>> Optimizer(lr=0.4, warmup=4, decay="linear").rate(updates=1, progress=0.25)
        0.15000000000000002
        """
        rate = self.lr
        if updates < self.warmup:
            rate *= (updates + 1) / self.warmup
        if self.decay == "linear":
            rate *= 1 - progress
        elif self.decay == "cosine":
            rate *= (1 + math.cos(math.pi * progress)) / 2
        return rate

    def build(
        self, params_P: nn.Parameter, layers: Sequence[Layer] | None = None
    ) -> torch.optim.Optimizer:
        """The torch optimizer for one flat parameter.

        Args:
            params_P: all parameters.
            layers: where each tensor lies in it; None: it is one tensor.
        """
        return _OPTIMIZERS[self.name](self, params_P, layers)


_Build: TypeAlias = Callable[
    [Optimizer, nn.Parameter, Sequence[Layer] | None], torch.optim.Optimizer
]

_OPTIMIZERS: dict[str, _Build] = {
    "sgd": lambda o, p, _: FlatSGD([p], lr=o.lr, momentum=o.momentum, weight_decay=o.weight_decay),
    "adam": lambda o, p, _: torch.optim.Adam([p], lr=o.lr, weight_decay=o.weight_decay),
    "adamw": lambda o, p, _: torch.optim.AdamW([p], lr=o.lr, weight_decay=o.weight_decay),
    "lars": lambda o, p, layers: LARS(
        [p], lr=o.lr, momentum=o.momentum, weight_decay=o.weight_decay, layers=layers
    ),
    "lamb": lambda o, p, layers: LAMB([p], lr=o.lr, weight_decay=o.weight_decay, layers=layers),
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much there is to do, alike on all ranks.

    Args:
        shares: samples of one step, by worker; their sum is the global batch.
        steps: steps of a worker that keeps pace with all others; `math.inf` in somebody's own loop,
            whose length is known at its end.
        speeds: relative speeds of the workers, the fastest 1.
        optimizer: what `apply` does.
        seed: of the run.
        eval_every: evaluate after this many steps.
        evaluate_at: "batch": rank 0's model, whenever due at the start of a step; "call": only
            where the method calls `evaluate`, for methods whose replicas differ in between.
        log_every: log the training loss every so many steps.
    """

    shares: tuple[int, ...]
    steps: int  # or math.inf, which annotations leave out for the sake of all who count by it
    speeds: tuple[float, ...]
    optimizer: Optimizer = field(default_factory=Optimizer)
    seed: int = 0
    eval_every: int = 10
    evaluate_at: str = "batch"
    log_every: int = 1

    @functools.cached_property
    def global_batch(self) -> int:
        """Samples of one step over all workers."""
        return sum(self.shares)

    @property
    def samples(self) -> int:
        """Samples of the whole run over all workers."""
        return self.steps * self.global_batch


@dataclass(frozen=True, slots=True)
class Batch:
    """One worker's part of one step.

    Args:
        index_B: which training samples.
        x: inputs.
        y: targets.
        weight: this part's share of the global batch, so that the weighted sum of the workers'
            mean gradients is the gradient of the whole batch.
    """

    index_B: torch.Tensor
    x: torch.Tensor
    y: torch.Tensor
    weight: float

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self.index_B)


class _Generators:
    """torch's, numpy's and Python's global random state as this replica's own code sees it.

    On the virtual cluster all replicas share one process; each must draw what it would draw in a
    process of its own. Only the generators that the task says it uses are swapped.
    """

    def __init__(self, seed: int, uses: Sequence[str]):
        self._uses = tuple(uses)
        self._torch: Any = None
        self._numpy: Any = None
        self._python: Any = None
        if "torch" in uses:
            self._torch = torch.Generator().manual_seed(seed).get_state()
        if "numpy" in uses:
            self._numpy = np.random.RandomState(seed & 0xFFFFFFFF).get_state()
        if "random" in uses:
            self._python = random.Random(seed).getstate()

    def active(self) -> contextlib.AbstractContextManager[None]:
        """Within: the global generators are this replica's."""
        return self._swapped() if self._uses else contextlib.nullcontext()

    @contextlib.contextmanager
    def _swapped(self) -> Iterator[None]:
        outer = self._swap((self._torch, self._numpy, self._python))
        try:
            yield
        finally:
            self._torch, self._numpy, self._python = self._swap(outer)

    def _swap(self, new: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        old = list(new)
        if "torch" in self._uses:
            old[0] = torch.get_rng_state()
            torch.set_rng_state(new[0])
        if "numpy" in self._uses:
            old[1] = np.random.get_state()
            np.random.set_state(new[1])
        if "random" in self._uses:
            old[2] = random.getstate()
            random.setstate(new[2])
        return old[0], old[1], old[2]


def step_work(params_P: torch.Tensor) -> Work:
    """An optimizer's step."""
    nbytes = step_bytes(params_P.numel(), params_P.itemsize)
    return Work(memory_bytes=nbytes, kind="step")


@dataclass(frozen=True)
class _Late:
    """An update that is taken layer by layer.

    Args:
        direction: (P,).
        wait: blocks until a layer of it is there.
        left: layers that have not been stepped yet, in the order of the table.
    """

    direction: torch.Tensor
    wait: Callable[[int], None]
    left: dict[int, None]


class Replica:
    """A model under training: parameters, gradient, optimizer, random state.

    Args:
        learner: the task.
        plan: the run's plan.
        comm: charged with the computation.
        log: called with ("step" | "eval", values) for the run record.

    Attributes:
        updates: optimizer steps taken.
        done: steps of the plan that are done, by which the learning rate falls.
    """

    def __init__(
        self, learner: Learner, plan: Plan, comm: Comm, log: Callable[[str, dict[str, Any]], None]
    ):
        self.learner = learner
        self.plan = plan
        self.comm = comm
        self.updates = self.done = 0
        self._log = log
        self._generators = _Generators(seed_for(plan.seed, "replica", comm.rank), learner.uses_rngs)
        # All replicas begin with the same model: it is drawn from the run's seed, not the rank's.
        drawn = () if learner.timing_only else ("torch", "numpy", "random")
        with _Generators(seed_for(plan.seed, "model"), drawn).active():
            self.model = learner.model()
            self._flops = float(learner.flops_per_sample)  # counting may draw, too
        self.flat = Flat(self.model)
        self.optimizer = plan.optimizer.build(self.flat.params_P, self.flat.layers)
        self._last_eval = 0
        self._evaluated_at_update = -1
        self._order: list[int] | None = None
        self._inputs: Inputs | None = None
        self._shares: Sequence[float] = ()
        self._late: _Late | None = None
        self._by_layer: list[tuple[nn.Parameter, torch.optim.Optimizer]] = []

    @property
    def params(self) -> torch.Tensor:
        """All parameters as one vector (P,), shared with the model; written in place. Waits for
        what `apply_late` has not done yet."""
        self.wait_applied()
        return self.flat.params_P.data

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layer table of `params`."""
        return self.flat.layers

    def next_batch(self, step: int, stream: SampleStream | None) -> Batch | None:
        """This rank's part of the global batch; there always is one.

        Args:
            step: counted from 0.
            stream: the run's order of samples.
        """
        assert stream is not None
        plan, rank = self.plan, self.comm.rank
        start, share = batch_slice(step, rank, plan.shares)
        index_B = stream.take(start, share)
        x, y = self.learner.train_data()
        return Batch(index_B, x[index_B], y[index_B], share / plan.global_batch)

    def gradient(
        self,
        batch: Batch,
        before_layer: Callable[[int], None] | None = None,
        on_layer: Callable[[int, torch.Tensor], None] | None = None,
    ) -> torch.Tensor:
        """The mean gradient of a batch, (P,): the own buffer, overwritten by the next call.

        Args:
            batch: what to learn from.
            before_layer: called with each layer's index before the forward pass uses it; may wait.
                On the virtual cluster in the order of `layers`.
            on_layer: called with a layer's index and gradient (1-D view) as soon as it exists, in
                backward order; may post, start and spend, never wait. It may write into the view.
                It is given finite gradients only: who has been called for every layer knows that
                the whole gradient is finite.

        Raises:
            NonFiniteError: the loss or a gradient is NaN or infinite.
        """
        with self.comm.phase("compute"):
            return self._gradient(batch, before_layer, on_layer)

    def _gradient(
        self,
        batch: Batch,
        before_layer: Callable[[int], None] | None,
        on_layer: Callable[[int, torch.Tensor], None] | None,
    ) -> torch.Tensor:
        simulated, num_layers = self.comm.simulated, len(self.flat.layers)
        forward = self._flops * batch.size
        begin = self._begin_layer(forward, before_layer)
        if begin is None:
            self.comm.spend(Work(flops=forward))
        elif simulated or self.learner.timing_only:
            for layer in range(num_layers):
                begin(layer)
            begin = None
        order: list[int] = []
        notify = order.append if simulated or on_layer is None else self._notify(on_layer, order)
        first = simulated and self._order is None
        stops: list[Callable[[], None]] = []
        if on_layer is not None and (first or not simulated):
            stops.append(self.flat.watch(notify))
        if on_layer is not None and first:
            hook = self.model.register_forward_pre_hook(self._called, with_kwargs=True)
            stops.append(hook.remove)
        try:
            in_hooks = on_layer is not None and not simulated
            loss = math.nan if self.learner.timing_only else self._backward(batch, in_hooks, begin)
        finally:
            for stop in stops:
                stop()
        if simulated:
            self._spend_backward(2 * forward, on_layer, order)
        elif on_layer is not None:
            for layer in sorted(set(range(num_layers)) - set(order), reverse=True):
                on_layer(layer, self._layer_grad(layer))  # unused: its gradient is zero
        due = self.comm.step % self.plan.log_every == 0 or self.comm.step == 1
        if due and not self.learner.timing_only:
            self._log("step", {"loss": loss})
        return self.flat.grad_P

    def _called(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        if self._inputs is None:
            self._inputs = Inputs.of(args, kwargs)

    def _backward(self, batch: Batch, in_hooks: bool, begin: Callable[[int], None] | None) -> float:
        """The loss.

        Args:
            batch: what to learn from.
            in_hooks: the gradients are looked at there, before they are given away.
            begin: called before the forward pass uses a layer.
        """
        if begin is None:
            self.flat.clear_grad()
        with self._generators.active(), torch.enable_grad():
            if begin is None:
                loss = self.learner.loss(self.model, batch.x, batch.y)
            else:
                with self.flat.before_use(self.model, begin):
                    loss = self.learner.loss(self.model, batch.x, batch.y)
                self.flat.clear_grad()  # until here, an update may have waited in it
            if in_hooks:
                self._check_loss(float(loss.detach()))
            loss.backward()
        value = float(loss.detach())
        if not in_hooks:
            self._check_loss(value)
            bad = self.flat.non_finite_layer()
            if bad is not None:
                raise self._non_finite(f"the gradient of {bad!r} is not finite")
        return value

    def _check_loss(self, value: float) -> None:
        if not math.isfinite(value):
            raise self._non_finite(f"the loss is {value}")

    def _notify(
        self, on_layer: Callable[[int, torch.Tensor], None], order: list[int]
    ) -> Callable[[int], None]:
        def notify(layer: int) -> None:
            order.append(layer)
            grad = self._layer_grad(layer)
            if not is_finite(grad):
                name = self.flat.layers[layer].name
                raise self._non_finite(f"the gradient of {name!r} is not finite")
            on_layer(layer, grad)

        return notify

    def _layer_grad(self, layer: int) -> torch.Tensor:
        place = self.flat.layers[layer]
        return self.flat.grad_P[place.start : place.stop]

    def _begin_layer(
        self, total: float, before_layer: Callable[[int], None] | None
    ) -> Callable[[int], None] | None:
        """What comes before a layer, then its part of the forward pass's time: that of the
        operations, as far as they have been counted, or else of the parameters. None where nothing
        comes before any."""
        if before_layer is None and self._late is None:
            return None
        numel = self.flat.params_P.numel()
        shares = self._shares or [layer.numel / numel for layer in self.flat.layers]

        def begin(layer: int) -> None:
            self._catch_up(layer)
            if before_layer is not None:
                before_layer(layer)
            self.comm.spend(Work(flops=total * shares[layer]))

        return begin

    def _spend_backward(
        self,
        total: float,
        on_layer: Callable[[int, torch.Tensor], None] | None,
        order: list[int],
    ) -> None:
        """Backward takes twice the forward pass; each layer's part of it is the share of the
        operations that complete its gradient, or where they can't be counted, of its parameters."""
        if on_layer is None:
            self.comm.spend(Work(flops=total))
            return
        if self._order is None:
            rest = sorted(set(range(len(self.flat.layers))) - set(order), reverse=True)
            self._order = order + rest
            self._shares = self._count_shares()
        for layer in self._order:
            self.comm.spend(Work(flops=total * self._shares[layer]))
            self.comm.in_hook = True
            try:
                on_layer(layer, self._layer_grad(layer))
            finally:
                self.comm.in_hook = False

    def _count_shares(self) -> Sequence[float]:
        """Counted once for all workers that share memory and inputs of a shape."""
        inputs, known = self._inputs, self.comm.meetings
        leaves = () if inputs is None else tree_leaves(tuple(inputs))
        shapes = tuple(tuple(x.shape) for x in leaves if isinstance(x, torch.Tensor))
        key = "backward shares", shapes
        if known is not None and key in known:
            return known[key]
        shares = layer_shares(self.model, self.flat.layers, inputs)
        if known is not None:
            known[key] = shares
        return shares

    def _non_finite(self, what: str) -> NonFiniteError:
        return NonFiniteError(
            f"rank {self.comm.rank}, step {self.comm.step}, {self.comm.now():.3f} s: {what}. "
            f"A smaller learning rate is the usual remedy (train.lr is {self.plan.optimizer.lr:g})."
        )

    def apply(self, direction: torch.Tensor) -> None:
        """One optimizer step along a gradient-like vector (P,), which is not written to.

        Raises:
            InputError: a vector of another size.
        """
        self._check_shape(direction)
        if self._by_layer:
            raise InputError("apply() after wait_and_apply(): a program takes one of the two")
        with self.comm.phase("apply"):
            self._apply(direction)

    def _check_shape(self, direction: torch.Tensor) -> None:
        params_P = self.flat.params_P
        if direction.shape != params_P.shape:
            raise InputError(
                f"apply() was given a vector of {tuple(direction.shape)}; "
                f"the model has {tuple(params_P.shape)}"
            )

    def _apply(self, direction: torch.Tensor) -> None:
        params_P = self.flat.params_P
        self._set_rate([self.optimizer])
        if not self.learner.timing_only:
            params_P.grad = direction
            self.optimizer.step()
            params_P.grad = None
        self.updates += 1
        self.comm.spend(step_work(params_P))

    def _set_rate(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        rule = self.plan.optimizer
        if self.updates <= rule.warmup or rule.decay != "none":
            rate = rule.rate(self.updates, min(1.0, self.done / self.plan.steps))
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = rate

    def apply_late(self, direction: torch.Tensor, wait: Callable[[int], None]) -> None:
        """See `Layered`. Each layer has an optimizer of its own, with its part of the state."""
        self._check_shape(direction)
        self.wait_applied()
        if not self._by_layer:
            if self.updates:
                raise InputError("wait_and_apply() after apply(): a program takes one of the two")
            self._by_layer = [self._optimizer_of(layer) for layer in self.flat.layers]
        self._set_rate([optimizer for _, optimizer in self._by_layer])
        self._late = _Late(direction, wait, dict.fromkeys(range(len(self.flat.layers))))
        self.updates += 1

    def _optimizer_of(self, layer: Layer) -> tuple[nn.Parameter, torch.optim.Optimizer]:
        param = nn.Parameter(self.flat.params_P.data[layer.start : layer.stop])
        place = Layer(layer.name, 0, layer.numel, layer.shape)
        return param, self.plan.optimizer.build(param, [place])

    def wait_applied(self) -> None:
        """See `Layered`."""
        while self._late is not None:
            self._catch_up(next(iter(self._late.left)))

    def _catch_up(self, layer: int) -> None:
        """Wait for a layer's part of the update, and take it, unless that has been done."""
        late = self._late
        if late is None or layer not in late.left:
            return
        late.wait(layer)
        place, (param, optimizer) = self.flat.layers[layer], self._by_layer[layer]
        with self.comm.phase("apply"):
            if not self.learner.timing_only:
                param.grad = late.direction[place.start : place.stop]
                optimizer.step()
                param.grad = None
            self.comm.spend(step_work(param.data))
        del late.left[layer]
        if not late.left:
            self._late = None

    def evaluate(self, steps: int, samples: int, *, final: bool = False) -> None:
        """Test the model if an evaluation is due; costs no virtual time.

        Args:
            steps: steps done.
            samples: training samples that the whole cluster has used.
            final: it is due anyway, unless just done.
        """
        due = steps - self._last_eval >= self.plan.eval_every or (steps == 0 and not final)
        if self._evaluated_at_update == self.updates or not (due or final):
            return
        if self.learner.timing_only:
            return
        self.wait_applied()
        self._last_eval, self._evaluated_at_update = steps, self.updates
        with self.comm.phase("evaluate"), self._generators.active(), torch.no_grad():
            accuracy, loss = self.learner.evaluate(self.model)
        self._log(
            "eval",
            {"step": steps, "samples": samples, "accuracy": accuracy, "loss": loss},
        )

    def log(self, values: dict[str, float]) -> None:
        """See `Worker.log`."""
        self._log("values", values)

    @property
    def digest(self) -> str:
        """See `thinwire.flat.digest`."""
        return digest(self.params)


class Trainee(Protocol):
    """What a server works on.

    Attributes:
        done: steps of the plan that are done, as the worker or server says.
    """

    done: int

    @property
    def plan(self) -> Plan:
        """How much there is to do."""
        ...

    @property
    def params(self) -> torch.Tensor:
        """All parameters as one vector (P,), written in place."""
        ...

    def apply(self, direction: torch.Tensor) -> None:
        """One optimizer step along (P,)."""
        ...

    def evaluate(self, steps: int, samples: int, *, final: bool = False) -> None:
        """Test the model if an evaluation is due."""
        ...


class Body(Trainee, Protocol):
    """What a worker works on: a `Replica`, or a model and an optimizer in somebody's own loop
    (`thinwire.loop`)."""

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layer table of `params`."""
        ...

    def next_batch(self, step: int, stream: SampleStream | None) -> Batch | None:
        """The batch of a step, counted from 0; None when there are no more."""
        ...

    def gradient(
        self,
        batch: Batch,
        before_layer: Callable[[int], None] | None = None,
        on_layer: Callable[[int, torch.Tensor], None] | None = None,
    ) -> torch.Tensor:
        """The mean gradient of a batch, (P,), valid until the next call."""
        ...

    def log(self, values: dict[str, float]) -> None:
        """Put numbers into the run record."""
        ...


@runtime_checkable
class Layered(Protocol):
    """A `Body` that can step one layer after the other; the others step once for all."""

    def apply_late(self, direction: torch.Tensor, wait: Callable[[int], None]) -> None:
        """An optimizer step along (P,), each layer's when `wait(layer)` has returned: before the
        next forward pass uses that layer, or before anybody else reads the parameters."""
        ...

    def wait_applied(self) -> None:
        """Block until all of `apply_late` has been done."""
        ...


class Worker:
    """What `Method.worker` is given.

    Attributes:
        rank: 0..size-1.
        size: number of workers.
        comm: the seam; most methods need only the thin forwards below.
        rng: this rank's generator (torch, CPU).
        shared_rng: a generator in the same state on every rank.
        state: where a method keeps what must outlive a step.
    """

    def __init__(
        self,
        comm: Comm,
        replica: Body,
        stream: SampleStream | None = None,
        group: Group | None = None,
    ):
        seed = replica.plan.seed
        self._group = group
        self.comm = comm
        self.rank = comm.rank
        self.size = comm.size
        self.replica = replica
        self.rng = generator_for(seed, "rng", comm.rank)
        self.shared_rng = generator_for(seed, "shared rng")
        self.state = SimpleNamespace()
        self._stream = stream
        self._steps = 0

    @property
    def plan(self) -> Plan:
        """How much there is to do."""
        return self.replica.plan

    @property
    def params(self) -> torch.Tensor:
        """All parameters as one vector (P,), shared with the model; written in place."""
        return self.replica.params

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layer table of `params`."""
        return self.replica.layers

    @property
    def steps(self) -> int:
        """Steps done; not from zero where a run is gone on with."""
        return self._steps

    def remember(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Keep a tensor in `state`, where checkpoints look; called before the first batch.

        Args:
            name: of the attribute.
            tensor: as it is at the beginning; to be written in place from then on.

        Returns:
            The tensor, with the values that it had where a run is gone on with.
        """
        before = getattr(self.state, name, None)
        if before is not None:
            tensor.copy_(before)
        setattr(self.state, name, tensor)
        return tensor

    def resume(self, steps: int, state: Mapping[str, torch.Tensor]) -> None:
        """Begin where another run was; called before the program.

        Args:
            steps: that it had done.
            state: what it remembered.
        """
        self._steps = steps
        self.state = SimpleNamespace(**state)

    def batches(self, steps: float | None = None) -> Iterator[Batch]:
        """This worker's part of each step, then the end.

        The parts of one step are, over all workers, exactly the next global batch of the seeded
        data order, whatever the number of workers. In somebody's own loop they are what that loop
        makes of them, and may end sooner than asked.

        Args:
            steps: how many more; by default the rest of the plan's. `math.inf` for a worker that
                is told when to stop.
        """
        plan = self.plan
        own = plan.evaluate_at == "batch" and self.rank == 0
        last = plan.steps if steps is None else self._steps + steps
        while self._steps < last:
            if own:
                self.evaluate(self._steps)
            elif plan.evaluate_at == "batch":
                self.replica.done = self._steps
            batch = self.replica.next_batch(self._steps, self._stream)
            if batch is None:
                break
            self.comm.step = self._steps + 1
            yield batch
            self._steps += 1

    def finish(self) -> None:
        """Called when the method has returned: test the model as it left it, where `batches` did
        the testing. Not at the last batch, since a method may apply a last direction after it."""
        if self.plan.evaluate_at == "batch" and self.rank == 0:
            steps = self._steps
            self.replica.evaluate(steps, steps * self.plan.global_batch, final=True)

    def gradient(
        self,
        batch: Batch,
        before_layer: Callable[[int], None] | None = None,
        on_layer: Callable[[int, torch.Tensor], None] | None = None,
    ) -> torch.Tensor:
        """See `Replica.gradient`."""
        return self.replica.gradient(batch, before_layer, on_layer)

    def apply(self, direction: torch.Tensor) -> None:
        """See `Replica.apply`."""
        self.replica.apply(direction)

    def wait_and_apply(self, direction: torch.Tensor, wait: Callable[[int], None]) -> None:
        """As `apply`, while parts of the direction are still on their way. May block.

        A replica waits for each layer's part, and steps that layer, only when the next forward pass
        comes to it, so that what arrives late is hidden behind the layers before it. Whoever reads
        `params` or tests the model before that waits, too. In somebody's own loop the optimizer
        steps as a whole, so all of it is waited for here.

        Args:
            direction: gradient-like vector (P,); belongs to the update until that is done. The next
                gradient may be written into it.
            wait: blocks until a layer's part, given by its index, is there.

        Raises:
            InputError: a vector of another size, or `apply` was used before.
        """
        if isinstance(self.replica, Layered):
            self.replica.apply_late(direction, wait)
            return
        for layer in range(len(self.layers)):
            wait(layer)
        self.apply(direction)

    def wait_applied(self) -> None:
        """Block until every update has been taken: at the end of a program that has used
        `wait_and_apply`."""
        if isinstance(self.replica, Layered):
            self.replica.wait_applied()

    def evaluate(self, steps: int) -> None:
        """Test rank 0's model if an evaluation is due; for methods with `evaluate_at = "call"`.

        Args:
            steps: steps of the plan that are done; at its end an evaluation is always due.
        """
        self.replica.done = steps
        if self.rank == 0:
            self.replica.evaluate(
                steps, steps * self.plan.global_batch, final=steps >= self.plan.steps
            )

    def log(self, **values: float) -> None:
        """Put numbers into the run record, beside the loss of the next gradient."""
        self.replica.log({key: float(value) for key, value in values.items()})

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over all workers, bit for bit alike on each; `x` is left alone. Blocks."""
        return self.all_reduce_(x.clone())

    def all_reduce_(self, x: torch.Tensor) -> torch.Tensor:
        """As `all_reduce`, in place; returns `x`."""
        if self.size == 1:
            return x
        if self._group is not None:
            with self.phase("wait"):  # sends, waits and sums, all in one
                return self._group.all_reduce(x)
        with self.phase("merge"):
            return collectives.all_reduce(self.comm, x)

    def all_gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Every worker's `x`, by rank; all must have one size. Blocks."""
        with self.phase("merge"):
            return collectives.all_gather(self.comm, x)

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        """A block whose time the record counts as a phase's ("select", "encode", "merge" ...), see
        `Comm.phase`. Gradients, collectives, sending, waiting and `apply` are counted by
        themselves."""
        return self.comm.phase(name)

    def exchange(self, rank: int, x: torch.Tensor) -> torch.Tensor:
        """Swap tensors of one shape with a peer that does the same. Blocks."""
        self.send(rank, x, "exchange")
        return self.receive(rank, "exchange")[1].view(x.shape)

    def send(self, endpoint: int, x: torch.Tensor, tag: Tag = "send") -> None:
        """Post a copy of a tensor; never blocks."""
        with self.phase("send"):
            self.comm.post(endpoint, Packet.of(x, step=self.comm.step), tag)

    def receive(self, endpoint: int = ANY, tag: Tag = "send") -> tuple[int, torch.Tensor]:
        """The next tensor (1-D) sent here with this tag, and by whom. Blocks."""
        return _receive(self.comm, endpoint, tag)


class Server:
    """What `Method.server` is given: a replica that gets its directions from workers.

    Attributes:
        rank: its endpoint, `size` and up.
        size: number of workers.
        comm: the seam.
        plan: how much there is to do.
        state: where a method keeps what must outlive a step.
    """

    def __init__(self, comm: Comm, replica: Trainee):
        self.comm = comm
        self.rank = comm.rank
        self.size = comm.size
        self.plan = replica.plan
        self.replica = replica
        self.state = SimpleNamespace()

    @property
    def params(self) -> torch.Tensor:
        """All parameters as one vector (P,), written in place."""
        return self.replica.params

    def apply(self, direction: torch.Tensor) -> None:
        """See `Replica.apply`: optimizer state and learning rate are the server's."""
        self.replica.apply(direction)

    def evaluate(self, samples: int, *, final: bool = False) -> None:
        """Test the server's model if an evaluation is due.

        Args:
            samples: training samples of all workers that the model has learnt from.
            final: it is due anyway.
        """
        steps = samples // self.plan.global_batch
        self.comm.step = self.replica.done = steps
        self.replica.evaluate(steps, samples, final=final)

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        """See `Worker.phase`; the record holds the workers' phases only."""
        return self.comm.phase(name)

    def send(self, endpoint: int, x: torch.Tensor, tag: Tag = "send") -> None:
        """Post a copy of a tensor; never blocks."""
        with self.phase("send"):
            self.comm.post(endpoint, Packet.of(x, step=self.comm.step), tag)

    def receive(self, endpoint: int = ANY, tag: Tag = "send") -> tuple[int, torch.Tensor]:
        """The next tensor (1-D) sent here with this tag, and by whom. Blocks."""
        return _receive(self.comm, endpoint, tag)


def _receive(comm: Comm, endpoint: int, tag: Tag) -> tuple[int, torch.Tensor]:
    arrival = comm.wait(endpoint, tag)
    if arrival.packet is None:
        return arrival.src, torch.empty(0)
    return arrival.src, arrival.packet.buffers[0]
