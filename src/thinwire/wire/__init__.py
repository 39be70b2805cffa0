"""The seam between a training method and the outside world."""

from thinwire.wire.base import ANY, Arrival, Comm, Losses, Posted, Tag, Task, Work
from thinwire.wire.faults import Crash, Delay, Drop, Fault, FaultPlan, Partition
from thinwire.wire.meter import Meter, PeerMeter
from thinwire.wire.packet import Packet, header_nbytes

__all__ = [
    "ANY",
    "Arrival",
    "Comm",
    "Crash",
    "Delay",
    "Drop",
    "Fault",
    "FaultPlan",
    "Losses",
    "Meter",
    "Packet",
    "Partition",
    "PeerMeter",
    "Posted",
    "Tag",
    "Task",
    "Work",
    "header_nbytes",
]
