"""The time line of a step: against closed forms, and what no schedule may break."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from thinwire.errors import InputError
from thinwire.models import published_table
from thinwire.schedule import (
    Cost,
    Load,
    Message,
    Plan,
    behind_barrier,
    buckets,
    finish,
    fused,
    load_of,
    merged,
    optimal,
    partitioned,
    per_tensor,
    prioritised,
    simulate,
    sparse_finish,
    sparsified,
    whole,
)


def random_load(seed: int, length: int = 12) -> Load:
    rng = random.Random(seed)
    ready, now = [], 0.0
    for _ in range(length):
        now += rng.expovariate(1.0)
        ready.append(now)
    return Load(
        order=tuple(range(length))[::-1],
        ready=tuple(ready),
        nbytes=tuple(1 + int(50 * rng.expovariate(1.0) ** 2) for _ in range(length)),
        backward=now + rng.random(),
        forward=tuple((i, rng.expovariate(2.0)) for i in range(length)),
    )


def forward_of(load: Load) -> float:
    return sum(seconds for _, seconds in load.forward)


def plans(load: Load) -> list[Plan]:
    order, ready, nbytes = load.order, load.ready, load.nbytes
    return [
        fused(load, whole(order)),
        fused(load, per_tensor(order)),
        fused(load, buckets(order, nbytes, 100)),
        fused(load, merged(order, ready, nbytes, 0.3, 0.02)),
        partitioned(load, per_tensor(order), 32),
        prioritised(load, 32, 32),
        prioritised(load, 32, 128),
        behind_barrier(prioritised(load, 32, 128)),
    ]


@pytest.mark.parametrize("seed", range(5))
def test_grouped_messages_end_when_the_closed_form_says(seed):
    load, cost = random_load(seed), Cost(startup=0.3, per_byte=0.02)
    order, ready, nbytes = load.order, load.ready, load.nbytes
    for groups in (
        whole(order),
        per_tensor(order),
        buckets(order, nbytes, 100),
        merged(order, ready, nbytes, 0.3, 0.02),
        optimal(order, ready, nbytes, cost),
    ):
        line = simulate(load, fused(load, groups), [cost])
        end = finish(groups, ready, nbytes, cost)
        assert line.arrived == pytest.approx(end)
        assert line.step == pytest.approx(max(end, load.backward) + forward_of(load))


@pytest.mark.parametrize("seed", range(5))
def test_no_plan_is_shorter_than_its_computing_or_than_its_bytes(seed):
    load, cost = random_load(seed), Cost(startup=0.1, per_byte=0.02)
    for plan in plans(load):
        line = simulate(load, plan, [cost])
        assert line.step >= load.computing * (1 - 1e-12)
        assert line.step >= sum(cost(m.nbytes) for m in plan.messages) * (1 - 1e-12)
        assert line.exposed == pytest.approx(
            sum(i.end - i.start for i in line.intervals if i.what == "wait")
        )


@pytest.mark.parametrize("seed", range(5))
def test_a_stage_carries_one_message_at_a_time_and_every_byte(seed):
    load = random_load(seed)
    path = [Cost(startup=0.1, per_byte=0.02), Cost(per_byte=0.03, latency=0.2, beside=0.5)]
    for plan in plans(load):
        line = simulate(load, plan, path)
        for stage in (0, 1):
            sent = [i for i in line.intervals if i.stage == stage]
            assert sum(i.nbytes for i in sent) == sum(load.nbytes)
            for before, after in pairwise(sent):
                assert after.start >= before.end


@pytest.mark.parametrize("seed", range(5))
def test_the_device_is_never_in_two_places_and_waits_for_what_it_needs(seed):
    load, cost = random_load(seed), Cost(startup=0.1, per_byte=0.02)
    for plan in plans(load):
        line = simulate(load, plan, [cost])
        device = [i for i in line.intervals if i.what != "send"]
        assert device[0].start == 0.0
        assert device[-1].end == line.step
        for before, after in pairwise(device):
            assert after.start == before.end
        begins = {i.tensors[0]: i.start for i in device if i.what == "forward"}
        arrives = {}
        for i in line.intervals:
            for tensor in i.tensors if i.what == "send" else ():
                arrives[tensor] = max(arrives.get(tensor, 0.0), i.end)
        assert all(begins[tensor] >= arrives[tensor] for tensor in begins)


def test_priority_lets_the_next_forward_begin_before_all_has_arrived():
    load = Load(order=(1, 0), ready=(1.0, 2.0), nbytes=(100, 10), backward=2.0,
                forward=((0, 3.0), (1, 1.0)))  # fmt: skip
    cost = Cost(per_byte=0.1)
    first_come = simulate(load, fused(load, per_tensor(load.order)), [cost])
    urgent = simulate(load, prioritised(load, 10, 10), [cost])
    # First come: tensor 1 until 11, tensor 0 until 12. Urgent: tensor 0 from 2 to 3, forward of
    # its layer until 6 beside the rest, which takes until 12; then the other layer.
    assert first_come.step == pytest.approx(12 + 4)
    assert urgent.step == pytest.approx(12 + 1)


def test_a_larger_partition_blocks_the_urgent_one_longer():
    load = Load(order=(1, 0), ready=(1.0, 2.0), nbytes=(100, 10), backward=2.0,
                forward=((0, 10.0), (1, 1.0)))  # fmt: skip
    path = [Cost(per_byte=0.1)]
    steps = [simulate(load, prioritised(load, part, part), path).step for part in (10, 50, 100)]
    # Tensor 0 waits for the part under way: until 2, 6 and 11, then needs 1.
    assert steps == pytest.approx([14.0, 18.0, 23.0])


def test_smaller_partitions_pay_more_start_ups():
    load = random_load(1)
    path = [Cost(startup=0.5, per_byte=0.02)]
    small, large = (simulate(load, prioritised(load, part, part), path) for part in (8, 64))
    assert small.sending > large.sending


def test_credit_hides_the_latency_of_a_path():
    load = Load(order=(0,), ready=(0.0,), nbytes=(40,), backward=0.0, forward=((0, 1.0),))
    path = [Cost(per_byte=0.1, latency=5.0)]
    one, four = (simulate(load, prioritised(load, 10, credit), path) for credit in (10, 40))
    assert one.arrived == pytest.approx(4 * (1.0 + 5.0))
    assert four.arrived == pytest.approx(4 * 1.0 + 5.0)


def test_stages_pass_parts_on_while_the_next_are_coming():
    load = Load(order=(0,), ready=(1.0,), nbytes=(40,), backward=1.0, forward=())
    path = [Cost(per_byte=0.1), Cost(per_byte=0.1)]
    assert simulate(load, fused(load, whole((0,))), path).step == pytest.approx(1 + 8)
    assert simulate(load, partitioned(load, whole((0,)), 10), path).step == pytest.approx(1 + 5)


def test_contention_slows_messages_beside_computing_alone():
    load = Load(order=(1, 0), ready=(1.0, 3.0), nbytes=(10, 10), backward=3.0,
                forward=((0, 1.0), (1, 1.0)))  # fmt: skip
    plan = fused(load, per_tensor(load.order))
    # 10 bytes need 3 seconds: from 1 to 3 at half speed, 1 s worth; 2 s more alone; then 3 s.
    assert simulate(load, plan, [Cost(per_byte=0.3, beside=0.5)]).arrived == pytest.approx(8.0)
    assert simulate(load, plan, [Cost(per_byte=0.3)]).arrived == pytest.approx(7.0)
    after = fused(load, whole(load.order))
    slow, fast = (simulate(load, after, [Cost(per_byte=0.3, beside=b)]).step for b in (0.5, 1.0))
    assert slow == fast


@pytest.mark.parametrize("seed", range(5))
def test_all_has_arrived_before_the_next_backward_begins(seed):
    load, path = random_load(seed), [Cost(startup=0.1, per_byte=0.05, beside=0.7, latency=0.3)]
    for plan in plans(load):
        line = simulate(load, plan, path)
        assert 0 < line.arrived <= line.step


def test_selecting_is_in_the_way_of_backward():
    load = random_load(3)
    groups = merged(load.order, load.ready, load.nbytes, 0.3, 0.02)
    numel = list(load.nbytes)
    chosen, end = sparse_finish(
        groups, load.ready, numel, 0.5, lambda n: 0.01 * n, lambda k: 0.2 + 0.08 * k
    )
    elements, at = [], 0
    for group in groups:
        elements.append(sum(numel[at : at + len(group)]))
        at += len(group)
    kept = [max(1, int(0.5 * n)) for n in elements]
    slower, plan = sparsified(load, groups, kept, lambda n: 0.01 * n, itemsize=1)
    line = simulate(slower, plan, [Cost(startup=0.2, per_byte=0.01)])
    assert line.arrived == pytest.approx(end)
    assert slower.backward - load.backward == pytest.approx(chosen - load.ready[-1])


def test_nothing_to_send_takes_the_time_of_computing():
    load = random_load(4)
    assert simulate(load, Plan(messages=()), [Cost()]).step == pytest.approx(load.computing)


def test_bert_large_by_every_schedule_ends_after_every_gradient():
    load = load_of(published_table("bert-large"), 0.05, 0.11)
    cost = Cost(startup=4e-4, per_byte=4e-10, beside=0.5)
    merging = merged(load.order, load.ready, load.nbytes, cost.startup, cost.per_byte)
    steps = {
        "one message": fused(load, whole(load.order)),
        "a tensor each": fused(load, per_tensor(load.order)),
        "merged": fused(load, merging),
        "P3": prioritised(load, 200_000, 200_000),
        "ByteScheduler": prioritised(load),
    }
    times = {name: simulate(load, plan, [cost]).step for name, plan in steps.items()}
    assert min(times.values()) > load.computing
    assert times["merged"] <= times["a tensor each"]
    assert times["ByteScheduler"] < times["P3"]  # a slice of 200 kB is mostly start-up


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda load: simulate(load, Plan(messages=()), []), "path is empty"),
        (
            lambda load: simulate(
                load,
                Plan(messages=(Message(tensors=(0,), nbytes=1, ready=0.0, priority=0, needed=99),)),
                [Cost()],
            ),
            "needed at 99",
        ),
        (lambda load: prioritised(load, 0, 1), "partition = 0"),
        (lambda load: prioritised(load, 1, 0), "credit = 0"),
        (lambda load: sparsified(load, whole(load.order), [], float), "kept has 0"),
        (
            lambda load: Load(order=(0,), ready=(2.0,), nbytes=(1,), backward=1.0, forward=()),
            "1.0 after 2.0",
        ),
        (
            lambda load: Load(order=(0,), ready=(), nbytes=(1,), backward=1.0, forward=()),
            "1, 0 and 1",
        ),
        (
            lambda load: prioritised(
                Load(order=(0,), ready=(1.0,), nbytes=(1,), backward=1.0, forward=())
            ),
            "tensor 0 has a gradient",
        ),
    ],
)
def test_bad_input_is_named(call, named):
    with pytest.raises(InputError, match=named):
        call(random_load(0))
