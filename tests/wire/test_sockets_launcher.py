"""Under torchrun: who is blamed, how processes end, and that none is left."""

import os
import re
import signal
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

SCRIPT = """
import os, signal, sys, time
import torch
from thinwire.wire import Packet
from thinwire.wire.sockets import connect

how, folder = sys.argv[1:]
with connect(deadline=20) as comm:
    open(f"{folder}/{comm.rank}", "w").write(str(os.getpid()))
    packet = Packet((torch.ones(1),))
    for peer in range(comm.size):
        if peer != comm.rank:
            comm.post(peer, packet, "here")
    for _ in range(comm.size - 1):
        comm.wait(tag="here")
    if comm.rank == 2:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "raise":
            raise ValueError("a bad batch")
    if how == "compute" and comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "compute":
        total = torch.zeros(1)
        while True:  # survivors that never wait learn of the death by SIGTERM
            total += 1
    if how != "nothing":
        comm.wait((comm.rank + 1) % 2, "never")
print("the end", comm.rank)
"""


def launch(tmp_path, how, num_processes=4):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(num_processes)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--rdzv-id", tmp_path.name),
        *(str(script), how, str(tmp_path)),
    ]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, env=env)
    pids = [int((tmp_path / str(rank)).read_text()) for rank in range(num_processes)]
    return done, [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def blamed(stderr):
    root = stderr[stderr.index("Root Cause") :]
    match = re.search(r"rank\s*:\s*(\d+)", root)
    assert match is not None
    return int(match.group(1)), root


def test_a_run_without_trouble_ends_well(tmp_path):
    done, alive = launch(tmp_path, "nothing")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the end") == 4
    assert alive == []


@pytest.mark.parametrize("how", ["kill", "raise"])
def test_the_summary_blames_the_rank_that_really_failed(tmp_path, how):
    done, alive = launch(tmp_path, how)
    assert done.returncode == 1
    rank, root = blamed(done.stderr)
    assert rank == 2
    if how == "kill":
        assert f"exitcode  : {-signal.SIGKILL}" in root
        # Twice by one that is told to stop while it says so.
        told = re.findall(r"PeerDiedError: rank 2 \(pid .*; rank (\d)", done.stderr)
        assert set(told) == {"0", "1", "3"}
    else:
        assert done.stderr.count("failed at step 0: ValueError: a bad batch; rank") == 3
    assert "SIGABRT" not in done.stderr
    assert alive == []


def test_survivors_that_compute_learn_from_sigterm_who_died(tmp_path):
    done, alive = launch(tmp_path, "compute", 2)
    assert done.returncode == 1
    assert blamed(done.stderr)[0] == 1
    assert re.search(r"PeerDiedError: rank 1 .* rank 0, step 0 was told to stop", done.stderr)
    assert alive == []
