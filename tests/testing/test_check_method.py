"""The conformance suite finds what it is for, and passes what keeps its promises."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from thinwire.errors import InputError
from thinwire.methods import METHODS, Method, Traits
from thinwire.testing.check_method import CHECKS, check_method

HERE = "test_check_method"


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    """Lets `module:Class` find this file's classes."""
    import sys

    monkeypatch.setitem(sys.modules, HERE, sys.modules[__name__])


@dataclass(frozen=True, kw_only=True)
class RandomPairs(Method):
    every: int = 1

    def worker(self, w):
        for step, batch in enumerate(w.batches()):
            w.apply(w.gradient(batch))
            if step % self.every:
                continue
            order = torch.randperm(w.size, generator=w.shared_rng).tolist()
            seat = order.index(w.rank) ^ 1
            if seat < w.size:
                theirs = w.exchange(order[seat], w.params)
                w.params.add_(theirs).div_(2)


@dataclass(frozen=True, kw_only=True)
class Careless(Method):
    """Says that replicas agree and lets them differ; draws from global generators."""

    traits: ClassVar[Traits] = Traits(traffic="0", staleness="0", agree=True)

    def worker(self, w):
        for batch in w.batches():
            w.apply(w.gradient(batch) * (1 + 0.01 * random.random()))


@dataclass(frozen=True, kw_only=True)
class Waiting(Method):
    """Waits for what nobody sends."""

    def worker(self, w):
        for batch in w.batches():
            w.gradient(batch)
            w.comm.wait((w.rank + 1) % (w.size + 1) % w.size, "never")


def broken(name):
    return {f.promise: f.detail for f in check_method(name) if not f.kept}


@pytest.mark.slow
def test_a_users_method_of_a_few_lines_keeps_every_promise():
    assert broken(f"{HERE}:RandomPairs") == {}


@pytest.mark.slow
def test_broken_promises_are_named_with_what_to_do():
    found = broken(f"{HERE}:Careless")
    assert "use w.rng" in found["two runs with one seed are the same in every number"]
    assert "agree=False" in found["replicas end equal, where the method says so"]
    assert "Python's global" in found["global random state, grad mode and clock stay untouched"]


@pytest.mark.slow
def test_a_method_that_waits_for_nothing_is_reported_not_hung():
    details = " ".join(broken(f"{HERE}:Waiting").values())
    assert "waits for" in details


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_the_table_keeps_every_promise(name):
    settings = {"density": 0.1} if name in ("topk", "gtopk", "oktopk") else {}
    findings = list(check_method(name, settings, real=True))
    assert [f for f in findings if not f.kept] == []
    assert len(findings) >= len(CHECKS)


def test_an_unknown_method_is_refused_by_name():
    with pytest.raises(InputError, match="gtopk"):
        list(check_method("gtpok"))
