"""What large batches ask of an optimizer: a rate that grows with the batch, and one for each layer.

LARS and LAMB are ordinary torch optimizers. Given a layer table they step one flat vector layer by
layer, as if each tensor were a parameter of its own. `FlatSGD` is what replicas step with.

Shape suffixes: P all elements of a parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.sgd import sgd

from thinwire.errors import InputError
from thinwire.flat import Layer

__all__ = ["LAMB", "LARS", "FlatSGD", "scale_lr", "trust_ratio"]

_Params = Iterable[nn.Parameter] | Iterable[dict[str, Any]]


def scale_lr(lr: float, batch: int, lr_batch: int) -> float:
    """The learning rate for a batch, in proportion to its size: linear scaling.

    To be used with a warm-up: early on, the weights change too fast for the rule to hold.

    Args:
        lr: the rate that suits `lr_batch`.
        batch: samples of one update over all workers, at least 1.
        lr_batch: samples of one update for which `lr` was found, at least 1.

    Raises:
        InputError: a batch below 1.

    Reference: Goyal et al., Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour, 2017,
    arXiv 1706.02677.

    >>> scale_lr(0.1, batch=8192, lr_batch=256)
    3.2
    """
    for key, value in (("batch", batch), ("lr_batch", lr_batch)):
        if value < 1:
            raise InputError(f"{key} = {value}: at least 1 sample is needed")
    return lr * (batch / lr_batch)  # exactly lr where the batches are equal


def trust_ratio(x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """The norm of a layer's weights over that of its step, a scalar; 1 where either norm is 0.

    With 0 instead, a layer that begins at zero would stay there.
    """
    norm, other = torch.linalg.vector_norm(x), torch.linalg.vector_norm(step)
    return torch.where((norm > 0) & (other > 0), norm / other, 1.0)


class FlatSGD(torch.optim.SGD):
    """torch's SGD on one parameter, for those who step very often: the same arithmetic and state,
    without the profiler's marks and the hooks around a step, which take longer than a small step.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One update; without a gradient there is none.

        Raises:
            InputError: a closure.
        """
        if closure is not None:
            raise InputError("FlatSGD takes no closure")
        (group,) = self.param_groups
        (param,) = group["params"]
        if param.grad is None:
            return
        buffers = [self.state[param].get("momentum_buffer")]
        sgd(
            [param], [param.grad], buffers, foreach=False, fused=False,
            weight_decay=group["weight_decay"], momentum=group["momentum"], lr=group["lr"],
            dampening=group["dampening"], nesterov=group["nesterov"], maximize=group["maximize"],
        )  # fmt: skip
        if group["momentum"]:
            self.state[param]["momentum_buffer"] = buffers[0]

    step.hooked = True  # pyright: ignore[reportFunctionMemberAccess]  or torch would wrap it


class _ByLayer(torch.optim.Optimizer):
    """An optimizer that looks at one tensor after the other, of one flat vector or of many
    parameters."""

    def __init__(self, params: _Params, defaults: dict[str, Any], layers: Sequence[Layer] | None):
        super().__init__(params, defaults)
        self._layers = _covering(layers, self.param_groups)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One update, of the parameters that have a gradient; returns what `closure` does."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                if param.grad.layout is not torch.strided:
                    raise InputError("a sparse gradient is not supported: build its layer without")
                self._update(param, param.grad, group, self.state[param])
        return loss

    def _update(
        self, param: torch.Tensor, grad_P: torch.Tensor, group: dict[str, Any], state: Any
    ) -> None:
        """Step one parameter; `state` is its own, empty at first."""
        raise NotImplementedError

    def _large(
        self, param: torch.Tensor, step_P: torch.Tensor, min_dim: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Weights and step of each tensor that gets a rate of its own."""
        if self._layers is None:
            if param.dim() >= min_dim:
                yield param, step_P
            return
        for layer in self._layers:
            if len(layer.shape) >= min_dim:
                place = slice(layer.start, layer.stop)
                yield param[place], step_P[place]


class LARS(_ByLayer):
    """SGD with momentum whose rate is scaled, layer by layer, by ‖x‖ over the norm of its step.

    For batches so large that one rate is too high for some layers and too low for others. One more
    vector of memory, as for momentum. A layer's step then has a length of `lr · trust` times its
    weights', whatever the size of its gradient.

    Update rule, for each tensor: `u = g + β·x`; `u ← trust · ‖x‖/(‖g‖ + β·‖x‖) · u`;
    `v ← momentum·v + lr·u`; `x ← x − v`. The scale is 1 where ‖x‖ or ‖g‖ is 0.

    Reference: You, Gitman and Ginsburg, Large Batch Training of Convolutional Networks, 2017,
    arXiv 1708.03888. Often biases and norms are left out, which `min_dim=2` does: they then take a
    plain step, whose rate suits them only where `lr` is moderate. A tensor that begins at zero
    takes its first step at that rate anyway: warm up.

    Args:
        params: as for any torch optimizer.
        lr: the global rate, above 0; of the order of 1 to 30 with the default `trust`.
        momentum: 0 <= momentum < 1.
        weight_decay: β, at least 0.
        trust: the trust coefficient, above 0.
        min_dim: tensors of fewer dimensions take a plain step without weight decay.
        layers: of the only parameter, a flat vector: where each tensor lies in it.

    Raises:
        InputError: a value out of its range, or layers that don't cover the one parameter.

    Example:
        >>> LARS([nn.Parameter(torch.ones(2, 2))], lr=4.0).param_groups[0]["trust"]
        0.001
    """

    def __init__(
        self,
        params: _Params,
        lr: float,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
        min_dim: int = 0,
        layers: Sequence[Layer] | None = None,
    ):
        _check_common(lr, weight_decay, min_dim)
        if not 0 <= momentum < 1:
            raise InputError(f"momentum = {momentum}: 0 <= momentum < 1 is needed")
        if not (trust > 0 and math.isfinite(trust)):
            raise InputError(f"trust = {trust}: a finite number above 0 is needed")
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay,
                    "trust": trust, "min_dim": min_dim}  # fmt: skip
        super().__init__(params, defaults, layers)

    def _update(
        self, param: torch.Tensor, grad_P: torch.Tensor, group: dict[str, Any], state: Any
    ) -> None:
        if not state:
            state["momentum_buffer"] = torch.zeros_like(param)
        step_P = grad_P.clone()
        for x, u in self._large(param, step_P, group["min_dim"]):
            _scale_lars(x, u, group["weight_decay"], group["trust"])
        velocity_P = state["momentum_buffer"]
        velocity_P.mul_(group["momentum"]).add_(step_P, alpha=group["lr"])
        param.sub_(velocity_P)


class LAMB(_ByLayer):
    """Adam whose step is scaled, layer by layer, to the norm of the layer's weights.

    What LARS is to SGD; for large batches of models that want Adam. Two more vectors of memory, as
    for Adam.

    Update rule, for each tensor: `m ← β1·m + (1−β1)·g`; `v ← β2·v + (1−β2)·g²`;
    `u = m/(1−β1^t) / (√(v/(1−β2^t)) + eps) + weight_decay·x`; `x ← x − lr · ‖x‖/‖u‖ · u`. The scale
    is 1 where ‖x‖ or ‖u‖ is 0.

    Reference: You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 minutes,
    ICLR 2020, arXiv 1904.00962. Departures: the paper's φ is the identity; biases and norms take
    Adam's step without weight decay, as is usual; `min_dim=0` is the paper's text.

    Args:
        params: as for any torch optimizer.
        lr: the rate, above 0: a layer's relative change per update.
        betas: β1 and β2, each 0 <= β < 1.
        eps: above 0.
        weight_decay: at least 0.
        min_dim: tensors of fewer dimensions take Adam's step without weight decay.
        layers: of the only parameter, a flat vector: where each tensor lies in it.

    Raises:
        InputError: a value out of its range, or layers that don't cover the one parameter.

    Example:
        >>> LAMB([nn.Parameter(torch.ones(2, 2))], lr=0.002).param_groups[0]["betas"]
        (0.9, 0.999)
    """

    def __init__(
        self,
        params: _Params,
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        min_dim: int = 2,
        layers: Sequence[Layer] | None = None,
    ):
        _check_common(lr, weight_decay, min_dim)
        if not all(0 <= beta < 1 for beta in betas):
            raise InputError(f"betas = {betas}: 0 <= beta < 1 is needed of both")
        if not (eps > 0 and math.isfinite(eps)):
            raise InputError(f"eps = {eps}: a finite number above 0 is needed")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
                    "min_dim": min_dim}  # fmt: skip
        super().__init__(params, defaults, layers)

    def _update(
        self, param: torch.Tensor, grad_P: torch.Tensor, group: dict[str, Any], state: Any
    ) -> None:
        if not state:
            state.update(
                step=0, exp_avg=torch.zeros_like(param), exp_avg_sq=torch.zeros_like(param)
            )
        state["step"] += 1
        step_P = _adam_step(state, grad_P, group["betas"], group["eps"])
        for x, u in self._large(param, step_P, group["min_dim"]):
            u.add_(x, alpha=group["weight_decay"])
            u.mul_(trust_ratio(x, u))
        param.sub_(step_P, alpha=group["lr"])


def _scale_lars(x: torch.Tensor, u: torch.Tensor, weight_decay: float, trust: float) -> None:
    """A layer's gradient `u` becomes its scaled step, in place."""
    norm, grad = torch.linalg.vector_norm(x), torch.linalg.vector_norm(u)
    scale = trust * norm / (grad + weight_decay * norm)
    u.add_(x, alpha=weight_decay).mul_(torch.where((norm > 0) & (grad > 0), scale, 1.0))


def _adam_step(
    state: dict[str, Any], grad_P: torch.Tensor, betas: tuple[float, float], eps: float
) -> torch.Tensor:
    """Adam's step (P,), a new tensor, with both moments corrected; writes the moments in place."""
    (beta1, beta2), count = betas, state["step"]
    mean_P = state["exp_avg"].mul_(beta1).add_(grad_P, alpha=1 - beta1)
    square_P = state["exp_avg_sq"].mul_(beta2).addcmul_(grad_P, grad_P, value=1 - beta2)
    root_P = square_P.sqrt().div_(math.sqrt(1 - beta2**count)).add_(eps)
    return root_P.reciprocal_().mul_(mean_P).div_(1 - beta1**count)


def _covering(
    layers: Sequence[Layer] | None, groups: Sequence[dict[str, Any]]
) -> tuple[Layer, ...] | None:
    if layers is None:
        return None
    params = [param for group in groups for param in group["params"]]
    if len(params) != 1 or params[0].dim() != 1:
        raise InputError(f"layers with {len(params)} parameters: they are of one flat vector")
    stops = [0, *(layer.stop for layer in layers)]
    starts = [*(layer.start for layer in layers), params[0].numel()]
    if starts != stops:
        raise InputError(
            f"layers: they don't cover the parameter's {params[0].numel()} elements one after the "
            "other"
        )
    return tuple(layers)


def _check_common(lr: float, weight_decay: float, min_dim: int) -> None:
    if not (lr > 0 and math.isfinite(lr)):
        raise InputError(f"lr = {lr}: a finite number above 0 is needed")
    if not (weight_decay >= 0 and math.isfinite(weight_decay)):
        raise InputError(f"weight_decay = {weight_decay}: a finite number, at least 0, is needed")
    if min_dim < 0:
        raise InputError(f"min_dim = {min_dim}: at least 0 is needed")
