"""`thinwire launch`: the file of hosts, the lines, and runs over an ssh that runs them here."""

from __future__ import annotations

import io
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from thinwire.errors import InputError
from thinwire.run.launch import Hosts, Limits, Machine, launch_lines, load_hosts, run_over_ssh

FILE = """
schema = 1
port = 29511
master = "bob"

[defaults]
python = "/opt/env/bin/python"
workdir = "~/my work"
env = { OMP_NUM_THREADS = "4", MODE = "fast" }

[[hosts]]
name = "alice"
address = "10.0.0.1"
interface = "eth1"

[[hosts]]
name = "bob"
address = "10.0.0.2"
processes = 2
interface = "10.0.0.2"
ssh = "me@bob"
env = { MODE = "it's slow" }
"""

SSH = """#!/bin/sh
# An ssh that runs the command on this machine; some targets misbehave.
while [ "$1" = -T ] || [ "$1" = -o ]; do
    [ "$1" = -o ] && shift
    shift
done
target=$1
shift
case $target in
    refuses) echo "ssh: connect to host refuses port 22: Connection refused" >&2; exit 255 ;;
    hangs) exec sleep 600 ;;
esac
exec sh -c "$*"
"""

QUICK = Limits(connect=60.0, settle=0.2, patience=60.0, grace=2.0)
SLEEP = "Path(f'pid-{name}').write_text(str(os.getpid())); time.sleep(600)"


@dataclass
class Done:
    """What a launch came to."""

    code: int
    out: str
    err: str


def write(folder: Path, text: str = FILE) -> Path:
    file = folder / "hosts.toml"
    file.write_text(text)
    return file


def test_the_file_is_read_with_its_defaults_and_the_master_first(tmp_path):
    hosts = load_hosts(write(tmp_path))
    bob, alice = hosts.machines
    assert hosts.port == 29511
    assert bob == Machine(
        name="bob",
        address="10.0.0.2",
        processes=2,
        interface="10.0.0.2",
        python="/opt/env/bin/python",
        workdir="~/my work",
        env={"OMP_NUM_THREADS": "4", "MODE": "it's slow"},
        ssh="me@bob",
    )
    assert (bob.target, alice.target) == ("me@bob", "10.0.0.1")
    assert alice.env["MODE"] == "fast"


def test_the_lines_say_to_a_shell_what_is_meant(tmp_path):
    bob, alice = launch_lines(load_hosts(write(tmp_path)), ["train.py", "--name", "a b"])
    common = "--master-addr 10.0.0.2 --master-port 29511 train.py --name 'a b'"
    assert alice == (
        "cd ~/'my work' && THINWIRE_INTERFACE=eth1 GLOO_SOCKET_IFNAME=eth1 OMP_NUM_THREADS=4 "
        "MODE=fast /opt/env/bin/python -m torch.distributed.run --nnodes 2 --node-rank 1 "
        f"--nproc-per-node 1 {common}"
    )
    words = shlex.split(bob)
    assert "MODE=it's slow" in words
    assert "GLOO_SOCKET_IFNAME=10.0.0.2" not in words  # gloo takes names only
    assert words[words.index("--node-rank") + 1] == "0"
    assert words[words.index("--nproc-per-node") + 1] == "2"


def test_a_host_with_a_name_alone_uses_the_torchrun_on_its_path(tmp_path):
    hosts = load_hosts(write(tmp_path, '[[hosts]]\nname = "alice"\n'))
    (line,) = launch_lines(hosts, ["-m", "thinwire", "doctor"])
    assert line.startswith("torchrun --nnodes 1 ")
    assert line.endswith("--master-addr alice --master-port 29500 -m thinwire doctor")


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("hosts = 3", 1, "array of tables"),
        ("port = 1", 1, "no hosts"),
        ("[[hosts]\n", 1, "not valid TOML"),
        ("schema = 2\n[[hosts]]\nname = 'a'", 1, "schema 1"),
        ("[[nodes]]\nname = 'a'", 1, "cluster to simulate"),
        ("prot = 1\n[[hosts]]\nname = 'a'", 1, "did you mean 'port'"),
        ("port = 70000\n[[hosts]]\nname = 'a'", 1, "1 to 65535"),
        ("master = 'c'\n[[hosts]]\nname = 'a'", 1, "master = 'c'"),
        ("[[hosts]]\naddress = 'a'", 1, "needs a name"),
        ("[[hosts]]\nname = 'a'\n[[hosts]]\nname = 'a'", 4, "is there twice"),
        ("[[hosts]]\nname = 'a'\naddress = 'x'\n[[hosts]]\nname = 'x'\n", 4, "address = 'x'"),
        ("[[hosts]]\nname = 'a'\nproces = 1", 3, "did you mean 'processes'"),
        ("[[hosts]]\nname = 'a'\nprocesses = 0", 3, "1 to 1024"),
        ("[[hosts]]\nname = 'a'\naddress = '-oProxyCommand=x'", 3, "begin with '-'"),
        ("[[hosts]]\nname = 'a'\n\nenv = { RANK = '0' }", 4, "torchrun sets it"),
        ("[[hosts]]\nname = 'a'\nenv = { A = 1 }", 3, "must be text"),
        ("[[hosts]]\nname = 'a'\nenv = { 'A-B' = '1' }", 3, "no name of a variable"),
        ("[defaults]\nname = 'a'\n[[hosts]]\nname = 'a'", 2, "unknown key 'name'"),
        ("[[hosts]]\nname = 'a'\n[[hosts]]\nname = 'b'\naddress = '127.0.0.1'", 5, "loopback"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path, text, line, says):
    file = write(tmp_path, text)
    with pytest.raises(InputError) as error:
        load_hosts(file)
    assert str(error.value).startswith(f"{file}:{line}: ")
    assert says in str(error.value)


def test_a_missing_file_is_bad_input(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        load_hosts(tmp_path / "hosts.toml")


# Over ssh. In place of torchrun stands a program that is told how to behave on each host.


@pytest.fixture
def _ssh(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(SSH)
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def fake(tmp_path, _ssh) -> Callable[..., Hosts]:
    """Hosts whose python runs a line of code instead of torchrun."""

    def make(**codes: str) -> Hosts:
        machines = []
        for name, code in codes.items():
            python = tmp_path / f"python-{name}"
            program = tmp_path / f"{name}.py"
            program.write_text(
                "import os, signal, subprocess, sys, time\nfrom pathlib import Path\n"
                f"name = {name!r}\n{code}\n"
            )
            # The keeper itself is started by `python -c`, the command by `python -m ...`.
            python.write_text(
                f'#!/bin/sh\n[ "$1" = -m ] && exec {sys.executable} {program} "$@"\n'
                f'exec {sys.executable} "$@"\n'
            )
            python.chmod(0o755)
            machines.append(
                Machine(
                    name=name,
                    address=name,
                    python=str(python),
                    workdir=str(tmp_path),
                    env={"GREETING": "it's me"},
                )
            )
        return Hosts(machines=tuple(machines))

    return make


def launch(hosts: Hosts, limits: Limits = QUICK) -> Done:
    out, err = io.StringIO(), io.StringIO()
    code = run_over_ssh(hosts, ["train.py", "a b"], limits, out, err)
    return Done(code, out.getvalue(), err.getvalue())


def gone(folder: Path, name: str) -> bool:
    """Whether a process that wrote its number has ended."""
    until = time.monotonic() + 60.0
    pid = int((folder / f"pid-{name}").read_text())
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        threading.Event().wait(0.05)
    return False


def after(*names: str) -> str:
    """Code that waits until these hosts have written their process numbers."""
    return f"while not all(Path(f'pid-{{n}}').exists() for n in {names!r}): time.sleep(0.02)\n"


@pytest.mark.distributed
def test_output_is_gathered_line_by_line_and_labelled(fake):
    done = launch(
        fake(
            alice="print(sys.argv[-1], os.environ['GREETING']); print('10%\\r20%')",
            bo="print('oops', file=sys.stderr); print(os.getcwd(), end='')",
        )
    )
    assert done.code == 0
    assert sorted(done.out.splitlines())[:3] == [
        "[alice] 10%",
        "[alice] 20%",
        "[alice] a b it's me",
    ]
    assert "[bo]    /" in done.out  # a line without an end counts too
    assert done.err == "[bo]    oops\n"


@pytest.mark.distributed
def test_when_one_fails_all_are_ended_and_its_code_is_returned(fake, tmp_path):
    done = launch(fake(alice=SLEEP, bob=f"{after('alice')}print('dying'); sys.exit(3)"))
    assert done.code == 3
    assert "[bob]   dying" in done.out
    assert "launch: bob ended with exit code 3\nlaunch: ending alice\n" in done.err
    assert gone(tmp_path, "alice")


@pytest.mark.distributed
@pytest.mark.slow
def test_a_host_that_does_not_want_to_end_is_killed_with_its_children(fake, tmp_path):
    stubborn = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"Path('pid-child').write_text(str(child.pid))\n{SLEEP}"
    )
    done = launch(fake(alice=stubborn, bob=f"{after('alice', 'child')}sys.exit(4)"))
    assert done.code == 4
    assert gone(tmp_path, "alice")
    assert gone(tmp_path, "child")


@pytest.mark.distributed
def test_a_killed_command_is_told_by_its_signal(fake):
    done = launch(fake(alice="os.kill(os.getpid(), signal.SIGKILL)"))
    assert done.code == 128 + 9
    assert "alice ended with exit code 137" in done.err


@pytest.mark.distributed
def test_a_host_that_refuses_ssh_is_named_and_ends_the_rest(fake, tmp_path):
    hosts = fake(alice=SLEEP, refuses="pass")
    done = launch(hosts, Limits(connect=60.0, settle=0.0, patience=60.0, grace=2.0))
    assert done.code == 255
    assert "[refuses] ssh: connect to host refuses port 22: Connection refused" in done.err
    assert "launch: refuses cannot be reached: ssh refuses failed" in done.err


@pytest.mark.distributed
@pytest.mark.slow
def test_a_host_that_does_not_answer_is_named_within_the_deadline(fake, tmp_path):
    done = launch(
        fake(hangs="pass", alice=SLEEP),
        Limits(connect=3.0, settle=0.2, patience=60.0, grace=2.0),
    )
    assert done.code == 1
    assert "launch: hangs: no answer within 3 s" in done.err
    assert "ssh hangs python3 --version" in done.err


@pytest.mark.distributed
def test_a_host_that_stays_long_after_the_others_is_ended(fake, tmp_path):
    hosts = fake(alice=after("bob"), bob=SLEEP)
    done = launch(hosts, Limits(connect=60.0, settle=0.2, patience=0.2, grace=2.0))
    assert done.code == 1
    assert "launch: bob: still running long after the others" in done.err
    assert gone(tmp_path, "bob")


@pytest.mark.distributed
@pytest.mark.usefixtures("_ssh")
def test_a_missing_python_or_folder_is_said():
    absent = Machine(name="alice", address="alice", python="/absent/python")
    done = launch(Hosts(machines=(absent,)))
    assert done.code == 127
    assert "could not start: is there a /absent/python?" in done.err
    lost = Machine(name="alice", address="alice", python=sys.executable, workdir="/absent")
    done = launch(Hosts(machines=(lost,)))
    assert done.code == 127
    assert "/absent" in done.err


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)]
)
def test_a_launcher_that_is_stopped_takes_its_hosts_with_it(fake, tmp_path, number, code):
    """SIGKILL too: the hosts see the connection end."""
    hosts = fake(alice=SLEEP, bob=SLEEP)
    text = "".join(
        f'[[hosts]]\nname = "{m.name}"\npython = "{m.python}"\nworkdir = "{m.workdir}"\n'
        for m in hosts.machines
    )
    command = ["launch", "--ssh", str(write(tmp_path, text)), "train.py"]
    with subprocess.Popen(
        [sys.executable, "-m", "thinwire", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        until = time.monotonic() + 60.0
        while not all((tmp_path / f"pid-{name}").exists() for name in ("alice", "bob")):
            assert process.poll() is None
            assert time.monotonic() < until
            threading.Event().wait(0.05)
        process.send_signal(number)
        try:
            _, err = process.communicate(timeout=60.0)
        except subprocess.TimeoutExpired:  # where signals are ignored: fail, don't wait for ever
            process.kill()
            raise
    assert process.returncode == code
    if number != signal.SIGKILL:
        assert "interrupted: ending all hosts" in err
        assert "Traceback" not in err
    assert gone(tmp_path, "alice")
    assert gone(tmp_path, "bob")


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.usefixtures("_ssh")
def test_two_hosts_of_one_machine_meet_through_torchrun(tmp_path):
    """Uneven numbers of processes; the doctor sees the three as one group."""
    text = f"""
    port = {free_port()}
    [defaults]
    python = "{sys.executable}"
    workdir = "{tmp_path}"
    [[hosts]]
    name = "alice"
    address = "127.0.0.1"
    [[hosts]]
    name = "bob"
    address = "127.0.0.2"
    processes = 2
    """
    task = ["--task", "thinwire.testing.toys:Moons", "--json", "seen.json"]
    out, err = io.StringIO(), io.StringIO()
    code = run_over_ssh(
        load_hosts(write(tmp_path, text)), ["-m", "thinwire", "doctor", *task], None, out, err
    )
    assert code == 0, err.getvalue()
    assert "[alice] rank 2: " in out.getvalue()
    assert "[alice] link 1-2: " in out.getvalue()
    assert (tmp_path / "seen.json").exists()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
