"""The conformance suite of a codec: what each must keep, a user's own included.

for finding in check_codec(MyCodec()):
    print(finding)
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import math
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from thinwire.compress import Codec, feedback
from thinwire.errors import InputError, NonFiniteError
from thinwire.seeds import generator_for
from thinwire.testing.findings import Finding, finding
from thinwire.wire.packet import Packet

__all__ = ["CHECKS", "check_codec", "load_codec"]

SIZES = (1, 2, 7, 64, 1000, 5003)


def check_codec(codec: Codec) -> Iterator[Finding]:
    """Hold a codec to what every codec must keep, on vectors of 1 to 5,003 elements."""
    for promise, check in CHECKS.items():
        yield finding(promise, lambda check=check: check(codec))


def load_codec(name: str, settings: Mapping[str, Any]) -> Codec | None:
    """The codec that `module:name` makes with these settings; None where it is something else.

    Args:
        name: a class derived from `Codec`, or a function that returns one.
        settings: its arguments.

    Raises:
        InputError: settings that it does not take.
    """
    module, colon, member = name.partition(":")
    if not colon or importlib.util.find_spec(module.partition(".")[0]) is None:
        return None
    found = getattr(importlib.import_module(module), member, None)
    if not inspect.isfunction(found) and not (isinstance(found, type) and issubclass(found, Codec)):
        return None
    make: Any = found
    try:
        codec = make(**settings)
    except TypeError as error:
        raise InputError(f"{name}: {error}") from error
    return codec if isinstance(codec, Codec) else None


def _vector(numel: int, step: int = 0) -> torch.Tensor:
    return torch.randn(numel, generator=generator_for(5, numel, step))


def _same(a: Packet, b: Packet) -> bool:
    return [bytes(f) for f in a.frames()] == [bytes(f) for f in b.frames()]


def _travels(codec: Codec) -> None:
    for numel in SIZES:
        x = _vector(numel)
        packet = codec.encode(x, codec.init(x))
        there = Packet.from_frames([memoryview(bytearray(frame)) for frame in packet.frames()])
        here, back = codec.decode(packet), codec.decode(there)
        assert back.shape == (numel,), f"{numel} elements come back as {tuple(back.shape)}"
        assert back.dtype == x.dtype, f"{x.dtype} comes back as {back.dtype}"
        assert torch.equal(here, back), f"{numel} elements: decoding depends on more than the bytes"


def _leaves_input_alone(codec: Codec) -> None:
    x = _vector(1000)
    before = x.clone()
    packet = codec.encode(x, codec.init(x))
    frames = [bytes(f) for f in packet.frames()]
    assert torch.equal(x, before), "encode writes into its input"
    x.zero_()
    assert frames == [bytes(f) for f in packet.frames()], (
        "the packet shares memory with the input: a packet in flight would change"
    )
    shaped = codec.encode(before.view(40, 25), codec.init(before))
    assert torch.equal(codec.decode(shaped), codec.decode(packet)), "the shape of x matters"


def _repeats(codec: Codec) -> None:
    before = torch.get_rng_state()
    packets = []
    for _ in range(2):
        state = codec.init(_vector(1000))
        packets.append([codec.encode(_vector(1000, step), state) for step in range(3)])
    for first, second in zip(*packets, strict=True):
        assert _same(first, second), (
            "equal states give unequal packets; keep a torch.Generator in the state"
        )
    assert torch.equal(before, torch.get_rng_state()), "the global random generator was used"


def _keeps_state_in_the_state(codec: Codec) -> None:
    state = codec.init(_vector(1000))
    codec.encode(_vector(1000), state)
    kept = copy.deepcopy(state)
    thawed = pickle.loads(pickle.dumps(state))
    x = _vector(1000, 1)
    packet = codec.encode(x, state)
    assert _same(packet, codec.encode(x, kept)), "a copied state gives another packet"
    assert _same(packet, codec.encode(x, thawed)), "a state that was saved gives another packet"


def _refuses_what_is_not_finite(codec: Codec) -> None:
    for bad in (math.nan, math.inf, -math.inf):
        state = codec.init(_vector(1000))
        codec.encode(_vector(1000), state)
        kept = copy.deepcopy(state)
        x = _vector(1000, 1)
        x[990] = bad
        try:
            codec.encode(x, state)
        except NonFiniteError:
            pass
        else:
            raise AssertionError(f"a vector with {bad} is encoded; raise NonFiniteError")
        good = _vector(1000, 2)
        assert _same(codec.encode(good, state), codec.encode(good, kept)), (
            f"the state has changed although {bad} was refused"
        )


def _bears_odd_vectors(codec: Codec) -> None:
    for name, x in {
        "zeros": torch.zeros(1000),
        "equal elements": torch.full((1000,), 2.5),
        "one large element": torch.eye(1, 1000).view(-1) * 1e30,
        "tiny elements": _vector(1000) * 1e-38,
    }.items():
        out = codec.decode(codec.encode(x, codec.init(x)))
        assert bool(torch.isfinite(out).all()), f"{name} come back as numbers that aren't finite"
    try:
        empty = codec.decode(codec.encode(torch.empty(0), codec.init(torch.empty(0))))
    except InputError:
        return
    assert empty.shape == (0,), f"an empty vector comes back as {tuple(empty.shape)}"


def _feeds_back(codec: Codec) -> None:
    """What was sent and what is remembered add up to what came in, and the memory stays bounded."""
    if not codec.traits.biased:
        return  # needs none, and may not bear it: its noise grows with the memory
    whole = feedback(codec)
    x = _vector(1000)
    state = whole.init(x)
    sent, total, norms = torch.zeros(1000), torch.zeros(1000), []
    for step in range(200):
        g = _vector(1000, step)
        total += g
        sent += whole.decode(whole.encode(g, state))
        norms.append(float(state.memory.norm()))
    error = float((sent + state.memory - total).abs().max())
    assert error < 1e-2, f"sent + memory differ from what came in by up to {error:.3g}"
    late, early = max(norms[150:]), max(norms[:100])
    assert late < 3 * early, (
        f"with error feedback the memory grows without bound ({early:.3g} to {late:.3g} in 200 "
        "steps): decode(encode(x)) does not bring x closer to zero"
    )


def _is_unbiased(codec: Codec) -> None:
    if codec.traits.biased:
        return
    x = _vector(64)
    state, steps = codec.init(x), 600
    draws = torch.stack([codec.decode(codec.encode(x, state)) for _ in range(steps)])
    off = (draws.mean(0) - x).abs().max()
    limit = 6 * draws.std(0).max() / math.sqrt(steps) + 1e-3 * x.abs().max()
    assert float(off) <= float(limit), (
        f"the mean of {steps} decoded vectors is off by {float(off):.3g}, more than chance; say "
        "biased=True in its traits"
    )


def _sizes_meta(codec: Codec) -> None:
    numel = 5003
    nominal = torch.empty(numel, device="meta")
    packet = codec.encode(nominal, codec.init(nominal))
    x = _vector(numel)
    real = codec.encode(x, codec.init(x))
    assert packet.is_meta, "a meta vector must give a packet of meta tensors, for timing-only runs"
    if codec.encode(3 * x, codec.init(x)).nbytes != real.nbytes:
        return  # its size depends on the values
    ratio = packet.nbytes / real.nbytes
    assert 0.5 <= ratio <= 2, (
        f"a meta vector gives {packet.nbytes} bytes where a real one gives {real.nbytes}"
    )


CHECKS: Mapping[str, Callable[[Codec], Any]] = {
    "a packet that travelled decodes to the same vector": _travels,
    "the input is left alone, and the packet is its own": _leaves_input_alone,
    "equal states give equal packets": _repeats,
    "all that is remembered is in the state, which can be copied and saved": (
        _keeps_state_in_the_state
    ),
    "NaN and infinity are refused and change nothing": _refuses_what_is_not_finite,
    "zeros, equal, huge, tiny and no elements are borne": _bears_odd_vectors,
    "with error feedback nothing is lost": _feeds_back,
    "unbiased, where its traits say so": _is_unbiased,
    "a meta vector gives a packet of about the real size": _sizes_meta,
}
