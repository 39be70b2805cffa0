"""One method at work inside one loop: when its program goes on, and how the two end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from thinwire.errors import InputError, ThinwireError
from thinwire.fibers import Fiber, inside_backward, refuse_in_backward
from thinwire.flat import Flat, digest
from thinwire.loop._agree import AbstractEnds, adopt, check_digests, settings_of
from thinwire.loop._body import BATCH, GRADIENT, LoopBody, ServedBody
from thinwire.loop._cost import ForwardCost
from thinwire.loop._journal import Journal, Values
from thinwire.loop._optimizer import Takeover
from thinwire.loop._overlap import overlap_of
from thinwire.loop._refuse import optimized
from thinwire.loop._samplers import watch_samplers
from thinwire.loop._talk import LoopComm, talk_over
from thinwire.methods import Method
from thinwire.wire.meter import Meter
from thinwire.wire.packet import DTYPES
from thinwire.wire.virtual.remote import RemoteComm, RemoteTask
from thinwire.worker import Plan, Server, Worker

__all__ = ["Loop"]

_FORMAT = 1
"""Of what `state_dict` gives."""

_MAX_ROUNDS = 100
"""Times that a program may ask for batches after their end before it is taken for endless."""


class Loop:
    """A method, the model and optimizer it works on, and the communicator.

    The method's program runs in a fibre of the loop's own thread: to its first batch in `begin`;
    on, when the model's first forward pass of a step begins and when the optimizer is called; to
    its end in `finish`.

    Args:
        method: the training method.
        model: the model.
        optimizer: its optimizer; `step` and `zero_grad` of this object are replaced until the end.
        flat: the parameters in both.
        comm: this rank's endpoint.
        seed: of the method's generators.
        accumulate: backward passes before each step, for a method that sends during the last.

    Attributes:
        closed: whether the model and the optimizer are ordinary again.
        talk: what the ranks tell each other beside the method.
        journal: what this rank tells of the training; None for nothing.
        servers: meters of the servers that run here.
    """

    def __init__(
        self,
        method: Method,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        flat: Flat,
        comm: LoopComm,
        seed: int,
        accumulate: int = 1,
    ):
        self.method = method
        self.model = model
        self.optimizer = optimizer
        self.flat = flat
        self.comm = comm
        self.talk = talk_over(comm)
        self.closed = False
        self.journal: Journal | None = None
        self.servers: list[Meter] = []
        self._attached = False
        self._unwatch: Callable[[], None] | None = None
        self._forward_hook: RemovableHandle | None = None
        self._error: BaseException | None = None
        self._grad_version = flat.version
        self._steps = 0
        self._num_groups = len(optimizer.param_groups)
        used = {id(p) for p in optimized(optimizer)}
        named = list(model.named_parameters())
        self._frozen = [(n, p) for n, p in named if not p.requires_grad and id(p) in used]
        self._takeover = Takeover(optimizer)
        self._plain_step = self._takeover.plain_step
        self._plan = Plan(
            shares=(1,) * comm.size,
            steps=float("inf"),  # pyright: ignore[reportArgumentType]
            speeds=(1.0,) * comm.size,
            seed=seed,
            evaluate_at="call",
        )
        self._overlap = overlap_of(method, model, flat, comm, accumulate)
        self._body = LoopBody(flat, self._plan, comm, self._plain_step, self._overlap)
        self._worker = Worker(comm, self._body)
        self._compared = False
        self._fiber = Fiber(self._program)
        self._ends: AbstractEnds | None = None
        self._cost = ForwardCost(comm, self._overlap) if isinstance(comm, RemoteComm) else None

    def _program(self) -> None:
        self.method.worker(self._worker)

    # The beginning.

    def begin(self) -> None:
        """Give all ranks rank 0's model, start the servers, and run the program to its first
        batch. Blocks."""
        if self.comm.size > 1:
            self._broadcast()
        if self.comm.rank == 0:
            for index in range(self.method.num_servers):
                served = self.comm.serve(self._serve, index)
                if not isinstance(served, RemoteTask):
                    self.servers.append(served.comm.meter)
        if self.comm.size > 1 and self.method.traits.synchronous:
            self._ends = self.talk.ends(lambda: settings_of(self.optimizer))
        self._resume()
        self._attach()

    def keep(self, journal: Journal) -> None:
        """Tell of the training from now on."""
        self.journal = self._body.journal = journal
        self._body.timed = True
        self._watch_forward()
        journal.count(self.model)

    def log(self, values: Values) -> None:
        """Numbers of the step that is under way, or else of the one just taken."""
        under_way = self._body.wants is GRADIENT
        if self.journal is not None:
            self.journal.log(self._steps + under_way, values)

    def _broadcast(self) -> None:
        trained = {id(p) for p in self.flat.params}
        others = [p.data for p in self.model.parameters() if id(p) not in trained]
        tensors = [self.flat.params_P.data, *others, *self.model.buffers()]
        for index, tensor in enumerate(tensors):
            if tensor.dtype in DTYPES:
                self.talk.broadcast(tensor, index)

    def _serve(self, comm: Any) -> None:
        body = ServedBody(self.flat, self._plan, self.optimizer, comm)
        self.method.server(Server(comm, body))

    def _attach(self) -> None:
        """Put ourselves before the forward pass, `step` and `zero_grad`."""
        self._takeover.begin(self.on_step, self._on_zero_grad, self.comm.size > 1)
        self._attached = True
        self._leave_samplers = watch_samplers(self._training)
        if self.comm.size > 1 or self._overlap is not None:
            self._watch_forward()
        if self._cost is not None:
            self._cost.attach(self.model)
        if self._overlap is not None:
            self._unwatch = self._overlap.watch(self._on_ready)

    def _training(self) -> int | None:
        return self._steps if self.model.training and torch.is_grad_enabled() else None

    def _watch_forward(self) -> None:
        """Let the program run on to where it needs the gradient as soon as a step begins.

        Alone there is nobody to whom it could talk meanwhile: the call optimizer.step() is early
        enough, and costs one switch to the program less.
        """
        if self._forward_hook is None:
            self._forward_hook = self.model.register_forward_pre_hook(self._on_forward)

    # The steps.

    def _resume(self, answer: Any = None) -> None:
        try:
            self._fiber.resume_anywhere(answer)
        except BaseException as error:
            self._error = error
            raise

    def _on_forward(self, model: nn.Module, args: Any) -> None:
        if (
            self._body.wants is BATCH
            and model.training
            and torch.is_grad_enabled()
            and not inside_backward()
        ):
            self._resume(True)

    def _on_ready(self, layer: int) -> None:
        """A backward pass has added to a gradient; called inside it."""
        assert self._overlap is not None
        if self._error is not None:
            raise self._not_running()
        try:
            self._overlap.ready(layer)
        except BaseException as error:
            self._error = error
            raise

    def _on_zero_grad(self, set_to_none: bool) -> None:
        if self.closed:
            self._takeover.plain_zero_grad(set_to_none)
            return
        if self._overlap is not None:
            self._overlap.refuse_given("zero_grad() was called")
        self.flat.clear_grad()
        self._grad_version = self.flat.version

    def on_step(self, closure: Any) -> Any:
        """What `optimizer.step()` does now.

        Args:
            closure: computes the loss and its gradient; called once.

        Returns:
            What the closure returned, or None.
        """
        if self.closed:
            return self._plain_step(closure)
        refuse_in_backward("optimizer.step()")
        self._check()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._overlap is not None:
            self._overlap.take_back()
        self.flat.collect_grad()
        self._take_step()
        self.optimizer._opt_called = True  # pyright: ignore[reportAttributeAccessIssue]
        return loss

    def _check(self) -> None:
        """What may have changed since `begin`."""
        if self._body.wants is None or self._error is not None:
            raise self._not_running()
        if not self.flat.attached:
            raise InputError(
                "the model was moved, or its parameters replaced, since distribute(); move it "
                "before, and load checkpoints with load_state_dict()"
            )
        if len(self.optimizer.param_groups) != self._num_groups:
            raise InputError(
                "a parameter group was added to the optimizer since distribute(); call "
                "tw.finish() and distribute() again"
            )
        for name, param in self._frozen:
            if param.requires_grad:
                raise InputError(
                    f"parameter {name!r} was frozen when distribute() was called and is not now; "
                    "call tw.finish() and distribute() again on every rank"
                )
        if self.comm.size > 1 and "found_inf" in self.optimizer.__dict__:
            raise InputError(
                f"GradScaler on {self.comm.size} ranks is not supported: one rank would skip a "
                "step alone; use bfloat16 autocast, which needs no scaling"
            )

    def _not_running(self) -> InputError:
        where = f"rank {self.comm.rank}"
        if self._error is not None:
            return InputError(f"{where}: training has failed before: {self._error}")
        return InputError(
            f"{where}: the program of {type(self.method).__name__} ended by itself after "
            f"{self._steps} steps; call tw.finish()"
        )

    def _take_step(self) -> None:
        """One step of the program with the gradient in the flat buffer."""
        if self.comm.size > 1:
            if not self._compared:
                self._compared = True
                self.talk.compare_settings(self.optimizer)
            if self._ends is not None:
                self._ends.begin(self._steps + 1)
        self._to_next_batch()
        self._grad_version = self.flat.version
        self._steps += 1
        if self.journal is not None:
            self.journal.stepped(self._steps)

    def _to_next_batch(self) -> None:
        """Run the program through one step; its gradient is in the flat buffer."""
        body = self._body
        if body.wants is BATCH:
            body.ready = self._overlap is None
            self._resume(True)
            body.ready = False
        if body.wants is GRADIENT:
            self._resume()

    # Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """What the method must remember, copied."""
        self._check_resumable("state_dict()")
        if self._body.wants is not BATCH or self.flat.has_grad_since(self._grad_version):
            raise InputError(
                "state_dict() inside a step: call it after optimizer.step() and before the next "
                "forward pass, and before tw.finish()"
            )
        worker = self._worker
        return {
            **self._identity(),
            "steps": self._steps,
            "state": {name: kept.clone() for name, kept in vars(worker.state).items()},
            "rng": worker.rng.get_state(),
            "shared_rng": worker.shared_rng.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin where `state_dict` was called. All ranks call. Blocks."""
        self._check_resumable("load_state_dict()")
        if self._steps or self._body.wants is not BATCH:
            raise InputError("load_state_dict() after a step: call it right after distribute()")
        for key, value in self._identity().items():
            if state.get(key) != value:
                raise InputError(
                    f"the checkpoint is of {key} {state.get(key)}, this is {key} {value}; each "
                    "rank loads its own, of a run with the same method on as many ranks"
                )
        steps = int(state["steps"])
        if self.comm.size > 1:
            told = self.talk.share(steps, "resumed steps")
            if len(set(told)) > 1:
                raise InputError(f"the ranks' checkpoints are of different steps, by rank: {told}")
        self._fiber.kill()
        self._steps = steps
        self._body.wants = None
        self._worker = Worker(self.comm, self._body)
        self._worker.resume(steps, state["state"])
        self._worker.rng.set_state(state["rng"])
        self._worker.shared_rng.set_state(state["shared_rng"])
        self._fiber = Fiber(self._program)
        self._resume()

    def _identity(self) -> dict[str, Any]:
        """What a checkpoint and the run that it is loaded into must have in common."""
        method, comm = repr(self.method), self.comm
        return {"format": _FORMAT, "method": method, "rank": comm.rank, "size": comm.size}

    def _check_resumable(self, what: str) -> None:
        if not self.method.traits.resumable:
            raise InputError(
                f"{what}: method {type(self.method).__name__} can't be gone on with from a "
                "checkpoint (its traits don't say resumable)"
            )

    # The end.

    def finish(self) -> None:
        """Run the program to its end, together with the other ranks. Blocks.

        Raises:
            ThinwireError: what ended it otherwise; the others are told.
        """
        if self.closed:
            return
        try:
            if self._error is not None:
                raise self._error
            self._run_out()
            if self.journal is not None:
                self.journal.end()
        except BaseException as error:
            self.close(error)
            raise
        self.close(None)

    def _run_out(self) -> None:
        if self._overlap is not None:
            self._overlap.end()
        if self.comm.size > 1 and not self._compared:
            self.talk.compare_settings(self.optimizer)
        if self._ends is not None:
            self._follow(self._ends)
        for _ in range(_MAX_ROUNDS):
            if not self._fiber.alive:
                break
            self.flat.clear_grad()
            # Without other ranks nobody has taken the step that a last forward pass began.
            self._body.in_vain = self._body.wants is GRADIENT
            self._resume(False)
        else:
            raise ThinwireError(
                f"the program of {type(self.method).__name__} goes on asking for batches after "
                "their end; end it when batches() gives none, or at w.plan.steps"
            )
        if self._ends is not None and self.method.traits.agree:
            check_digests(self.talk.share(digest(self.flat.params_P), "digest"))

    def _follow(self, ends: AbstractEnds) -> None:
        """Take empty steps for as long as another rank takes real ones.

        A step that was begun by a forward pass but never taken is taken by all, in vain.
        """
        ends.leave(self._steps, self._steps + (self._body.wants is GRADIENT))
        while ends.beyond(self._steps):
            adopt(self.optimizer, ends.settings_at(self._steps + 1))
            self._empty_step()
        # A method may apply something after the last step.
        adopt(self.optimizer, ends.last_settings)
        if ends.begun > self._steps:
            self._body.in_vain = True
            self._empty_step()

    def _empty_step(self) -> None:
        self.flat.clear_grad()
        self._to_next_batch()
        self._steps += 1

    def close(self, error: BaseException | None) -> None:
        """Make model and optimizer ordinary again and leave the run: with a goodbye, or telling
        the others what went wrong."""
        if self.closed:
            return
        self.closed = True
        if self._attached:
            self._detach()
        if error is None:
            self.comm.__exit__(None, None, None)
            return
        if self.journal is not None:
            self.journal.fail(error)
        with contextlib.suppress(Exception):
            self._fiber.kill()
        self.comm.__exit__(type(error), error, error.__traceback__)

    def _detach(self) -> None:
        if self._forward_hook is not None:
            self._forward_hook.remove()
        if self._unwatch is not None:
            self._unwatch()
        if self._cost is not None:
            self._cost.detach()
        self._leave_samplers()
        self._takeover.end()
