"""What every method promises, and what each promises by itself."""

from __future__ import annotations

import pytest
import torch

from thinwire.errors import InputError, WorkerFailedError
from thinwire.methods import (
    ASGD,
    LAGS,
    METHODS,
    SSGD,
    WFBP,
    Alone,
    GTopK,
    LocalSGD,
    TopK,
    build_method,
    load_method,
)
from thinwire.testing.toys import DropoutMoons, Moons, Quadratic

SYNCHRONOUS = [name for name, cls in METHODS.items() if cls.traits.synchronous]


def alone_reference(size: int, steps: int, batch: int = 4, accumulate: int = 1) -> torch.Tensor:
    """One process that takes the union of the batches: plain torch, none of our code."""
    from thinwire.batches import SampleStream
    from thinwire.seeds import seed_for

    task = Moons()
    torch.manual_seed(seed_for(0, "model"))
    model = task.model()
    x, y = task.train_data()
    stream = SampleStream(task.num_train, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    whole = size * batch
    for step in range(0, steps, accumulate):
        optimizer.zero_grad()
        group = range(step, min(step + accumulate, steps))
        for t in group:
            index = stream.take(t * whole, whole)
            (task.loss(model, x[index], y[index]) / len(group)).backward()
        optimizer.step()
    return torch.cat([p.data.reshape(-1) for p in model.parameters()])


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_method_runs_on_any_number_of_workers_and_repeats(run_method, name, size):
    first, second = (run_method(build_method(name, {}), size) for _ in range(2))
    for a, b in zip(first.params, second.params, strict=True):
        assert torch.equal(a, b)
    assert first.world.elapsed == second.world.elapsed
    sent = [e.meter.sent for e in first.world.endpoints]
    assert sent == [e.meter.sent for e in second.world.endpoints]
    assert first.evals == second.evals
    assert torch.isfinite(first.params[0]).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", SYNCHRONOUS)
@pytest.mark.parametrize("size", [2, 4, 5])
def test_replicas_of_synchronous_methods_agree_bit_for_bit(run_method, name, size):
    if name == "alone":
        pytest.skip("works on one machine")
    params = run_method(build_method(name, {}), size).params
    for other in params[1:]:
        assert torch.equal(params[0], other)


LOSSLESS = [
    SSGD(),
    TopK(density=1.0),
    GTopK(density=1.0),
    GTopK(density=1.0, losses="kept"),
    LocalSGD(every=1),
    WFBP(),
    WFBP(groups="merged"),
    LAGS(density=1.0),
]


@pytest.mark.slow
@pytest.mark.parametrize("method", LOSSLESS, ids=lambda m: repr(m)[:40])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_lossless_setting_equals_one_process_with_the_union_of_the_batches(
    run_method, method, size
):
    # Local SGD averages the models, which is the same only without momentum's memory ...
    params = run_method(method, size, steps=8).params[0]
    # ... and even with it, since averaging is linear in momentum SGD at every = 1.
    torch.testing.assert_close(params, alone_reference(size, 8), rtol=1e-5, atol=1e-6)


def test_one_worker_is_plain_single_process_training(run_method):
    for name in ("alone", "ssgd", "localsgd", "asgd"):
        params = run_method(build_method(name, {}), 1, steps=6).params[-1]
        torch.testing.assert_close(params, alone_reference(1, 6), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("shares", [(6, 2), (1, 7), (3, 4, 9)])
def test_uneven_batches_are_weighted_by_their_samples(run_method, shares):
    even = alone_reference(1, 6, batch=sum(shares))
    for method in (SSGD(), TopK(density=1.0), GTopK(density=1.0), WFBP(), LAGS(density=1.0)):
        params = run_method(method, len(shares), shares=shares, steps=6).params[0]
        torch.testing.assert_close(params, even, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("steps", [8, 7, 1])
def test_accumulation_exchanges_once_per_group_and_takes_the_rest(run_method, steps):
    result = run_method(SSGD(accumulate=3), 2, steps=steps)
    torch.testing.assert_close(
        result.params[0], alone_reference(2, steps, accumulate=3), rtol=1e-5, atol=1e-6
    )
    plain = run_method(SSGD(), 2, steps=steps)
    exchanges = -(-steps // 3)
    sent, sent_plain = (r.world.endpoints[0].meter.sent for r in (result, plain))
    assert sent * steps == sent_plain * exchanges


@pytest.mark.slow
def test_sparse_methods_send_less_than_dense(run_method):
    task = Quadratic(dim=2000)
    sent = {
        name: run_method(build_method(name, s), 4, task=task, lr=0.01).world.endpoints[1].meter.sent
        for name, s in {"ssgd": {}, "topk": {"density": 0.01}, "gtopk": {"density": 0.01}}.items()
    }
    assert sent["gtopk"] < sent["topk"] < sent["ssgd"] / 10


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method_learns(run_method, name):
    settings = {"density": 0.25} if name in ("topk", "gtopk", "oktopk") else {}
    # Stale gradients and momentum don't go together.
    lr, momentum = (0.4, 0.0) if name == "asgd" else (0.1, 0.9)
    train = {"shares": (32,) * 4, "steps": 160, "lr": lr, "momentum": momentum}
    evals = run_method(build_method(name, settings), 4, **train).evals
    assert evals[0]["accuracy"] < 0.8
    assert evals[-1]["accuracy"] > 0.95
    assert evals[-1]["loss"] < evals[0]["loss"] / 2


def test_local_sgd_by_speed_gives_slower_machines_fewer_steps(run_method):
    speeds = (1.0, 1.0, 0.25)
    equal = run_method(LocalSGD(every=8), 3, speeds=speeds, steps=32)
    paced = run_method(LocalSGD(every=8, pace="speed"), 3, speeds=speeds, steps=32)
    waited = [[e.meter.waited for e in r.world.endpoints] for r in (equal, paced)]
    assert paced.world.elapsed < 0.6 * equal.world.elapsed
    assert waited[1][0] < 0.5 * waited[0][0]
    assert torch.equal(paced.params[0], paced.params[2])


def test_asgd_uses_the_fast_more_and_counts_every_sample(run_method):
    result = run_method(ASGD(), 3, speeds=(1.0, 1.0, 0.2), steps=40)
    sent = [e.meter.sent for e in result.world.endpoints[:3]]
    assert sent[2] < 0.5 * sent[1]
    assert result.evals[-1]["samples"] >= 40 * 12
    assert result.evals[-1]["samples"] < 40 * 12 + 12


def test_dropout_is_drawn_apart_on_every_worker(run_method):
    # Each worker's masks depend on its own rank only: a second run with more workers on the side
    # of the first must not change what worker 0 draws.
    one = run_method(Alone(), 1, task=DropoutMoons(), steps=5)
    two = run_method(Alone(), 2, task=DropoutMoons(), steps=5, shares=(4, 4))
    assert not torch.equal(two.params[0], two.params[1])
    again = run_method(Alone(), 2, task=DropoutMoons(), steps=5, shares=(4, 4))
    assert torch.equal(two.params[1], again.params[1])
    assert one.params[0].shape == two.params[0].shape


def test_a_nan_loss_stops_the_run_naming_rank_and_step(run_method):
    task = load_exploding()
    with pytest.raises(WorkerFailedError, match=r"rank \d, step \d+.*train\.lr") as error:
        run_method(SSGD(), 2, task=task, steps=30, lr=1.0)
    assert "is nan" in str(error.value).lower() or "inf" in str(error.value).lower()


def load_exploding():
    from thinwire.testing.toys import Exploding

    return Exploding()


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("gtpok", {}, "did you mean 'gtopk'"),
        ("gtopk", {"densty": 0.1}, "did you mean 'density'"),
        ("alone", {"x": 1}, "no settings"),
        ("gtopk", {"density": 0}, "density"),
        ("gtopk", {"density": 2}, "density"),
        ("topk", {"density": "nan"}, "density"),
        ("ssgd", {"accumulate": 0}, "at least 1"),
        ("localsgd", {"every": 0}, "at least 1"),
        ("wfbp", {"groups": "layer"}, "groups|Invalid enum"),
        ("wfbp", {"groups": "buckets", "bucket_bytes": 0}, "bucket_bytes = 0"),
        ("wfbp", {"bucket_bytes": 9}, "bucket_bytes = 9 has no effect"),
        ("wfbp", {"groups": "one", "at_once": 1}, "at_once = 1 has no effect"),
        ("wfbp", {"at_once": -1}, "at_once = -1"),
        ("lags", {"density": 1.5}, "density"),
        ("lags", {"merge": -1}, "merge = -1"),
        ("lags", {"delta_every": -1}, "delta_every = -1"),
        ("localsgd", {"pace": "fast"}, "pace|Invalid enum"),
        ("nowhere:Method", {}, "nowhere"),
        ("thinwire.methods:Paper", {}, "Method"),
    ],
)
def test_bad_methods_and_settings_are_refused_by_name(name, settings, message):
    with pytest.raises(InputError, match=message):
        build_method(name, settings)


@pytest.mark.parametrize("name", METHODS)
def test_the_table_is_complete(name):
    cls = load_method(name)
    assert cls.paper is not None
    assert str(cls.paper.year) in cls.paper.cite()
    assert cls.traits.traffic != "not stated"
    assert (cls.__doc__ or "").count("\n") > 5
    assert cls.num_servers == 0 or cls.server is not SSGD.server
