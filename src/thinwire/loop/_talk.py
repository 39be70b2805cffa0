"""What an in-loop run has to say beside the method: by messages, or through the clock server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from thinwire import collectives
from thinwire.errors import InputError
from thinwire.loop._agree import (
    DIFFER,
    AbstractEnds,
    Ends,
    Settings,
    compare_settings,
    facts_of,
    gather,
    share,
)
from thinwire.wire.base import Comm
from thinwire.wire.packet import Packet
from thinwire.wire.sockets import SocketComm
from thinwire.wire.virtual.remote import RemoteComm

__all__ = ["AbstractTalk", "LoopComm", "ServerTalk", "WireTalk", "talk_over"]

LoopComm = SocketComm | RemoteComm
"""What a loop needs beyond `Comm`: servers beside it, and an end."""


class AbstractTalk(ABC):
    """What the ranks tell each other beside the training."""

    @abstractmethod
    def share(self, value: Any, name: str) -> list[Any]:
        """Every rank's value, by rank; all ranks call. Blocks."""

    @abstractmethod
    def gather(self, value: Any, name: str) -> list[Any]:
        """Every rank's value, by rank, at rank 0 at least; all ranks call. May block."""

    @abstractmethod
    def broadcast(self, tensor: torch.Tensor, index: int) -> None:
        """Give all ranks rank 0's tensor, in place. Blocks."""

    @abstractmethod
    def compare_settings(self, optimizer: torch.optim.Optimizer) -> None:
        """Hold the optimizers of all ranks to equal settings. May block."""

    @abstractmethod
    def ends(self, settings: Callable[[], Settings]) -> AbstractEnds:
        """For loops of unequal length."""


class WireTalk(AbstractTalk):
    """By messages of the run's own wire."""

    def __init__(self, comm: Comm):
        self._comm = comm

    def share(self, value: Any, name: str) -> list[Any]:
        """See `AbstractTalk`."""
        return share(self._comm, value, name)

    def gather(self, value: Any, name: str) -> list[Any]:
        """See `AbstractTalk`."""
        return gather(self._comm, value, name)

    def broadcast(self, tensor: torch.Tensor, index: int) -> None:
        """See `AbstractTalk`."""
        collectives.broadcast(self._comm, tensor, tag=("loop", index))

    def compare_settings(self, optimizer: torch.optim.Optimizer) -> None:
        """See `AbstractTalk`."""
        compare_settings(self._comm, optimizer)

    def ends(self, settings: Callable[[], Settings]) -> AbstractEnds:
        """See `AbstractTalk`."""
        return Ends(self._comm, settings)


class ServerTalk(AbstractTalk):
    """Through the clock server, without virtual time or bytes."""

    def __init__(self, comm: RemoteComm):
        self._comm = comm

    def share(self, value: Any, name: str) -> list[Any]:
        """See `AbstractTalk`."""
        return self._comm.share(name, value).values

    def gather(self, value: Any, name: str) -> list[Any]:
        """See `AbstractTalk`."""
        return self.share(value, name)

    def broadcast(self, tensor: torch.Tensor, index: int) -> None:
        """See `AbstractTalk`."""
        root = self._comm.rank == 0
        frames = Packet((tensor.detach().reshape(-1),)).frames() if root else ()
        found = self._comm.share(f"tensor {index}", None, frames).frames
        if not root:
            tensor.copy_(Packet.from_frames(found).buffers[0].view(tensor.shape))

    def compare_settings(self, optimizer: torch.optim.Optimizer) -> None:
        """See `AbstractTalk`. Doesn't block: the server ends the run where they differ."""
        self._comm.compare("settings", facts_of(optimizer), DIFFER, InputError.__name__)

    def ends(self, settings: Callable[[], Settings]) -> AbstractEnds:
        """See `AbstractTalk`."""
        return _ServerEnds(self._comm, settings)


class _ServerEnds(AbstractEnds):
    def __init__(self, comm: RemoteComm, settings: Callable[[], Settings]):
        self._comm = comm
        self._settings = settings
        self._next: Settings = []
        self._last: Settings = []
        self._begun = 0

    def begin(self, step: int) -> None:
        self._comm.begin_step(step, self._settings())

    def leave(self, step: int, begun: int) -> None:
        self._comm.leave_steps(step, begun, self._settings())

    def beyond(self, step: int) -> bool:
        further, self._next, self._last, self._begun = self._comm.beyond(step)
        return further

    def settings_at(self, step: int) -> Settings:
        return self._next

    @property
    def last_settings(self) -> Settings:
        return self._last

    @property
    def begun(self) -> int:
        return self._begun


def talk_over(comm: LoopComm) -> AbstractTalk:
    """The talk that goes with a communicator."""
    return ServerTalk(comm) if isinstance(comm, RemoteComm) else WireTalk(comm)
