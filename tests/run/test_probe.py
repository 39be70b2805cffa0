"""The probe at work: sockets and steps on this machine, and whole surveys in several processes."""

from __future__ import annotations

import dataclasses
import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from thinwire.errors import InputError, RendezvousError
from thinwire.passes import KERNELS, code_bytes, merge_bytes
from thinwire.run.doctor.pairs import Target
from thinwire.run.probe import Request, Survey, Watcher, fit, kernels, survey
from thinwire.run.probe.compute import load_subject, time_steps
from thinwire.run.probe.crew import Crew, Order, follow
from thinwire.run.probe.crowd import Gathering, gather, talk
from thinwire.run.probe.kernels import measure_kernels
from thinwire.run.probe.report import Wire
from thinwire.run.probe.streams import DATA, accept, dial, hang_up
from thinwire.run.probe.wires import WireLimits, answer, measure
from thinwire.testing.processes import Ended, run_processes

LIMITS = WireLimits(connect=1.0, stream=0.2, extra=10.0)
QUICK: dict[str, Any] = {
    "batch": 1,
    "threads": 1,
    "compute": 0.05,
    "kernels": 0.05,
    "wire": LIMITS,
    "crowd": 1.5,
    "slack": 2.0,
}


class Notes(Watcher):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.kept: list[Survey] = []

    def say(self, text: str, done: int, total: int) -> None:
        self.said.append(f"{done}/{total} {text}")

    def keep(self, found: Survey) -> None:
        self.kept.append(msgspec.structs.replace(found, wires=list(found.wires)))


# Pairs.


def target_of(listener: socket.socket, rank: int = 0) -> Target:
    return Target(rank=rank, address="127.0.0.1", port=listener.getsockname()[1], token=b"token")


def test_a_pair_has_round_trips_packets_and_both_streams_and_strangers_are_turned_away(listener):
    with socket.create_connection(listener.getsockname()) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        answers: list[Wire] = []
        thread = threading.Thread(
            target=lambda: answers.append(answer(listener, b"token", 0, 1, LIMITS))
        )
        thread.start()
        wire = measure(target_of(listener), 1, "127.0.0.1", LIMITS)
        thread.join()
    assert (wire.problem, answers[0].problem) == ("", "")
    assert wire.trip.count > 50
    assert wire.packets.count > 5
    assert 0 < wire.trip.low <= wire.trip.median <= wire.trip.high
    assert min(wire.up.rate.median, wire.down.rate.median) > 1e6
    assert wire.up.seconds == pytest.approx(0.2, rel=0.5)


@pytest.mark.slow
def test_a_closed_port_a_silent_and_a_missing_peer_are_named(listener):
    short = WireLimits(connect=0.2, stream=0.1, extra=0.1)
    silent = measure(target_of(listener), 1, "127.0.0.1", short)
    assert "rank 1 and rank 0 at 127.0.0.1: connected, but no answer" in silent.problem
    target = target_of(listener)
    none_came = WireLimits(connect=-0.9, stream=0.1)
    listener.accept()[0].close()  # the silent one's call
    assert "no connection from rank 5 came to rank 0" in (
        answer(listener, b"token", 0, 5, none_came).problem
    )
    listener.close()
    gone = measure(target, 1, "127.0.0.1", short)
    assert "rank 1 (127.0.0.1) cannot reach rank 0 at 127.0.0.1:" in gone.problem


@pytest.mark.slow
def test_a_wire_that_passes_small_messages_only_is_told_apart(listener):
    def small_only() -> None:
        control = accept(listener, b"token", [1], b"C", time.monotonic() + 5)[1]
        with control:
            for _ in range(200):
                control.recv(9)
                control.sendall(bytes(8))
            control.recv(9)
            time_out.wait(5)

    time_out = threading.Event()
    threading.Thread(target=small_only, daemon=True).start()
    wire = measure(
        target_of(listener), 1, "127.0.0.1", WireLimits(connect=0.5, stream=0.1, extra=0.5)
    )
    time_out.set()
    assert wire.trip.count > 0
    assert wire.problem


def test_a_caller_of_another_rank_or_token_is_turned_away(listener):
    wrong = Target(rank=0, address="127.0.0.1", port=listener.getsockname()[1], token=b"wrong")
    calls = [dial(wrong, 1, "127.0.0.1", DATA, 1.0), dial(target_of(listener), 7, "127.0.0.1",
             DATA, 1.0), dial(target_of(listener), 1, "127.0.0.1", DATA, 1.0)]  # fmt: skip
    rank, sock = accept(listener, b"token", [1, 2], DATA, time.monotonic() + 5)
    assert rank == 1
    for each in (*calls, sock):
        hang_up(each)


def test_all_send_to_all_and_each_hears_of_every_other():
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    targets = [target_of(sock, rank) for rank, sock in enumerate(listeners)]
    heard: dict[int, dict[int, float]] = {}
    gatherings: dict[int, Gathering] = {}

    def take_part(rank: int) -> None:
        higher = list(range(rank + 1, 3))
        found = gather(listeners[rank], b"token", rank, "127.0.0.1", targets[:rank], higher, 5.0)
        gatherings[rank] = found
        with found:
            heard[rank] = talk(found, 0.4)

    threads = [threading.Thread(target=take_part, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for sock in listeners:
        sock.close()
    assert {rank: sorted(got) for rank, got in heard.items()} == {0: [1, 2], 1: [0, 2], 2: [0, 1]}
    assert all(rate > 0 for got in heard.values() for rate in got.values())


# Computing.


def test_steps_are_timed_and_every_tensor_has_its_moments():
    found = time_steps(load_subject("resnet20", 1), 0.05)
    assert found.num_params == 269_722
    assert found.rate > 0
    assert len(found.needed) == len(found.ready) == len(found.sizes) == len(found.names)
    order = {name: (found.needed[i], found.ready[i]) for i, name in enumerate(found.names)}
    first, last = order["conv.weight"], order["classifier.weight"]
    assert None not in (*first, *last)
    assert first[0] < last[0], "forward order"
    assert last[1] < first[1], "backward order"


@pytest.fixture
def own(monkeypatch) -> ModuleType:
    module = ModuleType("own_models")
    monkeypatch.setitem(sys.modules, "own_models", module)
    return module


class _Partly(torch.nn.Module):
    """A model with a layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.used = torch.nn.Linear(4, 2)
        self.unused = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def test_a_layer_that_is_never_used_has_no_moments(own):
    own.__dict__["make"] = lambda: (_Partly(), torch.randn(3, 4))
    found = time_steps(load_subject("own_models:make", 3), 0.0)
    moments = dict(zip(found.names, zip(found.needed, found.ready, strict=True), strict=True))
    assert moments["unused.weight"] == (None, None)
    assert None not in moments["used.weight"]


def test_an_unknown_model_and_one_without_products_are_bad_input(own):
    with pytest.raises(InputError, match="resnet20"):
        load_subject("resnet21", 1)
    own.__dict__["make"] = lambda: (torch.nn.BatchNorm1d(4), torch.randn(3, 4))
    with pytest.raises(InputError, match="no FLOP/s"):
        load_subject("own_models:make", 3)


@pytest.mark.slow
@pytest.mark.parametrize("numel", [1, 1000, 200_000])
def test_every_kind_of_work_has_a_rate_at_any_size(numel):
    found = measure_kernels(numel, 0.0)
    assert sorted([*found, "step"]) == sorted(KERNELS)
    assert all(kernel.rate > 0 for kernel in found.values())


@pytest.mark.slow
def test_the_price_of_an_entry_is_not_that_of_a_call():
    """270 entries, what density 0.001 leaves of a small model, would be mostly overhead."""
    found = measure_kernels(270_000, 0.0)
    assert found["code"].nbytes == 2 * code_bytes(16_384)
    assert found["merge"].nbytes == merge_bytes(2 * 16_384)


def test_a_kernel_that_must_wait_for_its_core_is_as_slow_as_that(monkeypatch):
    """Every fifth call loses its core for 20 ms: on average 4 ms a call, not the median's none."""
    clock, calls = [0.0], [0]

    def scatter(*_: Any) -> None:
        calls[0] += 1
        clock[0] += 1e-5 + 0.02 * (calls[0] % 5 == 0)

    monkeypatch.setattr(kernels, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(kernels, "add_sets", scatter)
    monkeypatch.setattr(kernels, "_trials", lambda n, plain=kernels._trials: only(plain(n)))
    only = lambda trials: {"scatter": trials["scatter"]}  # noqa: E731
    assert measure_kernels(4096, 5.0)["scatter"].seconds.median == pytest.approx(0.004, rel=0.1)


# Orders.


class FakeBoard:
    """Notes in a dict; the other ranks are threads."""

    def __init__(self) -> None:
        self.notes: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        return self.notes.get(key)

    def set(self, key: str, note: bytes) -> None:
        self.notes[key] = note

    def wait(self, key: str, until: float) -> bytes | None:
        while key not in self.notes and time.monotonic() < until:
            time.sleep(0.005)
        return self.notes.get(key)


def crew_of(board: FakeBoard, act: Callable[[int, Order], bytes], ranks: list[int]) -> Crew:
    """Rank 0's crew, whose other members obey in threads."""
    for rank in ranks[1:]:
        thread = threading.Thread(
            target=follow,
            args=(board, rank, lambda order, rank=rank: act(rank, order), 10.0),
            daemon=True,
        )
        thread.start()
    return Crew(board, ranks, lambda order: act(0, order))  # pyright: ignore[reportArgumentType]


def test_orders_are_carried_out_and_their_results_come_back():
    board = FakeBoard()
    crew = crew_of(board, lambda rank, order: f"{rank}:{order.peer}".encode(), [0, 1, 2])
    orders = {rank: Order(do="rest", peer=rank + 7) for rank in (0, 2)}
    assert crew.carry_out(orders, 5.0, "resting") == {0: b"0:7", 2: b"2:9"}
    assert crew.carry_out({1: Order(do="rest")}, 5.0, "resting") == {1: b"1:-1"}
    crew.dismiss()
    assert crew.lost == {}
    assert sorted(key for key in board.notes if key.startswith("home")) == ["home/1", "home/2"]


def test_who_does_not_answer_in_time_is_named_once_and_not_asked_again():
    board = FakeBoard()
    crew = Crew(board, [0, 1], lambda order: b"done")  # pyright: ignore[reportArgumentType]
    orders = {0: Order(do="rest"), 1: Order(do="rest")}
    assert crew.carry_out(orders, 0.1, "resting") == {0: b"done"}
    assert crew.lost == {1: "came, but did not end resting within 0.1 s"}
    assert crew.alive == [0]
    assert crew.carry_out(orders, 3600.0, "resting") == {0: b"done"}
    assert json.loads(board.notes["order/1"]).keys() == {"0"}


def test_who_gives_no_sign_of_life_is_given_up_long_before_the_limit(monkeypatch):
    monkeypatch.setattr("thinwire.run.probe.crew._DEAD", 0.1)
    crew = Crew(FakeBoard(), [0, 1], lambda order: b"")  # pyright: ignore[reportArgumentType]
    assert crew.carry_out({1: Order(do="rest")}, 3600.0, "resting") == {}
    assert "gave no sign of life" in crew.lost[1]


def test_a_leader_that_says_nothing_is_given_up():
    with pytest.raises(RendezvousError, match="rank 0 has fallen silent"):
        follow(FakeBoard(), 1, lambda order: b"", 0.05)  # pyright: ignore[reportArgumentType]


# The whole.


@pytest.fixture
def _alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "THINWIRE_INTERFACE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.slow
@pytest.mark.usefixtures("_alone")
def test_one_machine_alone_is_measured_without_a_wire():
    notes = Notes()
    found = survey(Request(**QUICK), notes)
    assert found is not None
    assert (found.finished, found.wires, found.problems) == (True, [], [])
    assert notes.kept
    assert fit(found).cluster.nodes[0].flops == pytest.approx(found.computing[0].rate, rel=1e-3)


@pytest.mark.usefixtures("_alone")
def test_a_refusal_comes_before_anything_is_measured():
    notes = Notes()
    with pytest.raises(InputError, match="is there already"):
        survey(Request(**QUICK, refusal="-o x: is there already"), notes)
    assert (notes.said, notes.kept) == ([], [])


def healthy(rank: int, size: int) -> Any:
    notes = Notes()
    found = survey(Request(**QUICK), notes)
    return found and (found, notes.said)


def throttled(rank: int, size: int, rate: float) -> Any:
    """All that rank 2 sends in streams passes a token bucket."""
    if rank == 2:
        module = sys.modules["thinwire.run.probe.wires"]

        def pour(sock: socket.socket, until: float) -> None:
            piece, began, sent = bytes(2000), time.monotonic(), 0
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            try:
                while time.monotonic() < until:
                    if sent > rate * (time.monotonic() - began):
                        time.sleep(0.001)
                        continue
                    sent += sock.send(piece)
            except OSError:
                return

        vars(module)["pour"] = pour
    return survey(Request(**QUICK), Notes())


def walled_off(rank: int, size: int) -> Any:
    """A firewall between ranks 1 and 2."""
    if rank == 2:
        module = sys.modules["thinwire.run.probe.survey"]

        def blocked(target: Target, *rest: Any) -> Wire:
            port = 1 if target.rank == 1 else target.port
            return measure(dataclasses.replace(target, port=port), *rest)

        vars(module)["measure"] = blocked
    return survey(Request(**QUICK), Notes())


def dies(rank: int, size: int) -> Any:
    """Rank 2 is gone when the wires are measured."""
    if rank == 2:
        module = sys.modules["thinwire.run.probe.survey"]
        vars(module)["measure"] = vars(module)["answer"] = lambda *_: sys.exit(0)
    wire = WireLimits(connect=0.5, stream=0.1, extra=3.0)
    return survey(Request(**{**QUICK, "wire": wire}), Notes())


def late(rank: int, size: int) -> Any:
    return survey(Request(**QUICK, deadline=1.0), Notes())


def unknown_model(rank: int, size: int) -> Any:
    return survey(Request(**{**QUICK, "model": "resnet21"}), Notes())


@pytest.mark.distributed
@pytest.mark.slow
def test_three_ranks_are_measured_and_rank_0_knows():
    (first, said), *others = run_processes(healthy, 3)
    assert others == [None, None]
    assert first.problems == []
    assert first.finished
    assert [(w.low, w.high) for w in first.wires] == [(0, 1), (0, 2), (1, 2)]
    assert sorted(first.computing) == [0, 1, 2]
    assert {r: sorted(got) for r, got in first.crowd.received.items()} == {
        0: [1, 2], 1: [0, 2], 2: [0, 1]
    }  # fmt: skip
    assert [text.partition(" ")[0] for text in said] == ["0/5", "1/5", "2/5", "3/5", "4/5"]
    assert fit(first).cluster.size == 3


@pytest.mark.distributed
@pytest.mark.slow
def test_a_slow_direction_is_found_where_it_is():
    first = run_processes(throttled, 3, 1e6)[0]
    assert [w.problem for w in first.wires] == ["", "", ""]
    rates = {(w.high, w.low): w.up.rate.median for w in first.wires}
    for low in (0, 1):  # never faster than the bucket lets it, but for the scheduler's favours
        assert 0 < rates[2, low] < 1.5e6
    assert rates[1, 0] > 2 * max(rates[2, 0], rates[2, 1])
    assert all(w.down.rate.median > 3e6 for w in first.wires)


@pytest.mark.distributed
@pytest.mark.slow
def test_a_dead_pair_is_named_and_the_others_are_measured():
    first = run_processes(walled_off, 3)[0]
    problems = {(w.low, w.high): w.problem for w in first.wires}
    assert "rank 2 (127.0.0.1) cannot reach rank 1 at 127.0.0.1:" in problems.pop((1, 2))
    assert problems == {(0, 1): "", (0, 2): ""}
    assert 2 not in first.crowd.received[1]
    assert fit(first).cluster.size == 3


@pytest.mark.distributed
@pytest.mark.slow
def test_a_rank_that_dies_is_named_and_the_rest_is_written():
    first, second, third = run_processes(dies, 3)
    assert (second, isinstance(third, Ended | SystemExit)) == (None, True)
    assert "did not end measuring 0-2" in first.lost[2]
    fitted = fit(first)
    assert [node.name[-2:] for node in fitted.cluster.nodes] == [".0", ".1"]
    assert fitted.left_out.keys() == {2}
    assert sorted(first.crowd.received) == [0, 1]


@pytest.mark.distributed
@pytest.mark.slow
def test_a_rank_that_never_comes_is_named_and_the_rest_goes_on():
    first, second = run_processes(late, 3, ranks=[0, 2])
    assert second is None
    assert first.lost == {1: "never came"}
    assert [(w.low, w.high, w.problem) for w in first.wires] == [(0, 2, "")]


@pytest.mark.distributed
@pytest.mark.slow
def test_a_model_unknown_to_all_is_bad_input_and_the_others_go_home():
    first, second = run_processes(unknown_model, 2)
    assert isinstance(first, InputError)
    assert second is None
