"""Which settings around a method go with it, said before training begins."""

from __future__ import annotations

from thinwire.errors import InputError
from thinwire.methods.base import Method

__all__ = ["check_collectives", "check_optimizer"]


def check_optimizer(method: Method, optimizer: str, momentum: float) -> None:
    """Reject an optimizer that would apply momentum to what holds the method's own already.

    Args:
        method: the method.
        optimizer: its name, in any case.
        momentum: its momentum.

    Raises:
        InputError: naming the setting and where the momentum is set instead.
    """
    if method.traits.momentum != "method":
        return
    name = type(method).__name__
    if momentum:
        raise InputError(
            f"momentum = {momentum:g} of the optimizer with {name}, which has its own and applies "
            "it before selection: set the method's momentum, and the optimizer's (train.momentum) "
            "to 0"
        )
    if optimizer.lower() != "sgd":
        raise InputError(
            f"optimizer = {optimizer!r} with {name}, whose steps hold momentum already; allowed: "
            "sgd without momentum"
        )


def check_collectives(method: Method, collectives: str) -> None:
    """Reject torch.distributed's collectives where a method would make no use of them.

    Args:
        method: the method.
        collectives: "written" or "native".

    Raises:
        InputError: naming the setting.
    """
    if collectives != "written" and (
        method.traits.packets_only or method.traits.workers == "fastest"
    ):
        raise InputError(
            f"wire.collectives = {collectives!r} has no effect with {type(method).__name__}, which "
            "exchanges packets of its own; allowed: written"
        )
