"""The relay that adds latency to a lab, and the options of the benchmark that uses it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


sys.path.insert(0, str(BENCHMARKS))
netns, relay, wire = (importlib.import_module(name) for name in ("netns", "relay", "wire"))


def arrived(line: Any, now: float) -> list[tuple[int, bytes]]:
    return list(line.due(now))


def test_a_frame_arrives_after_the_delay_and_its_own_length():
    line = relay.DelayLine(rate=1000.0, delay=2.0)
    line.put(10.0, 1, bytes(500))
    assert line.pause(10.0, 60.0) == 2.5
    assert arrived(line, 12.4) == []
    assert arrived(line, 12.5) == [(1, bytes(500))]
    assert line.pause(13.0, 60.0) == 60.0


def test_frames_of_one_receiver_follow_each_other_and_others_do_not_wait():
    line = relay.DelayLine(rate=1000.0, delay=0.0)
    line.put(0.0, 1, b"a" * 40)
    line.put(0.0, 1, b"b" * 40)
    line.put(0.0, 2, b"c" * 40)
    assert [to for to, _ in arrived(line, 0.04)] == [1, 2]
    assert [frame[:1] for _, frame in arrived(line, 0.08)] == [b"b"]


def test_frames_keep_their_order_at_equal_times():
    line = relay.DelayLine(rate=1e12, delay=1.0)
    for i in range(20):
        line.put(0.0, i % 3, bytes([i]))
    assert [frame[0] for _, frame in arrived(line, 1.1)] == list(range(20))


def test_what_would_wait_too_long_is_dropped():
    line = relay.DelayLine(rate=1000.0, delay=5.0)
    for _ in range(10):
        line.put(0.0, 1, bytes(20))  # 20 ms each, and 50 ms of buffer
    assert line.dropped == 7
    assert len(arrived(line, 6.0)) == 3


@pytest.mark.parametrize(("rate", "delay"), [(0.0, 0.1), (1.0, -0.1), (float("nan"), 0.0)])
def test_impossible_links_are_refused(rate, delay):
    with pytest.raises(ValueError, match=r"rate = .*, delay = .*"):
        relay.DelayLine(rate, delay)


def test_rates_are_read_as_tc_writes_them():
    assert netns.bytes_per_second("1gbit") == 125e6
    with pytest.raises(ValueError, match="rate = '5mb'"):
        netns.bytes_per_second("5mb")


PING = """
import socket, sys, time
sock = socket.create_connection((sys.argv[1], 5000), timeout=20)
began = time.monotonic()
sock.sendall(b"x")
assert sock.recv(1) == b"y"
print(time.monotonic() - began)
"""
PONG = """
import socket
with socket.create_server(("", 5000)) as server:
    print("ready", flush=True)
    server.settimeout(20)
    peer, _ = server.accept()
    assert peer.recv(1) == b"x"
    peer.sendall(b"y")
"""


@pytest.mark.distributed
@pytest.mark.skipif(bool(netns.why_not()), reason=netns.why_not() or "possible")
def test_a_round_trip_through_the_relay_takes_twice_the_delay():
    with netns.Lab(2, "100mbit", delay=0.03) as lab:
        inside = ["ip", "netns", "exec"]
        pong = subprocess.Popen(
            [*inside, lab._name(1), sys.executable, "-c", PONG], stdout=subprocess.PIPE
        )
        assert pong.stdout is not None
        assert pong.stdout.readline() == b"ready\n"
        ping = subprocess.run(
            [*inside, lab._name(0), sys.executable, "-c", PING, lab.address(1)],
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        assert pong.wait(timeout=30) == 0
        assert float(ping.stdout) >= 0.06
        bridges = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
        assert lab._name(0) in bridges
    left = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    assert lab._name(0) not in left


def test_the_benchmark_lists_its_rows_without_measuring(capsys):
    assert wire.main(["--list", "--rows", "target,crossover"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all("4 hosts 100mbit" in line for line in lines if line.startswith("target"))
    assert any("plain DDP compute 5" in line for line in lines)
    assert any(line.startswith("crossover") and "8 hosts" in line for line in lines)


def test_an_unknown_group_of_rows_is_refused_with_the_valid_ones(capsys):
    with pytest.raises(SystemExit) as end:
        wire.main(["--rows", "targte"])
    assert end.value.code == 2
    assert "--rows 'targte'; valid: target, crossover" in capsys.readouterr().err
