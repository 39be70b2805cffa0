"""torch's own collectives do what the written-out ones do, within rounding."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

from thinwire import collectives as co
from thinwire.collectives.native import NativeGroup, join_native
from thinwire.errors import DeadlineError, InputError, PeerDiedError, RendezvousError
from thinwire.seeds import generator_for

pytestmark = pytest.mark.distributed  # real sockets, though all ends are threads of this process

SIZES = [1, 2, 3, 5]


def run(size: int, program: Callable[[NativeGroup], Any], **options: Any) -> list[Any]:
    """What `program(group)` returned or raised, by rank."""
    store, outcomes = HashStore(), [None] * size

    def main(rank: int) -> None:
        try:
            options.setdefault("deadline", 30.0)
            group = join_native(store, rank, size, address="127.0.0.1", **options)
            outcomes[rank] = program(group)
        except Exception as error:
            outcomes[rank] = error

    threads = [threading.Thread(target=main, args=(r,), daemon=True) for r in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a rank hangs"
    return outcomes


def data(rank, numel=1000):
    return torch.randn(numel, generator=generator_for(0, "native", rank))


@pytest.mark.parametrize("size", SIZES)
def test_sums_equal_the_written_out_ones_within_rounding(lab, size):
    native = run(size, lambda g: g.all_reduce(data(g.rank)))
    written = lab.run(size, lambda c: co.all_reduce(c, data(c.rank)))
    for x, y in zip(native, written, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)
        assert torch.equal(x, native[0])


@pytest.mark.parametrize("size", SIZES)
def test_copies_equal_the_written_out_ones_exactly(lab, size):
    def everything(c, broadcast, all_gather, barrier):
        x = data(c.rank, 12).view(3, 4)
        broadcast(c, x, size - 1)
        barrier(c)
        return [x, *all_gather(c, data(c.rank, 12).view(3, 4))]

    written = lab.run(size, lambda c: everything(c, co.broadcast, co.all_gather, co.barrier))
    own = NativeGroup.broadcast, NativeGroup.all_gather, NativeGroup.barrier
    native = run(size, lambda g: everything(g, *own))
    for xs, ys in zip(native, written, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(xs, ys, strict=True))


def test_strided_tensors_are_changed_in_place():
    def program(group):
        whole = torch.zeros(6, 8)
        x = whole[:, ::2].t()
        x += 1 + group.rank
        assert group.all_reduce(x) is x
        assert group.broadcast(x) is x
        return whole

    for whole in run(2, program):
        assert torch.equal(whole[:, ::2], torch.full((6, 4), 3.0))
        assert not whole[:, 1::2].any()


def test_results_of_a_gather_are_private():
    def program(group):
        x = data(group.rank)
        gathered = group.all_gather(x)
        x.zero_()
        return gathered

    for gathered in run(2, program):
        assert all(torch.equal(x, data(r)) for r, x in enumerate(gathered))


def test_empty_tensors_pass():
    for outcome in run(2, lambda g: (g.all_reduce(torch.empty(0)), g.all_gather(torch.empty(0)))):
        assert [len(x) for x in outcome[1]] == [0, 0]


def test_a_rank_that_never_calls_ends_in_a_deadline_that_names_the_call():
    given_up = threading.Event()

    def program(group):
        if group.rank == 1:
            return given_up.wait(30)
        try:
            return group.all_reduce(torch.ones(5))
        finally:
            given_up.set()

    outcomes = run(2, program, deadline=1.0)
    assert isinstance(outcomes[0], DeadlineError), outcomes
    assert "rank 0: all_reduce of the native group" in str(outcomes[0])


def test_a_peer_that_closed_ends_the_call_at_once():
    def program(group):
        if group.rank == 1:
            return group.close()
        return group.all_reduce(torch.ones(5))

    outcomes = run(2, program)
    assert isinstance(outcomes[0], PeerDiedError), outcomes
    assert outcomes[0].rank == -1


def test_two_groups_of_one_store_are_apart():
    store, outcomes = HashStore(), {}

    def main(rank, names):
        groups = {n: join_native(store, rank, 2, address="127.0.0.1", name=n) for n in names}
        sums = [groups[n].all_reduce(torch.full((1,), float(ord(n)))) for n in "ab"]
        outcomes[rank] = [x.item() for x in sums]

    threads = [threading.Thread(target=main, args=(r, "ab"), daemon=True) for r in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert outcomes == {r: [2 * 97.0, 2 * 98.0] for r in range(2)}


def test_a_group_that_does_not_form_is_a_rendezvous_error():
    with pytest.raises(RendezvousError, match=r"of 2 workers did not form within 0\.5"):
        join_native(HashStore(), 0, 2, deadline=0.5, address="127.0.0.1")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"device": "tpu"}, "device = 'tpu'; valid: cpu, cuda"),
        ({"deadline": 0.0}, "deadline = 0.0 seconds"),
        ({"rank": 2}, r"rank = 2; valid: 0\.\.0"),
    ],
)
def test_wrong_calls_are_refused_by_name(options, text):
    with pytest.raises(InputError, match=text):
        join_native(HashStore(), **{"rank": 0, "size": 1, **options})
    with pytest.raises(InputError, match=r"root = 1; valid: 0\.\.0"):
        join_native(HashStore(), 0, 1, address="127.0.0.1").broadcast(torch.ones(1), 1)
