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
    """What torchrun said, and what each rank wrote to its standard error; none is left."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(num_processes)),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--rdzv-id", tmp_path.name),
        *("--log-dir", str(tmp_path / "logs"), "--redirects", "2"),
        *(str(script), how, str(tmp_path)),
    ]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, env=env)
    pids = [int((tmp_path / str(rank)).read_text()) for rank in range(num_processes)]
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    logs = sorted((tmp_path / "logs").glob("*/attempt_0/*/stderr.log"))
    assert len(logs) == num_processes
    return done, [log.read_text() for log in logs]


def blamed(stderr):
    root = stderr[stderr.index("Root Cause") :]
    match = re.search(r"rank\s*:\s*(\d+)", root)
    assert match is not None
    return int(match.group(1)), root


def test_a_run_without_trouble_ends_well(tmp_path):
    done, _ = launch(tmp_path, "nothing")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the end") == 4


@pytest.mark.parametrize("how", ["kill", "raise"])
def test_the_summary_blames_the_rank_that_really_failed(tmp_path, how):
    done, said = launch(tmp_path, how)
    assert done.returncode == 1
    rank, root = blamed(done.stderr)
    assert rank == 2
    if how == "kill":
        assert f"exitcode  : {-signal.SIGKILL}" in root
        why = r"PeerDiedError: rank 2 \(pid .*"
    else:
        why = r".*failed at step 0: ValueError: a bad batch"
    for survivor in (0, 1, 3):
        assert re.search(rf"{why}; rank {survivor}\b", said[survivor]), said[survivor]
    assert "SIGABRT" not in done.stderr


def test_survivors_that_compute_learn_from_sigterm_who_died(tmp_path):
    done, said = launch(tmp_path, "compute", 2)
    assert done.returncode == 1
    assert blamed(done.stderr)[0] == 1
    assert re.search(r"PeerDiedError: rank 1 .* rank 0, step 0 was told to stop", said[0])


ENDING = """
import os, signal, sys, time
from thinwire.wire.sockets import connect

def write_late(*told):
    os.kill(os.getpid(), signal.SIGTERM)  # as a launcher does that has lost patience
    time.sleep(5)
sys.excepthook = write_late
for how in sys.argv[1:]:
    try:
        with connect() as comm:
            if how != "well":
                raise ValueError(f"a batch that is {how}")
    except ValueError:
        if how == "caught":
            continue
        raise
os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize(
    ("hows", "said"),
    [
        (["bad"], "ValueError: a batch that is bad"),
        (["caught", "bad"], "ValueError: a batch that is bad"),
        (["caught", "well"], ""),
    ],
)
def test_one_stopped_before_its_traceback_is_written_says_why_it_ended(hows, said):
    command = [sys.executable, "-c", ENDING, *hows]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGTERM
    assert done.stderr.count("told to stop") == bool(said)
    assert said in done.stderr
