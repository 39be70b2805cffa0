"""The fused kernel does to the bit what the separate steps do, or nothing at all."""

from __future__ import annotations

import math

import pytest
import torch

from thinwire.compress import accumulate_above, accumulate_and_select, select_top
from thinwire.compress import fused as module
from thinwire.compress.fused import COMPILED_FROM
from thinwire.compress.threshold import at_least
from thinwire.errors import InputError, NonFiniteError
from thinwire.seeds import generator_for

LARGE = (1 << 19) + 12_345


@pytest.fixture(params=["compiled", "torch"])
def path(request, monkeypatch):
    """Both ways of doing it."""
    if request.param == "torch":
        monkeypatch.setattr(module, "kernels", lambda: None)
    elif module.kernels() is None:
        pytest.skip("numba does not work here")
    return request.param


@pytest.fixture(autouse=True)
def _several_chunks(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 1 << 17)


def separately(memory, grad, scale, k):
    memory.add_(grad, alpha=scale)
    own = select_top(memory, k)
    own.zero_in(memory)
    return own


def normal(numel, *labels):
    return torch.randn(numel, generator=generator_for(1, numel, *labels))


def gradient(kind, numel=LARGE):
    x = normal(numel, kind)
    stride = numel // module.SAMPLE
    if kind == "ties":
        x = x.mul(4).round()
    elif kind == "mostly zero":
        x[x.abs() < 3.5] = 0
    elif kind == "constant":
        x.fill_(-2)
    elif kind == "zero":
        x.zero_()
    elif kind == "only small ones sampled":
        x[::stride] = 0
    elif kind == "only large ones sampled":
        x.mul_(1e-6)
        x[::stride] += 10
    elif kind == "all large ones at the end":
        x[: numel // 2].mul_(1e-3)
    elif kind == "rising":
        x = torch.arange(float(numel))
    return x


KINDS = ["normal", "ties", "mostly zero", "constant", "zero", "only small ones sampled",
         "only large ones sampled", "all large ones at the end", "rising"]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 2])
def test_selection_and_memory_are_those_of_the_separate_steps_to_the_bit(kind, threads):
    for k in (1, 500, 60_000):
        ours = theirs = None
        memory = [gradient(kind).mul_(0.1), gradient(kind).mul_(0.1)]
        for step, scale in enumerate((1.0, 1 / 3)):
            grad = gradient(kind).add_(step * 0.01)
            ours = accumulate_and_select(memory[0], grad, scale, k, num_threads=threads)
            theirs = separately(memory[1], grad, scale, k)
            assert torch.equal(ours.index, theirs.index)
            assert torch.equal(ours.value, theirs.value)
            assert torch.equal(memory[0].view(torch.int32), memory[1].view(torch.int32))


@pytest.mark.parametrize("numel", [1, 2, 1000, COMPILED_FROM - 1, COMPILED_FROM, COMPILED_FROM + 1])
def test_vectors_of_any_size_are_treated_the_same(path, numel):
    memory, other, grad = normal(numel, "memory"), normal(numel, "memory"), normal(numel, "grad")
    ours = accumulate_and_select(memory, grad, 0.7, max(1, numel // 50))
    theirs = separately(other, grad, 0.7, max(1, numel // 50))
    assert torch.equal(ours.index, theirs.index)
    assert torch.equal(ours.value, theirs.value)
    assert torch.equal(memory, other)


def test_nothing_is_lost_over_many_steps():
    memory, total, sent = (torch.zeros(LARGE) for _ in range(3))
    for step in range(5):
        # Multiples of 1/64 add up exactly, so that equality can be asked for.
        grad = normal(LARGE, step).mul(64).round().div(64)
        total += grad
        accumulate_and_select(memory, grad, 1.0, 5000).add_into(sent)
    assert torch.equal(sent + memory, total)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("numel", [100, LARGE])
def test_a_bad_gradient_is_refused_by_its_place_and_the_memory_left_as_it_was(path, bad, numel):
    for place in (0, 57, numel - 1):
        memory, grad = normal(numel, "memory"), normal(numel, "grad")
        before = memory.clone()
        grad[place] = bad
        with pytest.raises(
            NonFiniteError, match=rf"element {place} of the gradient is -?(nan|inf)"
        ):
            accumulate_and_select(memory, grad, 0.5, 10, num_threads=2)
        assert torch.equal(memory, before)


def test_a_sum_that_overflows_is_refused_and_the_memory_left_as_it_was(path):
    memory, grad = normal(LARGE, "memory"), normal(LARGE, "grad")
    memory[9] = grad[9] = 3e38
    before = memory.clone()
    with pytest.raises(NonFiniteError, match="element 9 of the gradient is 3"):
        accumulate_and_select(memory, grad, 1.0, 10)
    assert torch.equal(memory, before)


def test_huge_finite_gradients_are_not_refused(path):
    memory, grad = torch.zeros(LARGE), normal(LARGE, "grad")
    grad[5], grad[7] = 3e38, -3e38
    kept = accumulate_and_select(memory, grad, 1.0, 2)
    assert kept.index.tolist() == [5, 7]


def test_adding_the_safe_limit_never_overflows_not_even_rounded_up():
    largest = torch.tensor(torch.finfo(torch.float32).max)
    for scale in (1.0, 0.3, 1 / 3, 7.0, 1e-3):
        limit = torch.tensor(module.SAFE / scale)  # rounded to float32, up or down
        assert torch.isfinite(largest.add(limit, alpha=scale))
    assert not torch.isfinite(largest + 2 * module.SAFE)


def test_a_memory_that_is_bad_already_is_named(path):
    memory = normal(LARGE, "memory")
    memory[1234] = math.nan
    with pytest.raises(NonFiniteError, match="element 1234"):
        accumulate_and_select(memory, normal(LARGE, "grad"), 1.0, 10)


def test_the_gradient_is_left_alone_and_its_shape_counts_as_flat(path):
    grad = normal(LARGE - LARGE % 2, "grad").view(2, -1)
    before, memory = grad.clone(), torch.zeros(2, grad.shape[1])
    kept = accumulate_and_select(memory, grad, 2.0, 5)
    assert torch.equal(grad, before)
    assert (memory == 0).sum() == 5
    assert torch.equal(kept.value, 2 * grad.view(-1)[kept.index])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_take_the_separate_steps(dtype):
    memory, grad = torch.zeros(200, dtype=dtype), normal(200).to(dtype)
    other = torch.zeros(200, dtype=dtype)
    ours, theirs = accumulate_and_select(memory, grad, 1.0, 9), separately(other, grad, 1.0, 9)
    assert torch.equal(ours.index, theirs.index)
    assert torch.equal(memory, other)


def test_meta_vectors_give_nominal_entries():
    memory = torch.empty(25_000_000, device="meta")
    kept = accumulate_and_select(memory, torch.empty_like(memory), 1.0, 25_000)
    assert (len(kept), kept.is_meta) == (25_000, True)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"k": 0}, r"k = 0; valid: 1\.\.10"),
        ({"k": 11}, "k = 11"),
        ({"scale": math.nan}, "scale = nan"),
        ({"scale": 1e39}, "finite in float32"),
        ({"num_threads": 0}, "num_threads = 0"),
        ({"grad": torch.ones(9)}, "9 x torch.float32 on cpu meets a memory of 10"),
        ({"grad": torch.ones(10, dtype=torch.float64)}, "10 x torch.float64"),
    ],
)
def test_impossible_arguments_are_refused(changed, message):
    given = {"memory": torch.zeros(10), "grad": torch.ones(10), "scale": 1.0, "k": 2, **changed}
    with pytest.raises(InputError, match=message):
        accumulate_and_select(**given)


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_every_job_is_done_once_and_its_result_in_its_place(threads):
    done = []
    jobs = [lambda i=i: done.append(i) or i * i for i in range(100)]
    assert module._on_threads(jobs, threads) == [i * i for i in range(100)]
    assert sorted(done) == list(range(100))


@pytest.mark.parametrize("threads", [1, 3])
def test_what_a_thread_raises_comes_out_of_the_call(threads):
    def fail():
        raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        module._on_threads([fail] * 5, threads)


@pytest.mark.parametrize("more", [0, 1])
def test_chunks_cover_the_vector_once(more):
    numel = 3 * module.CHUNK + more
    at = [i for chunk in module._chunks(numel) for i in (chunk.start, chunk.stop)]
    assert at[0] == 0
    assert at[-1] == numel
    assert at[1:-1:2] == at[2::2]


@pytest.mark.parametrize("kind", ["normal", "ties", "mostly zero", "constant", "zero"])
@pytest.mark.parametrize("room", [1, 3000, LARGE])
def test_what_is_above_a_known_threshold_is_found_and_stays(path, kind, room):
    for threshold in (0.0, 0.1, 2.0, 1e30):
        memory, grad = normal(LARGE, "memory"), gradient(kind)
        expected = memory.clone().add_(grad, alpha=0.25)
        found = accumulate_above(memory, grad, 0.25, threshold, room, num_threads=2)
        assert torch.equal(memory, expected)
        above = at_least(expected, float(torch.tensor(threshold)))
        assert torch.equal(found.index, above.index)
        assert torch.equal(found.value, above.value)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_known_threshold_lets_no_bad_gradient_in(path, bad):
    memory, grad = normal(LARGE, "memory"), gradient("normal")
    grad[12_345] = bad
    before = memory.clone()
    with pytest.raises(NonFiniteError, match="element 12345"):
        accumulate_above(memory, grad, 0.25, 1.0, 10)
    assert torch.equal(memory, before)


def test_a_small_or_double_memory_takes_a_known_threshold_too():
    for dtype in (torch.float32, torch.float64):
        memory, grad = normal(50, "m").to(dtype), normal(50, "g").to(dtype)
        found = accumulate_above(memory, grad, 0.5, 1.0, 50)
        assert found.value.dtype == dtype
        assert found.index.tolist() == (memory.abs() >= 1).nonzero().view(-1).tolist()
