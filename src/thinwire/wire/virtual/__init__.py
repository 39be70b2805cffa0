"""The virtual cluster."""

from thinwire.wire.virtual.clock import Clock
from thinwire.wire.virtual.world import LinkModel, World

__all__ = ["Clock", "LinkModel", "World"]
