"""`thinwire launch`: the torchrun line of every host of a run, printed or started over ssh.

Over ssh each host gets a keeper (`_keeper.py`), sent as text, that starts torchrun there and ends
it with all its processes when the connection closes. So to end a host is to close its input, and a
launcher that dies takes the run with it.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, TextIO

from thinwire.errors import InputError
from thinwire.run._hosts import Hosts, Machine, load_hosts

__all__ = ["Hosts", "Limits", "Machine", "launch_lines", "load_hosts", "run_over_ssh"]

_KEEPER = Path(__file__).with_name("_keeper.py")
_SSH_FAILED = 255


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds.

    Args:
        connect: for ssh to reach a host and start there.
        settle: that the others have to end by themselves when one has failed: they name the cause.
        patience: that the others have when one has ended well.
        grace: between asking a host's processes to end and killing them.
    """

    connect: float = 30.0
    settle: float = 5.0
    patience: float = 60.0
    grace: float = 10.0


def launch_lines(hosts: Hosts, command: Sequence[str]) -> list[str]:
    """The line to type on each host.

    Args:
        hosts: the first is node 0.
        command: a script, or -m and a module, with arguments.

    >>> hosts = Hosts(machines=(Machine(name="a", address="10.0.0.1"),))
    >>> launch_lines(hosts, ["train.py", "--lr", "0.1"])[0].partition(" --master-addr")[0]
    'torchrun --nnodes 1 --node-rank 0 --nproc-per-node 1'
    """
    lines = []
    for i, machine in enumerate(hosts.machines):
        env = _environment(machine)
        words = [*(f"{name}={shlex.quote(value)}" for name, value in env.items())]
        words.append(shlex.join(_torchrun(hosts, i, command)))
        if machine.workdir:
            words.insert(0, f"cd {_quoted_path(machine.workdir)} &&")
        lines.append(" ".join(words))
    return lines


def _quoted_path(path: str) -> str:
    """Quoted, but for a leading ~ that the shell is to read."""
    if path == "~" or path.startswith("~/"):
        return "~" + ("/" + shlex.quote(path[2:]) if path[2:] else "")
    return shlex.quote(path)


def _torchrun(hosts: Hosts, node: int, command: Sequence[str]) -> list[str]:
    machine = hosts.machines[node]
    runner = [machine.python, "-m", "torch.distributed.run"] if machine.python else ["torchrun"]
    return [
        *runner,
        *("--nnodes", str(len(hosts.machines)), "--node-rank", str(node)),
        *("--nproc-per-node", str(machine.processes)),
        *("--master-addr", hosts.machines[0].address, "--master-port", str(hosts.port)),
        *command,
    ]


def _environment(machine: Machine) -> dict[str, str]:
    if machine.interface is None:
        return dict(machine.env)
    found = {"THINWIRE_INTERFACE": machine.interface}
    if not machine.interface.replace(".", "").isdigit() and ":" not in machine.interface:
        found["GLOO_SOCKET_IFNAME"] = machine.interface  # it takes names only
    return {**found, **machine.env}


def run_over_ssh(
    hosts: Hosts,
    command: Sequence[str],
    limits: Limits | None = None,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> int:
    """Start all hosts, pass their output on line by line, and end all when one ends.

    Args:
        hosts: the first is node 0.
        command: a script, or -m and a module, with arguments; it must lie on every host.
        limits: how long to wait for what.
        out: for the hosts' output.
        err: for their errors and what the launcher itself says.

    Returns:
        0, or the exit code of the first host that failed: 255 where ssh itself did.

    Raises:
        KeyboardInterrupt: after all hosts have been ended.
    """
    limits = limits or Limits()
    printer = _Printer(hosts, out or sys.stdout, err or sys.stderr)
    with _signals():
        return _Launch(hosts, command, limits, printer).run()


class _Stopped(KeyboardInterrupt):
    """SIGTERM or SIGHUP came."""


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """A launcher that is asked to end ends its hosts first."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise _Stopped(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    before = [signal.signal(number, stop) for number in numbers]  # nohup keeps its meaning
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


class _Printer:
    """Whole lines, labelled by host, from many threads."""

    def __init__(self, hosts: Hosts, out: TextIO, err: TextIO):
        self._width = max(len(machine.name) for machine in hosts.machines) + 2
        self._out = out
        self._err = err
        self._lock = threading.Lock()
        self.broken = False

    def line(self, name: str, text: str, error: bool) -> None:
        self._write(self._err if error else self._out, f"{f'[{name}]':<{self._width}} {text}")

    def say(self, text: str) -> None:
        self._write(self._err, f"launch: {text}")

    def _write(self, file: TextIO, text: str) -> None:
        try:
            with self._lock:
                print(text, file=file, flush=True)
        except (BrokenPipeError, ValueError):
            self.broken = True  # nobody reads: seen, and acted on, by the launch


@dataclass
class _Remote:
    """A host that has been started."""

    machine: Machine
    process: subprocess.Popen[bytes]
    threads: list[threading.Thread] = field(default_factory=list)
    answered: threading.Event = field(default_factory=threading.Event)
    code: int | None = None


class _Launch:
    """One run on all hosts."""

    def __init__(self, hosts: Hosts, command: Sequence[str], limits: Limits, printer: _Printer):
        self._hosts = hosts
        self._command = command
        self._limits = limits
        self._printer = printer
        self._marker = f"thinwire-launch {uuid.uuid4().hex}"
        self._ended: queue.Queue[_Remote] = queue.Queue()
        self._remotes: list[_Remote] = []
        self._failed = 0

    def run(self) -> int:
        try:
            for node in range(len(self._hosts.machines)):
                self._remotes.append(self._start(node))
            self._wait()
        except KeyboardInterrupt:
            self._printer.say("interrupted: ending all hosts")
            raise
        finally:
            self._end_all()
        return self._code()

    def _start(self, node: int) -> _Remote:
        machine = self._hosts.machines[node]
        order = {
            "marker": self._marker,
            "command": _torchrun(self._hosts, node, self._command),
            "workdir": machine.workdir,
            "env": {"PYTHONUNBUFFERED": "1", **_environment(machine)},
            "grace": self._limits.grace,
        }
        program = f"{_KEEPER.read_text()}\nkeep({json.dumps(order)!r})\n".encode()
        python = shlex.quote(machine.python or "python3")
        remote_command = f"{python} -c 'import sys; exec(sys.stdin.buffer.read({len(program)}))'"
        connect = max(1, int(self._limits.connect / 2))
        options = ("BatchMode=yes", f"ConnectTimeout={connect}", "ServerAliveInterval=5",
                   "ServerAliveCountMax=3")  # fmt: skip
        ssh = ["ssh", "-T", *(word for option in options for word in ("-o", option))]
        try:
            process = subprocess.Popen(
                [*ssh, machine.target, remote_command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # a terminal's Ctrl-C is for the launcher alone
            )
        except OSError as error:
            raise InputError(f"cannot start ssh: {error}") from error
        remote = _Remote(machine, process)
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended already, and will say why
            process.stdin.write(program)
            process.stdin.flush()
        for file, error in ((process.stdout, False), (process.stderr, True)):
            assert file is not None
            self._thread(remote, self._pass_on, remote, file, error)
        threading.Thread(target=self._watch, args=(remote,), daemon=True).start()
        return remote

    def _thread(self, remote: _Remote, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # pyright: ignore[reportArgumentType]
        remote.threads.append(thread)
        thread.start()

    def _watch(self, remote: _Remote) -> None:
        code = remote.process.wait()
        for thread in remote.threads:  # what it said last belongs before the word of its end
            thread.join(1.0)
        remote.code = code if code >= 0 else 128 - code
        self._ended.put(remote)

    def _pass_on(self, remote: _Remote, file: IO[bytes], error: bool) -> None:
        for text in _split(file):
            if text.endswith(self._marker):
                remote.answered.set()
            else:
                self._printer.line(remote.machine.name, text, error)

    # The run.

    def _wait(self) -> None:
        """Until all have ended, or it is time to end them."""
        started, until = time.monotonic(), float("inf")
        alive = len(self._remotes)
        while alive:
            try:
                self._note_end(self._ended.get(timeout=0.1))
                alive -= 1
                until = min(until, time.monotonic() + self._left())
            except queue.Empty:
                pass
            if self._printer.broken or time.monotonic() > until:
                return
            if time.monotonic() > started + self._limits.connect and self._silent():
                return

    def _left(self) -> float:
        return self._limits.settle if self._failed else self._limits.patience

    def _note_end(self, remote: _Remote) -> None:
        if remote.code and not self._failed:
            self._failed = remote.code
            self._printer.say(f"{remote.machine.name} {_why(remote)}")

    def _silent(self) -> bool:
        """Whether a host has not answered in time; it then is the first that failed."""
        for remote in self._remotes:
            if remote.code is None and not remote.answered.is_set():
                name, target = remote.machine.name, remote.machine.target
                self._printer.say(
                    f"{name}: no answer within {self._limits.connect:g} s; does "
                    f"ssh {target} python3 --version work without a password?"
                )
                self._failed = self._failed or 1
                return True
        return False

    # The end.

    def _end_all(self) -> None:
        alive = [remote for remote in self._remotes if remote.process.poll() is None]
        if alive:
            names = ", ".join(remote.machine.name for remote in alive)
            self._printer.say(f"ending {names}")
        for remote in alive:
            assert remote.process.stdin is not None
            with contextlib.suppress(OSError):
                remote.process.stdin.close()
        until = time.monotonic() + self._limits.grace + 8.0
        for remote in alive:
            self._end(remote, until)
        for remote in self._remotes:
            for thread in remote.threads:
                thread.join(1.0)

    def _end(self, remote: _Remote, until: float) -> None:
        if not remote.answered.is_set():
            until = min(until, time.monotonic() + 2.0)  # perhaps there is no keeper
        try:
            remote.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(remote.process.pid, signal.SIGKILL)
            remote.process.wait()
            if remote.answered.is_set():
                self._printer.say(
                    f"{remote.machine.name}: did not end; processes may be left there"
                )
        except KeyboardInterrupt:
            self._printer.say("interrupted again: not waiting for the hosts any longer")
            for other in self._remotes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(other.process.pid, signal.SIGKILL)

    def _code(self) -> int:
        if self._failed:
            return self._failed
        late = [r.machine.name for r in self._remotes if r.code != 0]
        if late:
            self._printer.say(f"{', '.join(late)}: still running long after the others, so ended")
        return int(bool(late))


def _why(remote: _Remote) -> str:
    if remote.code == _SSH_FAILED and not remote.answered.is_set():
        return f"cannot be reached: ssh {remote.machine.target} failed (exit code 255)"
    if remote.code == _SSH_FAILED:
        return "was lost: its ssh connection ended (exit code 255)"
    if not remote.answered.is_set():
        python = remote.machine.python or "python3"
        return f"could not start: is there a {python}? (exit code {remote.code})"
    return f"ended with exit code {remote.code}"


def _split(file: IO[bytes]) -> Iterator[str]:
    """Lines as they come; a carriage return ends one too, or a progress bar would never show."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    rest = ""
    while piece := os.read(file.fileno(), 1 << 16):
        rest += decoder.decode(piece)
        *lines, rest = rest.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        yield from (line for line in lines if line)
    if rest:
        yield rest
