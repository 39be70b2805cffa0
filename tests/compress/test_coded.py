"""Entries with coded indices: the same sums to the bit, in fewer bytes."""

from __future__ import annotations

import pytest
import torch

from thinwire import collectives as co
from thinwire.cluster import Cluster, Node
from thinwire.collectives import Plain, Sparse
from thinwire.compress import coded, encode_indices, select_top
from thinwire.compress.coded import Coded
from thinwire.compress.cost import code_work
from thinwire.errors import InputError, WorkerFailedError
from thinwire.passes import coded_size
from thinwire.seeds import generator_for
from thinwire.wire.packet import Packet, header_nbytes
from thinwire.wire.virtual import World

RATE, MEMORY_RATE = 12.5e6, 1e9


def world(size: int) -> World:
    node = {"flops": 1e9, "memory_rate": MEMORY_RATE, "egress": RATE, "ingress": RATE}
    nodes = tuple(Node(name=f"n{i}", **node) for i in range(size))
    return World(Cluster(name="uniform", nodes=nodes, default_latency=1e-4), link_model="queue")


def random_set(k: int, numel: int, *labels: object, dtype: torch.dtype = torch.float32) -> Sparse:
    generator = generator_for(0, "coded", *map(str, labels))
    index = torch.randperm(numel, generator=generator)[:k].sort().values.int()
    return Sparse(index, torch.randn(k, generator=generator).mul(2).round().to(dtype), numel)


def alone(program):
    """What a program returns that needs a communicator and no one else."""
    return world(1).run(program)[0]


def same(a: Sparse, b: Sparse) -> bool:
    return a.numel == b.numel and torch.equal(a.index, b.index) and torch.equal(a.value, b.value)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_merging_with_a_packet_is_merge_to_the_bit(monkeypatch, native, dtype):
    if not native:
        monkeypatch.setattr(coded, "kernels", lambda: None)
    form = Coded()
    for case, (k, other, numel) in enumerate(
        [
            (1, 1, 1),
            (1, 1, 2),
            (0, 5, 9),
            (5, 0, 9),
            (40, 90, 100),
            (300, 7, 5000),
            (2000, 2000, 9999),
        ]
    ):
        a, b = (
            random_set(n, numel, case, name, dtype=dtype) for n, name in ((k, "a"), (other, "b"))
        )

        def program(comm, a=a, b=b):
            packet = form.packet(comm, b)
            return form.entries(comm, packet, b.numel), form.merged(comm, a, packet)

        read, merged = alone(program)
        assert same(read, b)
        assert same(merged, co.merge(a, b))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
def test_the_tree_gives_the_same_bits_with_coded_indices(size):
    def program(comm, form):
        own = select_top(torch.randn(4000, generator=generator_for(1, "x", comm.rank)), 60)
        result, hit = co.gtopk_all_reduce(comm, own, 60, form=form)
        kept, cut = co.gtopk_all_reduce_conserving(comm, own, 60, form=form, tag="again")
        return result, hit, kept, cut

    plain, packed = (
        world(size).run(lambda c, f=form: program(c, f)) for form in (Plain(), Coded())
    )
    for a, b in zip(plain, packed, strict=True):
        assert torch.equal(a[1], b[1])
        assert all(same(a[i], b[i]) for i in (0, 2, 3))


def test_what_is_sent_is_what_the_code_and_the_values_occupy():
    k, numel = 500, 300_000
    sets = [random_set(k, numel, rank) for rank in range(2)]
    merged = co.top(co.merge(*sets), k)
    two = world(2)
    two.run(lambda c: co.gtopk_all_reduce(c, sets[c.rank], k, form=Coded()) and None)
    expected = [
        header_nbytes(2) + encode_indices(s.index, numel).numel() + 4 * k for s in (merged, sets[1])
    ]
    assert [e.meter.sent for e in two.endpoints] == expected
    assert max(expected) < 0.72 * 8 * k


def test_entries_without_data_have_the_expected_size_and_cost_what_real_ones_do():
    k, numel = 500, 300_000
    nominal = select_top(torch.empty(numel, device="meta"), k)
    two = world(2)
    results = two.run(lambda c: co.gtopk_all_reduce(c, nominal, k, form=Coded())[0])
    assert all(s.is_meta and len(s) == k for s in results)
    nbytes = header_nbytes(2) + coded_size(k, numel) + 4 * k
    assert [e.meter.sent for e in two.endpoints] == [nbytes] * 2
    # Written and read on the way up, and again on the way down.
    coding = 4 * code_work(k).memory_bytes / MEMORY_RATE
    assert two.elapsed == pytest.approx(2 * (nbytes / RATE + 1e-4) + coding, abs=1e-8)


def test_a_packet_that_does_not_hold_together_is_refused():
    s = random_set(20, 1000)

    def program(comm):
        packet = Coded().packet(comm, s)
        short = Packet((packet.buffers[0], packet.buffers[1][:-1]), "sparse")
        Coded().entries(comm, short, 1000)

    with pytest.raises(WorkerFailedError, match="20 indices came with 19 values") as error:
        alone(program)
    assert isinstance(error.value.__cause__, InputError)
