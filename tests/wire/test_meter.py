"""Counters of an endpoint."""

from __future__ import annotations

from typing import Any, cast

import pytest

from thinwire.wire.meter import Meter, PeerMeter


def test_sums_are_over_all_peers():
    meter = Meter()
    meter.peer(1).sent, meter.peer(3).sent = 5, 7
    meter.peer(3).waited, meter.local.waited = 0.5, 0.25
    assert (meter.sent, meter.waited) == (12, 0.75)


@pytest.mark.parametrize("what", ["sent", "received", "messages_sent", "waited"])
def test_a_peer_may_be_met_while_a_sum_is_read(what):
    """The communication thread counts a first packet in the middle of the program's look."""
    meter = Meter()

    class Met:
        def __getattr__(self, name: str) -> int:
            meter.peer(len(meter.peers))
            return 2

    meter.peers[0] = cast(PeerMeter, cast(Any, Met()))
    meter.peers[1] = cast(PeerMeter, cast(Any, Met()))
    assert getattr(meter, what) == 4
    assert len(meter.peers) > 2
