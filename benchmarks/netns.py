"""A small laboratory of network namespaces: hosts on one bridge, each behind a shaped link.

Linux only, as root, with iproute2. Nothing leaves the machine. Each host is a namespace with one
interface, `e0`, at 10.78.LAB.(host+1); a token bucket at both ends of its link shapes both
directions. Latency is added where asked for: frames then pass through `relay.py` instead of the
bridge. Several labs may stand side by side.

    with Lab(2, "1gbit") as lab:
        processes = lab.start([sys.executable, "train.py"])
        lab.cut(1)

From a shell: python benchmarks/netns.py 4 100mbit -- COMMAND ... runs a command on every host, with
RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set, and prints the interface counters.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

try:
    from relay import Relay
except ImportError:  # loaded from a test, by path
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from relay import Relay

__all__ = ["Counters", "Lab", "bytes_per_second", "on_the_wire", "why_not"]

_BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_STATISTICS = "/sys/class/net/e0/statistics"


def bytes_per_second(rate: str) -> float:
    """Of a rate as tc writes it.

    >>> bytes_per_second("100mbit")
    12500000.0
    """
    number, unit = rate[:-4], rate[-4:]
    if unit not in _BITS:
        raise ValueError(f"rate = {rate!r}; a number and one of {', '.join(_BITS)}")
    return float(number) * _BITS[unit] / 8


def on_the_wire(counter: str = "tx_bytes") -> int:
    """What the asking host has sent, in bytes or, by "tx_packets", in frames; 0 outside a lab."""
    path = Path(_STATISTICS, counter)
    return int(path.read_text()) if path.exists() else 0


def why_not() -> str:
    """Why no lab can be built here; empty where one can."""
    if not sys.platform.startswith("linux"):
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not (shutil.which("ip") and shutil.which("tc")):
        return "ip and tc are needed (Debian: apt-get install iproute2)"
    probe = subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False)
    return "" if probe.returncode == 0 else "this container may not make network namespaces"


@dataclass(frozen=True)
class Counters:
    """Bytes that a host's interface has sent and received."""

    sent: int
    received: int


class Lab:
    """Hosts 0..n-1 behind shaped links, up from construction to `close`.

    Args:
        num_hosts: 1..250.
        rate: of every link, as tc writes it ("100mbit").
        rates: of single hosts, by host.
        delay: seconds one way that frames are held back, by one thread of this process. Rates are
            then alike, and cannot be changed; links cannot be cut.
    """

    built = 0

    def __init__(
        self,
        num_hosts: int,
        rate: str,
        rates: Mapping[int, str] | None = None,
        delay: float = 0.0,
    ):
        reason = why_not()
        if reason:
            raise RuntimeError(reason)
        self.num_hosts = num_hosts
        # Other labs may stand beside this one, or be only half gone: names and the network carry
        # a number of our own.
        Lab.built += 1
        number = os.getpid() * 7 + Lab.built
        self._id = f"{number % 100_000}"
        self._net = number % 250 + 1
        self._bridge = f"twb{self._id}"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._relay = Relay(bytes_per_second(rate), delay) if delay else None
        try:
            if self._relay is None:
                _ip("link", "add", self._bridge, "type", "bridge")
                _ip("link", "set", self._bridge, "up")
            for host in range(num_hosts):
                self._add(host, (rates or {}).get(host, rate))
            if self._relay is not None:
                self._relay.start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _name(self, host: int) -> str:
        return f"tw{self._id}h{host}"

    def _veth(self, host: int) -> str:
        return f"tv{self._id}h{host}"

    def _add(self, host: int, rate: str) -> None:
        name, veth = self._name(host), self._veth(host)
        _ip("netns", "add", name)
        if self._relay is None:
            _ip("link", "add", veth, "type", "veth", "peer", "name", "e0", "netns", name)
            _ip("link", "set", veth, "master", self._bridge)
            _ip("link", "set", veth, "up")
        else:
            self._relay.attach(veth)
            _ip("link", "set", veth, "netns", name, "name", "e0")
        _ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "e0")
        _ip("-n", name, "link", "set", "e0", "up")
        _ip("-n", name, "link", "set", "lo", "up")
        self.shape(host, rate)

    def address(self, host: int) -> str:
        """Of a host's interface."""
        return f"10.78.{self._net}.{host + 1}"

    def shape(self, host: int, rate: str) -> None:
        """Give a host's link another rate; it may be in use."""
        # A bucket of 1 ms, as a switch port would hold, and of a few frames at least: a larger one
        # lets a message of that size through at once after a pause, and flatters small messages.
        burst = str(max(32_768, round(1e-3 * bytes_per_second(rate))))
        bucket = ("root", "tbf", "rate", rate, "burst", burst, "latency", "50ms")
        if self._relay is None:
            _run("tc", "qdisc", "replace", "dev", self._veth(host), *bucket)
        _run("tc", "-n", self._name(host), "qdisc", "replace", "dev", "e0", *bucket)

    def cut(self, host: int) -> None:
        """Take a host's link down, as a pulled cable would."""
        _ip("link", "set", self._veth(host), "down")

    def mend(self, host: int) -> None:
        """Take it up again."""
        _ip("link", "set", self._veth(host), "up")

    def counters(self, host: int) -> Counters:
        """What a host's interface has carried since the lab was built."""
        command = ("cat", f"{_STATISTICS}/tx_bytes", f"{_STATISTICS}/rx_bytes")
        text = _run("ip", "netns", "exec", self._name(host), *command)
        return Counters(*map(int, text.split()))

    def start(
        self,
        command: Sequence[str],
        *,
        port: int = 29511,
        env: Mapping[str, str] | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> list[subprocess.Popen[bytes]]:
        """Start a command on every host at once, with the environment of one process a host."""
        for host in range(self.num_hosts):
            place = {
                "RANK": str(host),
                "LOCAL_RANK": "0",
                "WORLD_SIZE": str(self.num_hosts),
                "MASTER_ADDR": self.address(0),
                "MASTER_PORT": str(port),
                "GLOO_SOCKET_IFNAME": "e0",
                "TP_SOCKET_IFNAME": "e0",
            }
            self._processes.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", self._name(host), *command],
                    env={**os.environ, **place, **(env or {})},
                    stdout=stdout,
                    stderr=stderr,
                )
            )
        return self._processes[-self.num_hosts :]

    def close(self) -> None:
        """End what still runs and take everything down."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        if self._relay is not None:
            self._relay.close()
        for host in range(self.num_hosts):
            subprocess.run(["ip", "link", "del", self._veth(host)], capture_output=True)
            subprocess.run(["ip", "netns", "del", self._name(host)], capture_output=True)
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True)


def _ip(*words: str) -> str:
    return _run("ip", *words)


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def main() -> int:
    """The shell form; returns the first bad exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("hosts", type=int)
    parser.add_argument("rate", help='as tc writes it: "100mbit"')
    parser.add_argument("--delay", type=float, default=0.0, help="seconds one way")
    parser.add_argument("--cut", metavar="HOST:SECONDS", help="cut a host's link after a while")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    reason = why_not()
    if reason:
        print(f"netns: {reason}", file=sys.stderr)
        return 2
    with Lab(options.hosts, options.rate, delay=options.delay) as lab:
        processes = lab.start(options.command)
        if options.cut:
            host, seconds = options.cut.split(":")
            time.sleep(float(seconds))
            lab.cut(int(host))
        codes = [process.wait() for process in processes]
        for host in range(options.hosts):
            counters = lab.counters(host)
            print(f"host {host}: sent {counters.sent}, received {counters.received} bytes")
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())
