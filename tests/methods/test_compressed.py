"""What the compressing methods promise together: nothing lost, nothing twice, any model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from thinwire.errors import InputError, WorkerFailedError
from thinwire.methods import DGC, QSGD, SSGD, GTopK, Method, OkTopk, PowerSGD, TopK, build_method
from thinwire.run.settings import MethodSpec, assign
from thinwire.seeds import generator_for
from thinwire.tasks.timing import Timing
from thinwire.testing.toys import Exploding, Moons, Quadratic

SHAPES = [(20, 15), (9,), (12, 4, 3, 3), (30, 40)]
NUMEL = 300 + 9 + 432 + 1200

COMPRESSED: list[Method] = [
    DGC(density=0.02, momentum=0.0, dense_below=100),
    DGC(density=0.02, momentum=0.0, dense_below=0, scope="model", warmup=6),
    DGC(density=0.02, momentum=0.0, select="sampled"),
    OkTopk(density=0.02, estimate_every=4, balance_every=3),
    OkTopk(density=0.01, warmup=8),
    PowerSGD(rank=2),
    PowerSGD(rank=1, dense_below=400),
    QSGD(bits=8, bucket=64, errors="kept"),
]
FAMILY: list[Method] = [*COMPRESSED, QSGD(), DGC(), DGC(clip=0.1, warmup=4), OkTopk()]


def drawn(size: int, steps: int = 10, numel: int = NUMEL) -> torch.Tensor:
    """Gradients (N, T, P) with a few large elements."""
    x = torch.randn(size, steps, numel, generator=generator_for(0, "fed", size, steps))
    return x.pow(3)


def name_of(method: Method) -> str:
    return repr(method)[:60]


@pytest.mark.slow
@pytest.mark.parametrize("method", COMPRESSED, ids=name_of)
@pytest.mark.parametrize("shares", [(1,), (1, 1), (3, 1, 4), (1, 2, 3, 4, 5)])
def test_what_was_applied_and_what_is_remembered_are_the_gradients(feed_method, method, shares):
    gradients = drawn(len(shares))
    result = feed_method(method, gradients, SHAPES, shares)
    weights = torch.tensor(shares) / sum(shares)
    remembered = sum(memory_of(method, state) for state in result.states)
    expected = torch.einsum("n,ntp->p", weights.double(), gradients.double())
    total = result.directions[0].double().sum(dim=0) + remembered
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-4)


def memory_of(method: Method, state) -> torch.Tensor:
    """Error memory (P,) in the model's order."""
    if isinstance(method, QSGD):
        return state.codec.memory.double()
    memory = state.memory.double()
    if not isinstance(method, DGC):
        return memory
    parts, start, places = [], 0, []
    for shape in SHAPES:
        numel = torch.Size(shape).numel()
        places.append(numel >= method.dense_below)
        parts.append(torch.zeros(numel, dtype=torch.float64))
        if places[-1]:
            parts[-1] += memory[start : start + numel]
            start += numel
    return torch.cat(parts)


@pytest.mark.slow
@pytest.mark.parametrize("method", FAMILY, ids=name_of)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_all_ranks_apply_the_same_bits(feed_method, method, size):
    directions = feed_method(method, drawn(size, 6), SHAPES).directions
    assert all(torch.equal(d, directions[0]) for d in directions)
    assert torch.isfinite(directions[0]).all()


LOSSLESS = [
    DGC(density=1.0, momentum=0.0, dense_below=0),
    DGC(density=0.01, dense_below=10**9),
    DGC(density=0.01, momentum=0.0, dense_below=10**9),
    OkTopk(density=1.0, estimate_every=3),
    PowerSGD(dense_below=10**9),
    PowerSGD(rank=1000),
]


@pytest.mark.slow
@pytest.mark.parametrize("method", LOSSLESS, ids=name_of)
@pytest.mark.parametrize("shares", [(4,), (4, 4), (6, 2, 3)])
def test_the_lossless_setting_is_synchronous_sgd(run_method, method, shares):
    # DGC's own momentum on layers that are sent whole is the optimizer's.
    momentum = 0.0 if getattr(method, "momentum", 0.9) == 0.0 else 0.9
    ours = run_method(method, len(shares), shares=shares, momentum=momentum)
    plain = run_method(SSGD(), len(shares), shares=shares, momentum=momentum)
    torch.testing.assert_close(ours.params[0], plain.params[0], rtol=1e-5, atol=1e-6)


class One(Quadratic):
    """A model with one parameter."""

    def __init__(self) -> None:
        super().__init__(dim=1, condition=1.0)


class Frozen(Moons):
    """A model whose first layer is frozen."""

    def model(self) -> nn.Module:
        model = super().model()
        for param in model[0].parameters():  # pyright: ignore[reportIndexIssue]
            param.requires_grad_(False)
        return model


class Double(Moons):
    """A model in float64."""

    def model(self) -> nn.Module:
        return super().model().double()

    def loss(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return super().loss(model, x.double(), y)

    def evaluate(self, model: nn.Module) -> tuple[float, float]:
        return 0.0, 0.0


@pytest.mark.slow
@pytest.mark.parametrize("method", FAMILY, ids=name_of)
@pytest.mark.parametrize("task", [One, Frozen, Double])
@pytest.mark.parametrize("size", [1, 3])
def test_models_of_one_parameter_with_frozen_layers_and_in_double_are_trained(
    run_method, method, task, size
):
    result = run_method(method, size, task=task(), lr=0.05)
    for params in result.params:
        assert torch.equal(params, result.params[0])
        assert torch.isfinite(params).all()
        assert params.dtype == (torch.float64 if task is Double else torch.float32)


def test_one_worker_sends_nothing(run_method):
    for method in FAMILY:
        assert run_method(method, 1).world.endpoints[0].meter.sent == 0


@pytest.mark.parametrize("method", FAMILY, ids=name_of)
def test_a_nan_stops_the_run(run_method, method):
    with pytest.raises(WorkerFailedError, match="nan"):
        run_method(method, 2, task=Exploding(at=2))


@pytest.mark.parametrize(
    "method",
    [m for m in FAMILY if not isinstance(m, QSGD) and getattr(m, "clip", None) is None],
    ids=name_of,
)
def test_a_sum_beyond_float32_stops_the_run(feed_method, method):
    gradients = torch.full((2, 4, NUMEL), 3e38)
    with pytest.raises(WorkerFailedError, match=r"NaN or infinite|inf when added|is inf"):
        feed_method(method, gradients, SHAPES, (1, 1))


class Matrix(Timing):
    """A timing-only model that is a square matrix."""

    def model(self) -> nn.Module:
        side = round(self.num_params**0.5)
        return nn.Linear(side, side, bias=True, device="meta")


@pytest.mark.slow
@pytest.mark.parametrize("method", FAMILY, ids=name_of)
def test_large_models_are_timed_without_arithmetic(run_method, method):
    task = Matrix(num_params=25_000_000, flops_per_sample=1e6)
    result = run_method(method, 5, task=task, steps=3)
    meters = [e.meter for e in result.world.endpoints]
    assert all(m.sent > 0 and m.computed > 0 for m in meters)
    plain = run_method(SSGD(), 5, task=task, steps=3)
    # A warm-up begins with more than dense, and QSGD gathers from all what it has only shrunk.
    if not isinstance(method, QSGD) and not getattr(method, "warmup", 0):
        assert max(m.sent for m in meters) < plain.world.endpoints[0].meter.sent / 2


def test_a_warm_up_begins_with_more_and_ends_with_the_density(feed_method):
    gradients = drawn(1, 8)
    for name in ("topk", "gtopk", "dgc", "oktopk"):
        method = build_method(name, {"density": 0.005, "warmup": 4})
        directions = feed_method(method, gradients, [(NUMEL,)]).directions[0]
        found = (directions != 0).sum(dim=1).tolist()
        expected = [int(NUMEL * 0.005 ** (i / 5)) for i in (1, 2, 3, 4, 5)]
        assert found[:5] == expected, name
        assert max(found[5:]) <= expected[-1], name
        assert min(found[5:]) > 0, name


def test_settings_arrive_from_a_command_line():
    given = {"oktopk.density": 0.02, "dgc.clip": 1.5, "powersgd.rank": 2, "qsgd.bits": 8}
    specs = [MethodSpec(name=n) for n in ("oktopk", "dgc", "powersgd", "qsgd")]
    methods = [a.method for a in assign(specs, given, {})]
    assert methods == [OkTopk(density=0.02), DGC(clip=1.5), PowerSGD(rank=2), QSGD(bits=8)]


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("dgc", {"density": 0}, "density = 0"),
        ("dgc", {"momentum": 1.0}, "momentum = 1.0"),
        ("dgc", {"clip": 0}, "clip = 0.0"),
        ("dgc", {"clip": "inf"}, "clip = inf"),
        ("dgc", {"scope": "tensor"}, "scope = 'tensor'"),
        ("dgc", {"select": "random"}, "select = 'random'"),
        ("dgc", {"dense_below": -1}, "dense_below = -1"),
        ("dgc", {"warmup": -1}, "warmup = -1"),
        ("topk", {"warmup": -1}, "warmup = -1"),
        ("lags", {"warmup": -1}, "warmup = -1"),
        ("gtopk", {"warmup": -1}, "warmup = -1"),
        ("oktopk", {"density": 1.5}, "density = 1.5"),
        ("oktopk", {"estimate_every": 0}, "estimate_every = 0"),
        ("oktopk", {"balance_every": 0}, "balance_every = 0"),
        ("powersgd", {"rank": 0}, "rank = 0"),
        ("powersgd", {"dense_below": -5}, "dense_below = -5"),
        ("qsgd", {"bits": 3}, "bits = 3"),
        ("qsgd", {"bucket": 0}, "bucket = 0"),
        ("qsgd", {"errors": "lost"}, "errors = 'lost'"),
        ("qsgd", {"errors": "kept"}, r"bucket = 512 with errors = 'kept'.*allowed: 1\.\.48"),
        ("oktopk", {"denstiy": 0.1}, "did you mean 'density'"),
    ],
)
def test_bad_settings_are_refused_by_name(name, settings, message):
    with pytest.raises(InputError, match=message):
        build_method(name, settings)


@pytest.mark.parametrize("name", ["topk", "gtopk", "oktopk", "qsgd", "asgd", "alone"])
def test_native_collectives_are_refused_where_they_would_do_nothing(name):
    with pytest.raises(InputError, match=r"wire\.collectives = 'native' has no effect with"):
        assign([MethodSpec(name=name)], {"wire.collectives": "native"}, {}, real=True)


@pytest.mark.parametrize("name", ["ssgd", "localsgd", "powersgd", "dgc"])
def test_native_collectives_are_taken_where_all_reduces_are(name):
    assigned = assign([MethodSpec(name=name)], {"wire.collectives": "native"}, {}, real=True)[0]
    assert assigned.wire.collectives == "native"


def test_topk_and_gtopk_are_what_they_were_without_a_warm_up(run_method):
    for cls in (TopK, GTopK):
        a, b = run_method(cls(density=0.1), 3), run_method(cls(density=0.1, warmup=0), 3)
        assert torch.equal(a.params[0], b.params[0])
