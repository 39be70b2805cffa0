"""The doctor: what it finds on one machine, between machines, and when somebody is missing."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import socket
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
import torch
from rich.console import Console

from thinwire.errors import InputError, RendezvousError
from thinwire.run.doctor import Examination, Request, examine, local, show, stuck, write_json
from thinwire.run.doctor.between import group_findings
from thinwire.run.doctor.board import Watchdog
from thinwire.run.doctor.machines import machine_findings
from thinwire.run.doctor.pairs import PairLimits, Target, answer, measure, rounds
from thinwire.run.doctor.render import check_json, lines
from thinwire.run.doctor.report import Facts, Finding, Interface, Lookup, MeterState, Pair, StepTime
from thinwire.run.doctor.steps import load_bench, time_steps
from thinwire.testing.processes import run_processes

MOONS = "thinwire.testing.toys:Moons"
QUICK = {"seconds": 0.05, "pairs": PairLimits(connect=1.0, pair=4.0)}
LIMITS = PairLimits(connect=1.0, pair=4.0)


def facts(rank: int = 0, size: int = 2, **changes: object) -> Facts:
    """A healthy rank on a host of its own."""
    healthy = Facts(
        rank=rank,
        size=size,
        hostname=f"host{rank}",
        host=f"id{rank}",
        pid=100 + rank,
        versions={"thinwire": "1", "torch": "2.9", "python": "3.11.1", "numpy": "2"},
        byte_order="little",
        interface=Interface(name="eth0", address=f"10.0.0.{rank + 1}", speed=125e6, mtu=1500),
        own_name=Lookup(name=f"host{rank}", addresses=[f"10.0.0.{rank + 1}"]),
        master_name=Lookup(name="host0", addresses=["10.0.0.1"]),
        cores=4,
        threads=4,
        load=0.1,
        ports="32768-60999",
        port_problem="",
        memory_total=16 << 30,
        memory_available=8 << 30,
        shared_memory=8 << 30,
        gpus=[],
        meters=[MeterState(name="CPU energy (RAPL)", readable=True, detail="1 counter")],
    )
    return msgspec.structs.replace(healthy, **changes)


def group(*ranks: Facts, rate: float = 100e6, **changes: object) -> Examination:
    """A healthy group of these ranks."""
    names = [f.rank for f in ranks]
    pairs = [
        Pair(low=low, high=high, round_trip=2e-4, up=rate, down=rate)
        for low, high in itertools.combinations(names, 2)
    ]
    steps = {
        r: StepTime(what="m", median=0.01, fastest=0.01, slowest=0.01, count=9, num_params=1000)
        for r in names
    }
    fields = {"size": len(ranks), "ranks": list(ranks), "pairs": pairs, "steps": steps, **changes}
    return Examination(**fields)


def found(examination: Examination, topic: str) -> list[Finding]:
    """All findings on a topic that call for something."""
    every = [*group_findings(examination), *machine_findings(examination)]
    return [f for f in every if f.topic == topic and f.level != "note"]


def test_a_healthy_group_has_nothing_to_mend():
    examination = group(facts(0), facts(1))
    every = [*group_findings(examination), *machine_findings(examination)]
    assert [f for f in every if f.level != "note"] == []


@pytest.mark.parametrize(
    ("change", "topic", "level", "says"),
    [
        ({"versions": {**facts().versions, "thinwire": "2"}}, "versions", "fix", "host1"),
        ({"versions": {**facts().versions, "torch": "2.10"}}, "versions", "fix", "torch differs"),
        ({"versions": {**facts().versions, "torch": "2.9+cpu"}}, "versions", "look", "2.9+cpu"),
        ({"versions": {**facts().versions, "python": "3.12.0"}}, "versions", "look", "python"),
        ({"byte_order": "big"}, "versions", "fix", "byte order"),
        ({"size": 3}, "world size", "fix", "3"),
        ({"interface": Interface(name="lo", address="127.0.0.1", kind="loopback")}, "interface",
         "fix", "loopback address 127.0.0.1"),
        ({"interface": Interface(problem="no route")}, "interface", "fix", "no route"),
        ({"interface": Interface(name="wg0", address="10.9.0.1", kind="virtual")}, "interface",
         "look", "wg0"),
        ({"master_name": Lookup(name="host0", addresses=["127.0.1.1"])}, "names", "fix",
         "MASTER_ADDR 'host0' is 127.0.1.1"),
        ({"own_name": Lookup(name="host1", addresses=["127.0.1.1"])}, "names", "look", "127.0.1.1"),
        ({"own_name": Lookup(name="host1", problem="unknown")}, "names", "look", "unknown"),
        ({"threads": 9}, "threads", "look", "more threads than cores"),
        ({"threads": 1}, "threads", "look", "idle"),
        ({"cores": 2, "threads": 2}, "threads", "look", "different numbers of threads"),
        ({"load": 3.5}, "load", "look", "busy already"),
        ({"memory_available": 1000}, "memory", "fix", "free of"),
        ({"shared_memory": 64 << 20}, "memory", "look", "/dev/shm"),
        ({"meters": [MeterState(name="bytes of eth0", readable=False, detail="gone")]}, "meters",
         "look", "gone"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_one_machine_is_found_and_named(change, topic, level, says):
    (finding,) = found(group(facts(0), facts(1, **change)), topic)
    assert finding.level == level
    assert says in finding.text
    assert finding.why
    assert "host1" in finding.text or "differ" in finding.text


def test_the_loopback_is_no_matter_on_one_machine():
    local_one = {"host": "id0", "interface": Interface(name="lo", address="127.0.0.1")}
    assert found(group(facts(0, **local_one), facts(1, **local_one)), "interface") == []


def test_a_slow_a_lopsided_and_a_misnegotiated_link_are_named():
    examination = group(facts(0), facts(1), facts(2), facts(3))
    examination.pairs[0] = msgspec.structs.replace(examination.pairs[0], up=20e6, down=20e6)
    (slow,) = found(examination, "links")
    assert "rank 0 (host0) and rank 1 (host1)" in slow.what
    examination = group(facts(0), facts(1))
    examination.pairs[0] = msgspec.structs.replace(examination.pairs[0], up=90e6)
    assert found(examination, "links") == []
    examination.pairs[0] = msgspec.structs.replace(examination.pairs[0], up=220e6)
    (lopsided,) = found(examination, "links")
    assert "up to the lower rank" in lopsided.what
    (bad_cable,) = found(group(facts(0), facts(1), rate=12e6), "links")
    assert "both interfaces state 1 Gbit/s" in bad_cable.what


def test_a_clock_is_named_above_a_tenth_of_a_second_only():
    def clocks(offset: float, trip: float) -> list[Finding]:
        pair = Pair(low=0, high=1, round_trip=trip, up=1e8, down=1e8, clock_offset=offset)
        return found(group(facts(0), facts(1), pairs=[pair]), "clocks")

    assert "behind" in clocks(0.15, 0.001)[0].what
    assert "ahead of" in clocks(-3.0, 0.001)[0].what
    assert clocks(0.09, 0.001) == []
    assert clocks(0.15, 0.2) == []  # within what the round trip leaves open


def test_a_slow_machine_gets_its_slowdown():
    examination = group(facts(0), facts(1), facts(2))
    examination.steps[2] = msgspec.structs.replace(examination.steps[2], median=0.04, slowest=0.04)
    (finding,) = found(examination, "step time")
    assert finding.text.startswith("rank 2 (host2): ")
    assert "slowdown = 4.0" in finding.todo


def test_absent_silent_and_unreachable_ranks_are_to_fix():
    examination = group(facts(0), facts(1), size=3, absent=[2])
    del examination.steps[1]
    examination.pairs[0] = Pair(low=0, high=1, problem="rank 1 cannot reach rank 0")
    assert "never came: 2" in found(examination, "absent")[0].what
    assert found(examination, "step time")[0].where == ("rank 1 (host1)",)
    assert found(examination, "pairs")[0].what == "rank 1 cannot reach rank 0"


# Measuring.


@pytest.mark.parametrize("size", [2, 3, 8, 9, 16])
def test_rounds_hold_every_pair_once_and_no_rank_twice_at_a_time(size):
    plan = rounds(range(size))
    every = [pair for pairs in plan for pair in pairs]
    assert sorted(every) == list(itertools.combinations(range(size), 2))
    for pairs in plan:
        ranks = [rank for pair in pairs for rank in pair]
        assert len(ranks) == len(dict.fromkeys(ranks))
    assert all(len(pairs) == 1 for pairs in plan) is (size <= 8)


def target_of(listener: socket.socket) -> Target:
    return Target(rank=0, address="127.0.0.1", port=listener.getsockname()[1], token=b"token")


def test_a_pair_measures_itself_and_turns_strangers_away(listener):
    with socket.create_connection(listener.getsockname()) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        answers: list[Pair] = []
        thread = threading.Thread(
            target=lambda: answers.append(answer(listener, b"token", 0, 1, LIMITS))
        )
        thread.start()
        pair = measure(target_of(listener), 1, "127.0.0.1", LIMITS)
        thread.join()
    assert pair.problem == answers[0].problem == ""
    assert pair.up > 1e6
    assert pair.down > 1e6
    assert 0 < pair.round_trip < 1
    assert abs(pair.clock_offset) <= pair.round_trip  # one clock


def test_a_closed_port_is_named_with_both_ends(listener):
    target = target_of(listener)
    listener.close()
    pair = measure(target, 1, "127.0.0.1", LIMITS)
    assert "rank 1 (127.0.0.1) cannot reach rank 0 at 127.0.0.1:" in pair.problem


def test_a_rank_that_answers_nothing_ends_at_the_limit(listener):
    pair = measure(target_of(listener), 1, "127.0.0.1", PairLimits(connect=0.2, pair=0.2))
    assert "connected, but no answer within 0.2 s" in pair.problem


@pytest.mark.slow
def test_a_link_that_passes_small_messages_only_is_told_apart(listener):
    def small_only() -> None:
        sock, _ = listener.accept()
        with sock:
            sock.recv(1024)  # the greeting, and perhaps the first ping
            for _ in range(20):
                sock.sendall(bytes(8))
            for _ in range(40):
                sock.recv(1024)

    threading.Thread(target=small_only, daemon=True).start()
    pair = measure(target_of(listener), 1, "127.0.0.1", PairLimits(connect=1.0, pair=1.0))
    assert pair.round_trip > 0
    assert "small messages pass" in pair.problem


def test_a_call_that_never_comes_is_named(listener):
    pair = answer(listener, b"token", 0, 5, PairLimits(connect=-0.9, pair=1.0))
    assert "no connection from rank 5 came to rank 0" in pair.problem


def test_what_hangs_is_given_up():
    release = threading.Event()
    assert local.in_time(lambda: 3, 60.0) == 3
    with pytest.raises(ZeroDivisionError):
        local.in_time(lambda: 1 // 0, 60.0)
    with pytest.raises(TimeoutError, match=r"within 0\.01 s"):
        local.in_time(release.wait, 0.01)
    assert stuck()
    release.set()


@pytest.mark.slow
@pytest.mark.parametrize("limits", [(0.01, 60.0), (60.0, 0.01)])
def test_the_watchdog_ends_a_process_that_outlives_every_deadline(monkeypatch, limits):
    codes: list[int] = []
    ended = threading.Event()

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    monkeypatch.setattr("thinwire.run.doctor.board.os._exit", end)
    said: list[str] = []
    watchdog = Watchdog(limits[0], lambda: said.append("given up"), limits[1])
    with watchdog, watchdog.call():
        assert ended.wait(60.0)
    assert (codes, said) == ([1], ["given up"])


def test_the_watchdog_lets_short_calls_be():
    said: list[str] = []
    with Watchdog(60.0, lambda: said.append("given up"), 60.0) as watchdog:
        for _ in range(3):
            with watchdog.call():
                pass
    assert said == []


def test_what_machines_have_in_common_is_said_once():
    module = sys.modules["thinwire.run.doctor.examine"]
    meters = [MeterState(name="CPU energy (RAPL)", readable=False, detail="none")]
    judged = module._judged(group(facts(0, meters=meters), facts(1, meters=meters)))
    (finding,) = [f for f in judged.findings if f.topic == "meters"]
    assert finding.where == ("host0 (rank 0)", "host1 (rank 1)")
    assert finding.text.startswith("host0 (rank 0), host1 (rank 1): CPU energy")


# The machine's own files.


def put(root: Path, name: str, text: str) -> None:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_meters_are_read_where_they_are_and_explained_where_not(tmp_path):
    rapl, _, counters = local.meter_states("eth7", tmp_path)
    assert not rapl.readable
    assert "none" in rapl.detail
    assert not counters.readable
    put(tmp_path, "sys/class/powercap/intel-rapl:0/energy_uj", "12345\n")
    for name in ("rx_bytes", "tx_bytes"):
        put(tmp_path, f"sys/class/net/eth7/statistics/{name}", "1\n")
    rapl, _, counters = local.meter_states("eth7", tmp_path)
    assert rapl == MeterState(name="CPU energy (RAPL)", readable=True, detail="1 counter")
    assert counters.readable
    put(tmp_path, "sys/class/powercap/intel-rapl:1/energy_uj", "secret\n")
    assert "chmod" in local.meter_states("", tmp_path)[0].todo


def test_a_container_has_the_memory_it_is_given(tmp_path):
    put(tmp_path, "proc/meminfo", "MemTotal: 1000 kB\nMemAvailable:  900 kB\n")
    assert local.memory_facts(tmp_path) == (1000 << 10, 900 << 10)
    put(tmp_path, "sys/fs/cgroup/memory.max", "102400\n")
    put(tmp_path, "sys/fs/cgroup/memory.current", "2400\n")
    assert local.memory_facts(tmp_path) == (102400, 100000)
    put(tmp_path, "sys/fs/cgroup/memory.max", "max\n")
    assert local.memory_facts(tmp_path) == (1000 << 10, 900 << 10)


def test_an_interface_is_told_by_its_files(tmp_path):
    put(tmp_path, "sys/class/net/lo/mtu", "65536\n")
    put(tmp_path, "sys/class/net/lo/speed", "100\n")
    told = local.interface_facts(None, "lo", tmp_path)
    assert (told.name, told.address, told.kind) == ("lo", "127.0.0.1", "loopback")
    assert (told.mtu, told.speed) == (65536, 0.0)
    put(tmp_path, "sys/class/net/lo/device/vendor", "0x1\n")
    assert local.interface_facts(None, "lo", tmp_path).speed == 12.5e6
    assert "no IPv4 address" in local.interface_facts(None, "eth99", tmp_path).problem


# The time of a step.


def test_a_task_is_timed_and_its_model_counted():
    timed = time_steps(load_bench(MOONS, "", None, 8), 0.01)
    assert timed.problem == ""
    assert timed.count >= 3
    assert 0 < timed.fastest <= timed.median <= timed.slowest
    assert timed.num_params > 0


@pytest.fixture
def own(monkeypatch) -> ModuleType:
    module = ModuleType("own_models")
    monkeypatch.setitem(sys.modules, "own_models", module)
    return module


def test_a_model_of_ones_own_is_stepped(own):
    calls: list[int] = []
    own.__dict__["make"] = lambda: (torch.nn.Linear(2, 3), lambda: calls.append(1))
    timed = time_steps(load_bench("digits", "own_models:make", None, 8), 0.0)
    assert timed.num_params == 9
    assert len(calls) == 2 + timed.count


def test_a_bad_model_is_refused_and_a_failing_one_reported(own):
    own.__dict__["nothing"] = lambda: torch.nn.Linear(2, 3)
    own.__dict__["fails"] = lambda: (torch.nn.Linear(2, 3), lambda: 1 // 0)
    for name in ("own_models", "own_models:absent", "no_such_module:make"):
        with pytest.raises(InputError, match="--model"):
            load_bench("digits", name, None, 8)
    assert (
        "return model, step"
        in time_steps(load_bench("digits", "own_models:nothing", None, 8), 0.0).problem
    )
    failed = time_steps(load_bench("digits", "own_models:fails", None, 8), 0.0)
    assert failed.problem.startswith("ZeroDivisionError")


# The whole.


@pytest.fixture
def _alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "THINWIRE_INTERFACE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_alone")
def test_one_machine_alone_is_examined():
    examination = examine(Request(task=MOONS, seconds=0.01))
    assert examination is not None
    assert [f.rank for f in examination.ranks] == [0]
    assert examination.steps[0].count >= 3
    assert "links were not measured" in "".join(lines(examination))
    order = [f.level for f in examination.findings]
    assert order == sorted(order, key=("fix", "look", "note").index)


@pytest.mark.usefixtures("_alone")
def test_an_unknown_task_is_bad_input():
    with pytest.raises(InputError, match="digts"):
        examine(Request(task="digts"))


def test_the_report_is_lines_on_a_pipe_tables_on_a_terminal_and_whole_in_json(tmp_path):
    examination = group(facts(0), facts(1))
    examination.findings = [Finding(level="fix", topic="t", what="WHAT", why="WHY", todo="DO")]
    plain, rich = io.StringIO(), io.StringIO()
    show(examination, Console(file=plain))
    show(examination, Console(file=rich, force_terminal=True, width=120))
    text = plain.getvalue()
    assert "fix: WHAT\n  why: WHY\n  do: DO\n1 to fix before a run, 0 to look at\n" in text
    assert "\x1b" not in text
    assert "link 0-1: round trip 200 µs, up 800 Mbit/s, down 800 Mbit/s" in text
    assert "round trip" in rich.getvalue()
    assert "\x1b[1;31mfix" in rich.getvalue()
    write_json(examination, tmp_path / "d.json")
    kept = json.loads((tmp_path / "d.json").read_text())
    assert (kept["schema"], kept["exit_code"], kept["findings"][0]["what"]) == (1, 1, "WHAT")
    assert kept["steps"]["1"]["count"] == 9
    assert [f.name for f in tmp_path.iterdir()] == ["d.json"]
    with pytest.raises(InputError, match="--json"):
        check_json(tmp_path / "absent" / "d.json")


# In processes. Each is told how to misbehave by its program.


def healthy(rank: int, size: int) -> Examination | None:
    return examine(Request(task=MOONS, **QUICK))


def walled_off(rank: int, size: int) -> Examination | None:
    """A firewall between ranks 1 and 2: the latter's calls meet a closed port."""
    module = sys.modules["thinwire.run.doctor.examine"]
    if rank == 2:

        def blocked(target: Target, *rest: Any) -> Pair:
            port = 1 if target.rank == 1 else target.port
            return measure(dataclasses.replace(target, port=port), *rest)

        vars(module)["measure"] = blocked
    return examine(Request(task=MOONS, **QUICK))


def late(rank: int, size: int) -> Examination | None:
    return examine(Request(task=MOONS, deadline=2.0, **QUICK))


def dies_after_coming(rank: int, size: int) -> Examination | None:
    if rank == 2:
        module = sys.modules["thinwire.run.doctor.examine"]
        module._Group._follow = lambda *_: None  # pyright: ignore[reportAttributeAccessIssue]
    limits = PairLimits(connect=1.0, pair=1.0)
    return examine(Request(task=MOONS, seconds=0.05, step_limit=4.0, slack=1.0, pairs=limits))


def unknown_task(rank: int, size: int) -> Examination | None:
    return examine(Request(task="digts", **QUICK))


def one_lacks_its_task(rank: int, size: int) -> Examination | None:
    return examine(Request(task=MOONS if rank == 0 else "digts", **QUICK))


@pytest.mark.distributed
@pytest.mark.slow
def test_all_ranks_are_examined_and_rank_0_knows():
    first, *others = run_processes(healthy, 3)
    assert others == [None, None]
    assert [f.rank for f in first.ranks] == [0, 1, 2]
    assert [(p.low, p.high) for p in first.pairs] == [(0, 1), (0, 2), (1, 2)]
    assert [p.problem for p in first.pairs] == ["", "", ""]
    assert all(min(p.up, p.down) > 0 for p in first.pairs)
    assert sorted(first.steps) == [0, 1, 2]
    assert first.exit_code == 0, first.findings


@pytest.mark.distributed
@pytest.mark.slow
def test_a_dead_pair_is_named_and_the_others_are_measured():
    first = run_processes(walled_off, 3)[0]
    problems = {(p.low, p.high): p.problem for p in first.pairs}
    assert "rank 2 (127.0.0.1) cannot reach rank 1 at 127.0.0.1:" in problems.pop((1, 2))
    assert problems == {(0, 1): "", (0, 2): ""}
    assert sorted(first.steps) == [0, 1, 2]
    assert [f.topic for f in first.findings if f.level == "fix"] == ["pairs"]


@pytest.mark.distributed
@pytest.mark.slow
def test_a_rank_that_never_comes_is_named_and_the_rest_goes_on():
    first, second = run_processes(late, 3, ranks=[0, 2])
    assert second is None
    assert first.absent == [1]
    assert [(p.low, p.high, p.problem) for p in first.pairs] == [(0, 2, "")]
    assert "never came: 1" in first.findings[0].what
    assert first.exit_code == 1


@pytest.mark.distributed
@pytest.mark.slow
def test_a_rank_that_dies_after_coming_is_named_and_the_rest_goes_on():
    first, second, _ = run_processes(dies_after_coming, 3)
    assert second is None
    problems = {(p.low, p.high): p.problem for p in first.pairs}
    assert problems.pop((0, 1)) == ""
    assert all("rank 2" in problem for problem in problems.values())
    assert "rank 2 (" in "".join(f.text for f in first.findings if f.topic == "step time")


@pytest.mark.distributed
@pytest.mark.slow
def test_a_task_unknown_to_all_is_bad_input_and_to_one_a_finding():
    first, second = run_processes(unknown_task, 2)
    assert isinstance(first, InputError)
    assert second is None
    first, second = run_processes(one_lacks_its_task, 2)
    (finding,) = [f for f in first.findings if f.level == "fix"]
    assert finding.text.startswith("rank 1 (")
    assert "digts" in finding.what


@pytest.mark.distributed
@pytest.mark.slow
def test_a_meeting_point_that_nobody_keeps_is_named(listener):
    """Rank 0 finds its port in use; the other meets a stranger there."""
    place = {"MASTER_PORT": str(listener.getsockname()[1]), "TORCHELASTIC_USE_AGENT_STORE": "False"}
    (first,) = run_processes(late, 2, ranks=[0], env=place)
    assert "cannot listen at" in first.findings[0].what
    assert first.exit_code == 1
    listener.close()
    (second,) = run_processes(late, 2, ranks=[1], env=place)
    assert isinstance(second, RendezvousError)
    assert "finds no meeting point" in str(second)
