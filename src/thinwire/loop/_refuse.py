"""What cannot work, said before training begins."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from thinwire.errors import InputError
from thinwire.methods import LocalSGD, Method

__all__ = ["check", "check_free", "check_method", "optimized"]

_WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "FSDPModule")


def check(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Reject what is no plain model with a plain optimizer.

    Raises:
        InputError: naming the module, parameter or group.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}; allowed: a torch.nn.Module")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(
            f"optimizer is a {type(optimizer).__name__}; allowed: a torch.optim.Optimizer. Call "
            "distribute() before another library wraps it"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InputError(
            "optimizer is LBFGS, which takes many gradients in one step; allowed: optimizers that "
            "take one, such as SGD and AdamW"
        )
    for name, module in model.named_modules():
        _check_module(name or "the model", module)
    for name, param in model.named_parameters():
        if isinstance(param, nn.parameter.UninitializedParameter):
            raise InputError(
                f"parameter {name!r} has no shape yet: run one forward pass before distribute()"
            )
    _check_groups(model, optimizer)


def _check_module(name: str, module: nn.Module) -> None:
    kinds = [kind.__name__ for kind in type(module).__mro__]
    for wrapper in _WRAPPERS:
        if wrapper in kinds:
            raise InputError(
                f"{name} is wrapped in {wrapper}, which exchanges gradients itself; give "
                "distribute() the model inside (model.module)"
            )
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
        raise InputError(
            f"parameter '{name}.weight' would have sparse gradients, which are not supported: "
            "build its layer with sparse=False"
        )


def _check_groups(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    own = {id(p) for p in model.parameters()}
    for index, group in enumerate(optimizer.param_groups):
        for param in group["params"]:
            if id(param) not in own:
                raise InputError(
                    f"parameter group {index} of the optimizer holds a tensor of shape "
                    f"{tuple(param.shape)} that is no parameter of the model; build the optimizer "
                    "from this model's parameters, and call distribute() for each pair"
                )


def check_method(method: Method, size: int) -> None:
    """Reject a method that cannot do what it says in a loop of this many ranks.

    Raises:
        InputError: naming the method and the setting.
    """
    name = type(method).__name__
    if method.traits.workers == "fastest" and size > 1:
        raise InputError(f"method {name} uses one machine, but {size} ranks have come: start 1")
    if isinstance(method, LocalSGD) and method.pace != "equal":
        raise InputError(
            f"pace = {method.pace!r} has no effect in a loop of your own, where the speeds are not "
            "known; allowed: equal"
        )


def optimized(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """The parameters that an optimizer steps."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def check_free(
    model: nn.Module, optimizer: torch.optim.Optimizer, taken: Sequence[nn.Parameter]
) -> None:
    """Reject parameters that another open loop trains already.

    Raises:
        InputError: naming the parameter.
    """
    busy, wanted = {id(p) for p in taken}, {id(p) for p in optimized(optimizer)}
    for name, param in model.named_parameters():
        if id(param) in wanted and id(param) in busy:
            raise InputError(
                f"parameter {name!r} has been given to distribute() already; call tw.finish() first"
            )
