"""The training behind a pilot: who trains, on how much, and what is kept."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from thinwire.cluster import Cluster, Node
from thinwire.errors import InputError
from thinwire.methods import Method
from thinwire.planner.candidates import Candidate
from thinwire.report import read_record
from thinwire.run import pilot
from thinwire.run.pilot import Piloting, _shortened, own_batch, spec_of, train_pilot
from thinwire.tasks import TASKS, Split
from thinwire.testing.toys import Moons

MOONS = "thinwire.testing.toys:Moons"
CLUSTER = Cluster(
    name="two",
    nodes=tuple(
        Node(name=f"n{i}", flops=1e9, memory_rate=8e9, egress=12.5e6, ingress=12.5e6)
        for i in range(2)
    ),
    default_latency=1e-3,
)
DENSE = Candidate(method="wfbp", settings={"groups": "buckets"})
PLAIN = Candidate(method="ssgd")
SPARSE = Candidate(method="topk", settings={"density": 0.5}, lossy=True)
ALONE = Candidate(method="alone")


def request(*candidates: Candidate, task: str = MOONS, **more) -> Piloting:
    return Piloting(cluster=CLUSTER, task=task, candidates=candidates, processes=1, **more)


@pytest.mark.distributed
def test_all_methods_see_as_many_samples_and_their_curves_count_steps_of_a_batch(tmp_path):
    found = train_pilot(request(PLAIN, SPARSE, ALONE, steps=12, batch=4), tmp_path)
    assert (found.steps, found.batch, found.stopped) == (12, 4, False)
    ends = {label: curve.steps[-1] for label, curve in found.curves.items()}
    assert ends == {"ssgd": 12, "topk density=0.5": 12, "alone": 24}
    runs = read_record(tmp_path).runs
    assert {run.end.samples for run in runs if run.end} == {96}
    assert all(curve.whole for curve in found.curves.values())


@dataclass(frozen=True, kw_only=True)
class LargeTest(Moons):
    """Moons with 128 x 50 test samples, or fewer."""

    test_limit: int | None = None

    def test_data(self) -> Split:
        x, y = super().test_data()
        return x.repeat(50, 1)[: self.test_limit], y.repeat(50)[: self.test_limit]


@pytest.mark.parametrize(("samples", "tested"), [(100, 500), (4000, 1500), (30_000, 6400)])
def test_a_large_test_set_is_cut_to_what_the_training_can_afford(monkeypatch, samples, tested):
    monkeypatch.setitem(TASKS, "large", LargeTest)
    make, number, notes = _shortened(request(task="large"), LargeTest(), samples)
    assert number == len(make().test_data()[1]) == tested
    assert len(notes) == (tested < 6400)
    if notes:
        assert f"{tested:,} of 6,400" in notes[0]


def test_a_task_without_the_setting_is_tested_whole(monkeypatch):
    monkeypatch.setattr(pilot, "_TESTED", 50)
    make, number, notes = _shortened(request(), Moons(), 100)
    assert (number, len(make().test_data()[1]), notes) == (128, 128, [])


@pytest.mark.distributed
def test_methods_with_the_updates_of_ssgd_are_trained_once(tmp_path):
    found = train_pilot(request(DENSE, PLAIN, steps=4), tmp_path)
    assert list(found.curves) == ["ssgd"]
    assert spec_of(DENSE).label == "ssgd"
    assert spec_of(SPARSE).label == SPARSE.label


@pytest.mark.distributed
def test_tuned_settings_are_those_of_a_comparison(tmp_path):
    gtopk = Candidate(method="gtopk", settings={"density": 0.01}, lossy=True)
    found = train_pilot(request(gtopk, ALONE, task="digits", steps=2, seed=5), tmp_path)
    trained = {run.start.label: run.start for run in read_record(tmp_path).runs}
    rates = {label: start.settings["train"]["lr"] for label, start in trained.items()}
    assert rates == {"gtopk density=0.01": 0.2, "alone": 0.05}
    assert {start.seed for start in trained.values()} == {5}
    assert found.batch == own_batch("digits") == 8
    assert found.notes[0].startswith("Learning rates are tuned for digits")


@pytest.mark.distributed
def test_what_the_user_sets_holds_and_an_untuned_task_is_told(tmp_path):
    found = train_pilot(request(PLAIN, steps=2, given={"train.lr": 0.25}), tmp_path)
    (run,) = read_record(tmp_path).runs
    assert run.start.settings["train"]["lr"] == 0.25
    assert found.notes[0].startswith(f"Nothing is tuned for {MOONS}: learning rate 0.25")


@dataclass(frozen=True, kw_only=True)
class Mistaken(Method):
    """Fails at its third step."""

    def worker(self, w):
        """See `Method`."""
        for batch in w.batches():
            if w.comm.step == 3:
                raise ZeroDivisionError("the mistake of a user")
            w.apply(w.all_reduce(w.gradient(batch)))


@pytest.mark.distributed
def test_a_method_that_fails_is_told_and_the_others_stay(tmp_path):
    broken = Candidate(method=f"{__name__}:Mistaken", lossy=True)
    found = train_pilot(request(PLAIN, broken, steps=8, batch=4), tmp_path)
    assert found.curves["ssgd"].whole
    assert not found.curves[broken.label].whole
    (note,) = [note for note in found.notes if "failed" in note]
    assert note.startswith(f"{broken.label} failed: ")
    assert "the mistake of a user" in note
    assert "\n" not in note


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"steps": 0}, "pilot steps = 0; allowed: a whole number, 1 or more"),
        ({"batch": 0}, "pilot batch = 0"),
        ({"seed": -1}, "pilot seed = -1; allowed: a whole number, 0 or more"),
        ({"given": {"train.batch": 4}}, "train.batch has no effect on a pilot"),
        ({"given": {"ssgd.train.split": "by_speed"}}, "ssgd.train.split has no effect"),
    ],
)
def test_what_cannot_be_is_refused(more, says):
    with pytest.raises(InputError, match=says):
        request(PLAIN, **more)
