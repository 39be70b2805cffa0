"""What every codec promises, asked of every codec."""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import thinwire.compress as compress
from thinwire.compress import (
    Codec,
    Traits,
    cast,
    feedback,
    num_kept,
    packed,
    per_layer,
    qsgd,
    randk,
    sampled_threshold,
    sign,
    stochastic_cast,
    threshold,
    topk,
)
from thinwire.compress.indices import encode_indices
from thinwire.errors import InputError, NonFiniteError
from thinwire.seeds import generator_for
from thinwire.wire import Packet

NUMEL = 5000
LAYERS = (3000, 40, 1900, 60)


def vector(step=0, numel=NUMEL):
    return torch.randn(numel, generator=generator_for(11, step, numel))


def coded(index_nbytes_of, value_nbytes):
    """Payload of a packed top-k of 1 %."""
    kept = topk(0.01).encode(index_nbytes_of, None).buffers[0]
    return encode_indices(kept, NUMEL).numel() + value_nbytes + 8


def at_least(x, magnitude):
    return int((x.abs() >= magnitude).sum())


# Each with the bytes of its packet's buffers for a vector; None where another test says.
CODECS = {
    "topk": (topk(0.01), lambda x: 50 * 8 + 8),
    "randk": (randk(0.01), lambda x: 50 * 4 + 16),
    "threshold": (threshold(2.0), lambda x: at_least(x, 2.0) * 8 + 8),
    "sampled": (sampled_threshold(0.01), None),
    "cast fp16": (cast("fp16"), lambda x: 2 * NUMEL),
    "cast bf16": (cast("bf16"), lambda x: 2 * NUMEL),
    "cast int8": (cast("int8"), lambda x: NUMEL + 3 * 4),
    "stochastic fp16": (stochastic_cast("fp16"), lambda x: 2 * NUMEL),
    "stochastic bf16": (stochastic_cast("bf16"), lambda x: 2 * NUMEL),
    "stochastic int8": (stochastic_cast("int8"), lambda x: NUMEL + 3 * 4),
    "sign": (sign(), lambda x: NUMEL // 8 + 4 + 8),
    "qsgd 2": (qsgd(bits=2), lambda x: NUMEL // 4 + 10 * 4 + 8),
    "qsgd 4": (qsgd(bits=4), lambda x: NUMEL // 2 + 10 * 4 + 8),
    "qsgd 8": (qsgd(bits=8), lambda x: NUMEL + 10 * 4 + 8),
    "packed": (packed(topk(0.01)), lambda x: coded(x, 200)),
    "packed plain": (packed(topk(0.01), indices="plain"), lambda x: 50 * 8 + 8),
    "packed fp16": (packed(topk(0.01), values="fp16"), lambda x: coded(x, 100)),
    "packed bf16": (packed(topk(0.01), values="bf16"), lambda x: coded(x, 100)),
    "packed int8": (packed(topk(0.01), values="int8"), lambda x: coded(x, 54)),
    "packed threshold": (packed(threshold(2.0), values="bf16"), None),
    "per layer topk": (per_layer(topk(0.01), LAYERS), lambda x: (30 + 1 + 19 + 1) * 8 + 8),
    "per layer dense": (
        per_layer(topk(0.01), LAYERS, dense_below=100),
        lambda x: (30 + 40 + 19 + 60) * 8 + 8,
    ),
    "per layer packed": (packed(per_layer(topk(0.01), LAYERS, dense_below=100), "bf16"), None),
    "packed per layer": (per_layer(packed(topk(0.01), "int8"), LAYERS, dense_below=100), None),
    "per layer sign": (
        per_layer(sign(), LAYERS, dense_below=50),
        lambda x: 3 * 3 * 4 + (375 + 238 + 8) + 3 * 4 + 3 * 8 + 40 * 4,
    ),
    "per layer randk": (per_layer(randk(0.1), LAYERS), lambda x: 500 * 4 + 4 * 16 + 8 * 4),
    "all layers dense": (per_layer(sign(), LAYERS, dense_below=9999), lambda x: 4 * NUMEL),
}
EXACT = ["topk", "randk", "threshold", "sampled", "packed", "packed plain", "per layer topk",
         "per layer dense", "per layer randk", "all layers dense"]  # fmt: skip
"""Codecs that send elements as they are."""

UNBIASED = ["stochastic fp16", "stochastic bf16", "stochastic int8", "qsgd 2", "qsgd 4", "qsgd 8"]
SIZED_BY_VALUE = ["threshold", "sampled", "packed threshold"]


def whole(name):
    """The codec, and one for vectors of other sizes where it is bound to layers."""
    return not name.startswith(("per layer", "packed per layer", "all layers"))


ANY_SIZE = [name for name in CODECS if whole(name)]
SELECTING = ["topk", "randk", "sampled", "packed", "packed plain", "packed fp16", "packed bf16",
             "packed int8"]  # fmt: skip
"""Codecs that keep a share of the elements, of which an empty vector has none."""


def once(codec, x):
    return codec.decode(codec.encode(x, codec.init(x)))


def travelled(packet):
    return Packet.from_frames([bytearray(frame) for frame in packet.frames()])


@pytest.mark.parametrize("name", CODECS)
def test_a_packet_that_travelled_decodes_to_the_same_vector(name):
    codec, x = CODECS[name][0], vector()
    packet = codec.encode(x, codec.init(x))
    decoded = codec.decode(packet)
    assert decoded.shape == (NUMEL,)
    assert decoded.dtype == torch.float32
    assert torch.equal(codec.decode(travelled(packet)), decoded)
    assert decoded.any()


@pytest.mark.parametrize("name", EXACT)
def test_what_is_sent_by_codecs_of_elements_is_what_they_were(name):
    x = vector()
    decoded = once(CODECS[name][0], x)
    sent = decoded != 0
    assert torch.equal(decoded[sent], x[sent])


@pytest.mark.parametrize("name", CODECS)
def test_sent_and_remembered_add_up_to_what_came_in(name):
    codec = feedback(CODECS[name][0])
    state = codec.init(vector())
    for step in range(4):
        before, x = state.memory.clone(), vector(step)
        decoded = codec.decode(codec.encode(x, state))
        if name in EXACT:
            assert torch.equal(decoded + state.memory, before + x)
        else:
            rounding = 4e-7 * float(decoded.abs().max() + state.memory.abs().max())
            torch.testing.assert_close(decoded + state.memory, before + x, rtol=0, atol=rounding)


@pytest.mark.parametrize("name", ["per layer randk", "sampled", "cast int8", "packed int8", "sign"])
def test_with_feedback_what_was_sent_in_the_end_is_what_came_in(name):
    codec = feedback(CODECS[name][0])
    x = vector()
    state, sent, steps = codec.init(x), torch.zeros(NUMEL), 200
    for _ in range(steps):
        sent += codec.decode(codec.encode(x, state))
    # The memory stays bounded, so that the mean of what was sent goes to x.
    assert ((sent / steps - x).norm() / x.norm()) < 0.5


@pytest.mark.parametrize("name", [n for n in CODECS if CODECS[n][1] is not None])
def test_a_packet_has_exactly_the_bytes_that_are_documented(name):
    codec, nbytes = CODECS[name]
    for step in range(3):
        x = vector(step)
        assert codec.encode(x, codec.init(x)).payload_nbytes == nbytes(x)


@pytest.mark.parametrize("name", [n for n in CODECS if n not in SIZED_BY_VALUE])
def test_a_meta_packet_has_the_size_of_a_real_one(name):
    codec, x = CODECS[name][0], vector()
    real = codec.encode(x, codec.init(x))
    nominal = torch.empty(NUMEL, device="meta")
    meta = codec.encode(nominal, codec.init(nominal))
    assert meta.is_meta
    # Codes of indices depend on the indices; what they are expected to occupy stands for them.
    coded_indices = name.startswith("packed") or name == "per layer packed"
    assert abs(meta.nbytes - real.nbytes) <= (0.3 * real.nbytes if coded_indices else 0)
    assert codec.decode(meta).shape == (NUMEL,)
    assert codec.decode(meta).is_meta


@pytest.mark.parametrize("name", ANY_SIZE)
def test_an_empty_vector_gives_an_empty_one_or_is_refused(name):
    codec, x = CODECS[name][0], torch.empty(0)
    if name in SELECTING:
        with pytest.raises(InputError, match="no elements"):
            once(codec, x)
    else:
        assert once(codec, x).shape == (0,)


@pytest.mark.parametrize("name", ANY_SIZE)
@pytest.mark.parametrize("value", [0.0, 1.5, -3.0])
def test_one_element_comes_back_to_a_level(name, value):
    decoded = once(CODECS[name][0], torch.tensor([value]))
    # 1.5 and -3 are levels of every codec for a vector of that one element.
    expected = 0.0 if "threshold" in name and abs(value) < 2 else value
    torch.testing.assert_close(decoded, torch.tensor([expected]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("value", [0.0, 2.5])
def test_a_vector_of_equal_elements_comes_back_in_part_or_whole(name, value):
    x = torch.full((NUMEL,), value)
    decoded = once(CODECS[name][0], x)
    assert torch.isfinite(decoded).all()
    if value == 0:
        assert not decoded.any()
    elif name in EXACT:
        assert set(decoded.tolist()) <= {0.0, value}
    if value and name in ("topk", "packed", "packed bf16"):
        assert decoded.nonzero().view(-1).tolist() == list(range(50))


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_bad_element_is_refused_and_no_state_changes(name, bad):
    codec = CODECS[name][0]
    state, x = codec.init(vector()), vector()
    codec.encode(x, state)
    before = repr(state)
    x = vector(1)
    x[4990] = bad
    with pytest.raises(NonFiniteError, match="element 4990 of the vector"):
        codec.encode(x, state)
    assert repr(state) == before


@pytest.mark.parametrize("name", CODECS)
def test_the_input_is_left_alone_and_its_shape_counts_as_flat(name):
    codec, x = CODECS[name][0], vector()
    before = x.clone()
    flat = once(codec, x)
    assert torch.equal(once(codec, x.view(50, 100)), flat)
    assert torch.equal(x, before)


@pytest.mark.parametrize("name", CODECS)
def test_equal_states_give_equal_packets(name):
    codec, x = CODECS[name][0], vector()
    first, second = (codec.encode(x, codec.init(x)).frames() for _ in range(2))
    assert [bytes(a) for a in first] == [bytes(b) for b in second]


@pytest.mark.parametrize("name", UNBIASED)
def test_codecs_that_say_so_are_unbiased(name):
    codec, x = CODECS[name][0], vector(numel=64)
    assert not codec.traits.biased
    state, steps = codec.init(x), 400
    draws = torch.stack([codec.decode(codec.encode(x, state)) for _ in range(steps)])
    # Of the largest spread: an element near a level may never have been drawn away from it.
    assert ((draws.mean(0) - x).abs() <= 5 * draws.std(0).max() / math.sqrt(steps)).all()


@pytest.mark.parametrize("name", [n for n in CODECS if CODECS[n][0].traits.linear])
def test_packets_of_linear_codecs_may_be_added_on_the_way(name):
    codec, a, b = CODECS[name][0], vector(1), vector(2)
    one, other = (codec.encode(x, codec.init(x)) for x in (a, b))
    summed = Packet((one.buffers[0] + other.buffers[0], *one.buffers[1:]), one.kind)
    torch.testing.assert_close(codec.decode(summed), once(codec, a + b))


@pytest.mark.parametrize("name", CODECS)
def test_a_codec_holds_settings_that_cannot_be_changed(name):
    codec = CODECS[name][0]
    field = next(iter(codec.__dataclass_fields__), None)
    if field is not None:
        with pytest.raises(AttributeError):
            setattr(codec, field, 1)


@pytest.mark.parametrize("density", [0, -1, 100, 1.01, math.nan, math.inf])
@pytest.mark.parametrize("make", [topk, randk, sampled_threshold])
def test_a_density_is_the_share_kept_and_nothing_else_is_taken_for_one(make, density):
    with pytest.raises(InputError, match=r"density = .*; it must be above 0 and at most 1"):
        make(density)


@pytest.mark.parametrize("numel", [1, 7, 1000, 10**6])
@pytest.mark.parametrize("density", [0.001, 0.01, 0.3, 1])
def test_the_number_kept_follows_one_rule(numel, density):
    k, x = num_kept(density, numel), vector(numel=numel)
    assert k == max(1, math.floor(density * numel))
    for codec in (topk(density), randk(density), packed(topk(density))):
        assert int((once(codec, x) != 0).sum()) == k


@pytest.mark.parametrize("codec", [topk(0.25), sampled_threshold(0.25), threshold(4.0)])
def test_selection_is_by_magnitude_whatever_the_sign(codec):
    assert once(codec, torch.tensor([-5.0, 1.0, 2.0, 0.5])).tolist() == [-5, 0, 0, 0]


BAD_SETTINGS = [
    (lambda: cast("fp8"), r"form = 'fp8'; valid: fp16, bf16, int8"),
    (lambda: stochastic_cast("fp32"), "form = 'fp32'"),
    (lambda: stochastic_cast("int8", seed=-1), "seed = -1"),
    (lambda: threshold(0), "magnitude = 0; valid: 1.18e-38 to 3.4e"),
    (lambda: threshold(1e-50), "magnitude = 1e-50"),
    (lambda: threshold(-2.0), "magnitude = -2.0"),
    (lambda: threshold(math.nan), "magnitude = nan"),
    (lambda: threshold(math.inf), "magnitude = inf"),
    (lambda: sampled_threshold(0.1, sample=0), "sample = 0"),
    (lambda: compress.SampledThreshold(density=0.1, tolerance=2), "tolerance = 2"),
    (lambda: qsgd(bits=3), "bits = 3; valid: 2, 4, 8"),
    (lambda: qsgd(bucket=0), "bucket = 0"),
    (lambda: randk(0.1, seed=-1), "seed = -1"),
    (lambda: packed(topk(0.1), values="fp64"), "values = 'fp64'; valid: fp32, fp16, bf16, int8"),
    (lambda: packed(topk(0.1), indices="huffman"), "indices = 'huffman'; valid: coded, plain"),
    (lambda: per_layer(topk(0.1), []), "sizes = "),
    (lambda: per_layer(topk(0.1), [3, 0]), "at least one element"),
    (lambda: per_layer(topk(0.1), [3], dense_below=-1), "dense_below = -1"),
]


@pytest.mark.parametrize(("make", "message"), BAD_SETTINGS)
def test_settings_outside_their_range_are_refused_at_once(make, message):
    with pytest.raises(InputError, match=message):
        make()


@dataclass(frozen=True, kw_only=True)
class EveryNth(Codec):
    """A user's codec of two settings in ten lines."""

    n: int
    offset: int = 0
    traits = Traits(linear=True, biased=True, shared_support=True)

    def init(self, like):
        return None

    def encode(self, x, state):
        return Packet.of(x.view(-1)[self.offset :: self.n], torch.tensor([x.numel()]))

    def decode(self, packet):
        out = torch.zeros(int(packet.buffers[1]))
        out[self.offset :: self.n] = packet.buffers[0]
        return out


@pytest.mark.parametrize(
    "codec",
    [
        EveryNth(n=4, offset=1),
        feedback(EveryNth(n=4)),
        per_layer(EveryNth(n=4), LAYERS, dense_below=50),
        feedback(per_layer(EveryNth(n=4), LAYERS)),
    ],
)
def test_a_codec_of_ten_lines_can_be_used_wherever_ours_can(codec):
    x = vector()
    state = codec.init(x)
    packet = travelled(codec.encode(x, state))
    decoded = codec.decode(packet)
    assert torch.equal(decoded[decoded != 0], x[decoded != 0])
    if isinstance(codec, compress.Feedback):
        assert torch.equal(decoded + state.memory, x)


def test_what_is_no_selection_cannot_be_packed():
    for codec in (sign(), randk(0.1), EveryNth(n=4)):
        with pytest.raises(InputError, match="does not hold indices, values and a size"):
            once(packed(codec), vector())


def test_the_page_names_every_codec_and_no_other():
    page = (Path(__file__).parents[2] / "docs/codecs.md").read_text()
    named = set(re.findall(r"^\| `(\w+)\(", page, flags=re.MULTILINE))
    functions = {
        name
        for name in compress.__all__
        if inspect.isfunction(value := getattr(compress, name))
        and isinstance(value.__annotations__.get("return"), str)
        and isinstance(kind := getattr(compress, value.__annotations__["return"], None), type)
        and issubclass(kind, Codec)
    }
    assert named == functions
