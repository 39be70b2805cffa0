"""Coded indices in every method that sends sparse sets: fewer bytes, the same training."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from thinwire.cluster import Cluster, Node
from thinwire.collectives import traffic
from thinwire.errors import InputError, WorkerFailedError
from thinwire.methods import build_method
from thinwire.passes import CODED_FROM, coded_size
from thinwire.run.experiment import Job, Programs, run_virtual
from thinwire.run.settings import TrainSettings
from thinwire.seeds import generator_for
from thinwire.testing.processes import run_processes
from thinwire.testing.toys import DropoutMoons
from thinwire.wire.sockets import connect

NAMES = ["topk", "dgc", "oktopk", "lags", "gtopk"]
SETTINGS: dict[str, dict[str, Any]] = {
    "topk": {},
    "dgc": {"dense_below": 50},
    "oktopk": {"estimate_every": 3, "balance_every": 4},
    "lags": {"dense_below": 50},
    "gtopk": {},
}
SHAPES = [(300, 40), (40,), (90, 200), (200,)]
NUMEL = 30_240


def method_of(name: str, packing: str, **settings: Any) -> Any:
    return build_method(name, {**SETTINGS[name], "packing": packing, **settings})


def drawn(size: int, steps: int, numel: int = NUMEL) -> torch.Tensor:
    return torch.randn(size, steps, numel, generator=generator_for(0, "packing", size)).pow(3)


def meters(result: Any) -> list[tuple[int, int]]:
    return [(e.meter.sent, e.meter.messages_sent) for e in result.world.endpoints]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("density", [0.001, 0.03, 0.6])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_coded_and_plain_training_end_with_the_same_bits(feed_method, name, density, size):
    gradients = drawn(size, 7)
    sparse = size > 1 and not (name == "lags" and density > 0.5)  # which sends all of it then
    plain, coded = (
        feed_method(method_of(name, packing, density=density), gradients, SHAPES)
        for packing in ("plain", "coded")
    )
    for a, b in zip(plain.directions, coded.directions, strict=True):
        assert torch.equal(a, b)
    for a, b in zip(plain.states, coded.states, strict=True):
        assert torch.equal(a.memory, b.memory)
    for (before, messages), (after, as_many) in zip(meters(plain), meters(coded), strict=True):
        assert as_many == messages
        assert after < before if sparse else after == before


@pytest.mark.parametrize("name", NAMES)
def test_at_a_thousandth_indices_take_less_than_half_their_bytes(feed_method, name):
    gradients = drawn(4, 2, 400_000)
    sent = {}
    for packing in ("plain", "coded"):
        method = method_of(name, packing, density=0.001, **({"dense_below": 0} if name in (
            "dgc", "lags") else {}))  # fmt: skip
        sent[packing] = [s for s, _ in meters(feed_method(method, gradients, [(1000, 400)]))]
    for plain, coded in zip(sent["plain"], sent["coded"], strict=True):
        assert coded < 0.75 * plain  # 5.44 of 8 bytes, and headers


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_nothing_and_of_one_place_are_packed_too(feed_method, name):
    gradients = torch.zeros(3, 6, NUMEL)
    gradients[:, 3:, 7] = 1.0
    gradients[0, 4] = drawn(1, 1)[0, 0]
    results = [
        feed_method(method_of(name, packing, density=0.002), gradients, SHAPES)
        for packing in ("plain", "coded")
    ]
    for a, b in zip(results[0].directions, results[1].directions, strict=True):
        assert torch.equal(a, b)


def test_sets_of_unlike_sizes_are_packed_too(feed_method):
    gradients = drawn(4, 5, 5000)
    results = [
        feed_method(
            method_of("dgc", packing, density=0.02, select="sampled"), gradients, [(50, 100)]
        )
        for packing in ("plain", "coded")
    ]
    for a, b in zip(results[0].directions, results[1].directions, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("name", "entries"), [("topk", 60), ("dgc", 60), ("oktopk", 120),
                                               ("lags", 60)])  # fmt: skip
def test_auto_codes_large_messages_only(feed_method, monkeypatch, name, entries):
    monkeypatch.setattr("thinwire.compress.coded.CODED_FROM", 60)
    shapes = [(60, 100)]
    for kept, as_coded in ((entries, True), (entries - 2, False)):
        sent = {
            packing: meters(
                feed_method(
                    method_of(name, packing, density=(kept + 0.5) / 6000), drawn(2, 2, 6000), shapes
                )
            )
            for packing in ("auto", "plain", "coded")
        }
        assert sent["coded"] != sent["plain"]
        assert sent["auto"] == sent["coded" if as_coded else "plain"]


def test_bytes_are_declared_where_they_are_known():
    large = 1000 * CODED_FROM
    for packing, numel, known in (
        ("auto", large, False),
        ("auto", large - 1000, True),
        ("plain", large, True),
        ("coded", 1000, False),
    ):
        declared = method_of("topk", packing, density=0.001).sent_bytes(numel, 4, 3)
        assert (declared is not None) == known
    assert method_of("topk", "coded").sent_bytes(1000, 1, 3) == [0]


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_packing_is_refused_by_name(name):
    with pytest.raises(InputError, match="packing = 'zip'"):
        method_of(name, "zip")


@pytest.mark.parametrize("size", [2, 4, 8])
def test_without_data_a_step_has_the_bytes_of_the_formula(feed_method, size):
    """With the expected size of a code where there are no indices."""
    numel, steps = 160_000, 3
    gradients = torch.empty(size, steps, numel, device="meta")
    shapes = [(400, 400)]
    k = numel // 1000
    of_set = 4 * k + coded_size(k, numel)
    result = feed_method(method_of("topk", "coded", density=0.001), gradients, shapes)
    expected = traffic.all_gather_buffers(size, of_set)
    assert [sent for sent, _ in meters(result)] == [steps * n for n in expected]
    settings = {"density": 0.001, "estimate_every": 100, "balance_every": 100}
    of_steps = [
        meters(feed_method(method_of("oktopk", "coded", **settings), gradients[:, :n], shapes))
        for n in (1, 2)
    ]
    expected = traffic.oktopk(
        size, k, entries=lambda count: 4 * count + coded_size(count, numel // size)
    )
    for (first, _), (both, _), sent in zip(*of_steps, expected, strict=True):
        assert both - first == sent
        assert sent < traffic.oktopk(size, k)[0]


def test_ranks_that_pack_differently_are_told_so(fed):
    from thinwire.wire.virtual import World
    from thinwire.worker import Plan, Worker

    body, cluster = fed
    gradients = drawn(2, 1)

    def worker(comm: Any) -> None:
        plan = Plan(shares=(1, 1), steps=1, speeds=(1.0, 1.0))
        method = method_of("topk", ("plain", "coded")[comm.rank], density=0.01)
        method.worker(Worker(comm, body(plan, comm.rank, SHAPES, list(gradients[comm.rank]))))

    with pytest.raises(WorkerFailedError) as failed:
        World(cluster(2)).run(worker)
    assert isinstance(failed.value.__cause__, InputError)


# The same on the real wire.


def job_of(name: str, size: int) -> Job:
    nodes = tuple(
        Node(name=f"n{i}", flops=1e7, memory_rate=8e9, egress=12.5e6, ingress=12.5e6)
        for i in range(size)
    )
    return Job(
        run="0",
        label=name,
        name=name,
        method=method_of(name, "coded", density=0.05),
        cluster=Cluster(name="test", nodes=nodes, default_latency=0.0003),
        train=TrainSettings(batch=8, epochs=1, momentum=0.0 if name == "dgc" else 0.9, threads=1),
    )


def real_programs(rank: int, size: int) -> list[tuple[str, int, int]]:
    """Every method in turn, by this process as one worker."""
    torch.set_num_threads(1)
    results = []
    for name in NAMES:
        job, task = job_of(name, size), DropoutMoons()
        with connect(deadline=60) as comm:
            digest = Programs(job, task, job.plan(task.num_train), lambda line: None).worker(comm)
            results.append((digest, comm.meter.sent, comm.meter.messages_sent))
    return results


@pytest.mark.distributed
@pytest.mark.parametrize("size", [3])
def test_a_real_coded_run_ends_with_the_bits_bytes_and_messages_of_the_virtual_one(size):
    real = run_processes(real_programs, size, deadline=150)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for i, name in enumerate(NAMES):
            end = run_virtual(job_of(name, size), DropoutMoons(), lambda line: None)
            assert [result[i] for result in real] == [
                (end.digest, sent, messages)
                for sent, messages in zip(end.sent, end.messages, strict=True)
            ]
    finally:
        torch.set_num_threads(before)
