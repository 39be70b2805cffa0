"""Entries with coded indices: the same sums to the bit, in fewer bytes."""

from __future__ import annotations

import pytest
import torch

from thinwire import collectives as co
from thinwire.cluster import Cluster, Node
from thinwire.collectives import Plain, Sparse, costs, traffic
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


# Sets that are gathered, and sets of a part of the vector.


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("counts", [(60, 60), (0, 90), (0, 0), (1, 3000)])
def test_a_gather_gives_the_same_sets_with_coded_indices(size, counts):
    def program(comm, form):
        own = random_set(counts[comm.rank % 2], 3000, "gather", comm.rank)
        return co.all_gather_sparse(comm, own, form=form)

    plain, packed = (
        world(size).run(lambda c, f=form: program(c, f)) for form in (Plain(), Coded())
    )
    for a, b in zip(plain, packed, strict=True):
        assert all(same(x, y) for x, y in zip(a, b, strict=True))


def test_indices_go_as_they_are_where_their_code_is_no_smaller():
    nothing, one = random_set(0, 1000), random_set(1, 1000)
    far = Sparse(torch.tensor([2**31 - 2]).int(), torch.ones(1), 2**31 - 1)
    full = Sparse(torch.arange(1000).int(), torch.ones(1000), 1000)

    def program(comm):
        form = Coded()
        for s in (nothing, one, far, full):
            packet = form.packet(comm, s)
            code = encode_indices(s.index, s.numel)
            coded_now = packet.buffers[0].dtype == torch.uint8
            assert coded_now == (code.numel() < 4 * len(s))
            assert packet.buffers[0].nbytes == min(code.numel(), 4 * len(s))
            assert same(form.entries(comm, packet, s.numel), s)
        return [form.packet(comm, s).buffers[0].nbytes for s in (nothing, far, full)]

    assert alone(program) == [0, 4, 3]


def test_within_a_part_that_both_sides_know_the_way_to_it_costs_nothing():
    numel, start, stop = 10_000_000, 9_000_000, 9_100_000
    inner = random_set(100, stop - start)
    s = Sparse(inner.index + start, inner.value, numel)

    def program(comm):
        form = Coded().within(start, stop)
        packet = form.packet(comm, s)
        assert same(form.entries(comm, packet, numel), s)
        assert Plain().within(start, stop).packet(comm, s).buffers[0] is s.index
        return packet.buffers[0].nbytes

    assert alone(program) == encode_indices(inner.index, stop - start).numel()
    assert encode_indices(s.index, numel).numel() > alone(program)


def test_entries_outside_their_part_are_refused():
    s = random_set(20, 1000)
    with pytest.raises(WorkerFailedError, match="must rise strictly and lie in"):
        alone(lambda comm: Coded().within(0, int(s.index[-1])).packet(comm, s) and None)
    with pytest.raises(WorkerFailedError, match="must rise strictly and lie in"):
        alone(lambda comm: Coded().within(int(s.index[0]) + 1, 1000).packet(comm, s) and None)


def test_gathering_without_data_has_the_bytes_and_the_time_of_the_formula():
    k, numel, size = 500, 300_000, 4
    nominal = select_top(torch.empty(numel, device="meta"), k)
    four = world(size)
    four.run(lambda c: co.all_gather_sparse(c, nominal, form=Coded()) and None)
    nbytes = coded_size(k, numel) + 4 * k
    assert [e.meter.sent for e in four.endpoints] == list(traffic.all_gather_buffers(size, nbytes))
    coding = size * code_work(k).memory_bytes / MEMORY_RATE  # one's own, and three others'
    gather = costs.all_gather_buffers(size, nbytes, 1e-4, RATE)
    assert four.elapsed == pytest.approx(gather + coding, abs=1e-8)
    assert nbytes < 0.72 * 8 * k
