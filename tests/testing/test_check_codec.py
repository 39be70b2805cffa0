"""The suite finds what is wrong with a codec, and nothing wrong with ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from thinwire.compress import (
    Codec,
    Traits,
    cast,
    packed,
    qsgd,
    randk,
    sampled_threshold,
    sign,
    stochastic_cast,
    threshold,
    topk,
)
from thinwire.errors import InputError, NonFiniteError
from thinwire.testing.check_codec import check_codec, load_codec
from thinwire.wire import Packet

OURS = {
    "topk": topk(0.1),
    "randk": randk(0.1),
    "threshold": threshold(1.0),
    "sampled": sampled_threshold(0.1),
    "cast": cast("fp16"),
    "stochastic": stochastic_cast("int8"),
    "sign": sign(),
    "qsgd": qsgd(bits=4),
    "packed": packed(topk(0.1), "bf16"),
}


@pytest.mark.parametrize("name", OURS)
def test_our_codecs_keep_every_promise_that_is_theirs(name: str) -> None:
    broken = {f.promise: f.detail for f in check_codec(OURS[name]) if not f.kept}
    # Half precision ends at 65,504: such a codec refuses larger numbers.
    if name in ("cast",):
        broken.pop("zeros, equal, huge, tiny and no elements are borne", None)
    assert broken == {}


@dataclass(frozen=True)
class Half(Codec):
    """Sends x/2, so that error feedback converges; right unless told to be wrong."""

    wrong: str = ""

    @property
    def traits(self) -> Traits:
        return Traits(biased=self.wrong != "unbiased", linear=True)

    def init(self, like: torch.Tensor) -> Any:
        return None

    def encode(self, x: torch.Tensor, state: Any) -> Packet:
        x = x.reshape(-1)
        if self.wrong != "nan" and not x.is_meta and not bool(torch.isfinite(x).all()):
            raise NonFiniteError("not finite")
        if self.wrong == "random":
            return Packet((x / 2 + torch.rand(1),))
        if self.wrong == "shares":
            return Packet((x,))
        if self.wrong == "grows":
            return Packet((-x,))
        if self.wrong == "meta" and x.is_meta:
            return Packet((torch.zeros(x.numel()),))
        return Packet((x / 2,))

    def decode(self, packet: Packet) -> torch.Tensor:
        out = packet.buffers[0].clone()
        return out[:-1] if self.wrong == "short" else out


def test_a_codec_of_ten_lines_keeps_them() -> None:
    assert [f for f in check_codec(Half()) if not f.kept] == []


@pytest.mark.parametrize(
    ("wrong", "promise"),
    [
        ("nan", "NaN and infinity are refused and change nothing"),
        ("random", "equal states give equal packets"),
        ("shares", "the input is left alone, and the packet is its own"),
        ("grows", "with error feedback nothing is lost"),
        ("meta", "a meta vector gives a packet of about the real size"),
        ("short", "a packet that travelled decodes to the same vector"),
        ("unbiased", "unbiased, where its traits say so"),
    ],
)
def test_what_is_wrong_is_found(wrong: str, promise: str) -> None:
    broken = [f.promise for f in check_codec(Half(wrong)) if not f.kept]
    assert promise in broken


def test_a_codec_is_found_by_class_and_by_function() -> None:
    assert load_codec("thinwire.compress:topk", {"density": 0.1}) == topk(0.1)
    assert load_codec("thinwire.methods:SSGD", {}) is None
    assert load_codec("ssgd", {}) is None
    with pytest.raises(InputError, match="breadth"):
        load_codec("thinwire.compress:topk", {"breadth": 0.1})
