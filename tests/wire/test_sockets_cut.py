"""A link that is cut, in network namespaces: needs root."""

import importlib.util
import sys
import time
from pathlib import Path
from subprocess import PIPE

import pytest

spec = importlib.util.spec_from_file_location(
    "netns", Path(__file__).parents[2] / "benchmarks" / "netns.py"
)
netns = importlib.util.module_from_spec(spec)
sys.modules["netns"] = netns
spec.loader.exec_module(netns)

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.slow,
    pytest.mark.skipif(bool(netns.why_not()), reason=netns.why_not() or "possible"),
]

PROGRAM = """
import sys, torch
from thinwire.wire import Packet
from thinwire.wire.sockets import connect

how = sys.argv[1]
with connect(warn_after=60) as comm:
    packet = Packet((torch.ones(1),))
    big = Packet((torch.ones(3_000_000),))
    for peer in range(comm.size):
        if peer != comm.rank:
            comm.post(peer, packet, "here")
    for _ in range(comm.size - 1):
        comm.wait(tag="here")
    print("ready", flush=True)
    last = comm.size - 1
    if how == "busy" and comm.rank != last:
        comm.post(last, big, "big")
    # Nobody waits for the lost host; a wait of 30 s that ends by its deadline fails the test.
    comm.wait((comm.rank + 1) % last if comm.rank < last else 0, "never", 30)
"""


@pytest.mark.parametrize("how", ["idle", "busy"])
def test_a_host_behind_a_cut_link_is_named_within_30_seconds(how):
    with netns.Lab(3, "20mbit") as lab:
        processes = lab.start([sys.executable, "-c", PROGRAM, how], stdout=PIPE, stderr=PIPE)
        for process in processes:
            assert process.stdout.readline() == b"ready\n"
        lab.cut(2)
        outputs = [process.communicate(timeout=60)[1].decode() for process in processes]
    for rank, text in enumerate(outputs[:2]):
        assert f"PeerDiedError: rank 2 (pid {processes[2].pid}" in text, text
        assert f"rank {rank} was waiting for rank {1 - rank}" in text
    assert "PeerDiedError" in outputs[2]
    assert [process.returncode for process in processes] == [1, 1, 1]


def test_a_short_cut_and_a_slow_link_are_survived():
    program = PROGRAM.split("    last =")[0] + (
        "    if comm.rank == 0:\n"
        "        comm.post(1, big, 'big')\n"
        "        comm.wait(1, 'got', 100)\n"
        "    else:\n"
        "        comm.wait(0, 'big', 100)\n"
        "        comm.post(0, packet, 'got')\n"
    )
    with netns.Lab(2, "8mbit") as lab:
        processes = lab.start([sys.executable, "-c", program, "-"], stdout=PIPE, stderr=PIPE)
        for process in processes:
            assert process.stdout.readline() == b"ready\n"
        lab.cut(1)
        assert lab.counters(0).sent < 12_000_000
        time.sleep(3.0)  # the link is down meanwhile
        lab.mend(1)
        outputs = [process.communicate(timeout=90)[1].decode() for process in processes]
        carried = lab.counters(0).sent
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert 12_000_000 < carried < 13_500_000
