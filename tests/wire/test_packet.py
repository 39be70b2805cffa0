import warnings

import pytest
import torch

from thinwire.errors import InputError
from thinwire.wire.packet import DTYPES, KINDS, Packet, header_nbytes


def wire_bytes(packet):
    return b"".join(bytes(frame) for frame in packet.frames())


def writable(frames):
    return [bytes(frames[0]), *(bytearray(frame) for frame in frames[1:])]


def test_the_layout_of_a_packet_never_changes():
    packet = Packet(
        (torch.tensor([1, -1], dtype=torch.int32), torch.tensor([0.5, -2.0])),
        kind="sparse",
        step=258,
        layer=3,
    )
    assert wire_bytes(packet).hex() == (
        "7477"  # magic
        "01"  # version
        "01"  # kind sparse
        "02010000"  # step
        "03000000"  # layer
        "02000000"  # buffers
        "0700020000000000"  # int32, 2 elements
        "0000020000000000"  # float32, 2 elements
        "01000000ffffffff"
        "0000003f000000c0"
    )


def test_the_layout_of_an_empty_packet_never_changes():
    assert wire_bytes(Packet(())).hex() == "7477010500000000ffffffff00000000"


def test_the_codes_of_kinds_and_dtypes_never_change():
    assert KINDS == {
        "dense": 0,
        "sparse": 1,
        "control": 2,
        "model": 3,
        "gradient": 4,
        "user": 5,
    }
    assert [str(dtype).removeprefix("torch.") for dtype in DTYPES] == [
        "float32",
        "float64",
        "float16",
        "bfloat16",
        "int8",
        "uint8",
        "int16",
        "int32",
        "int64",
        "bool",
    ]
    assert list(DTYPES.values()) == list(range(10))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [0, 1, 7])
def test_every_dtype_comes_back_bit_for_bit(dtype, count):
    buffer = torch.arange(count).to(dtype)
    packet = Packet((buffer,), kind="dense", step=5, layer=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        back = Packet.from_frames(writable(packet.frames()))
    assert back.buffers[0].dtype is dtype
    assert torch.equal(back.buffers[0], buffer)
    assert (back.kind, back.step, back.layer) == ("dense", 5, 2)


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(3, requires_grad=True), torch.arange(8.0)[::2]],
    ids=["parameter", "strided"],
)
def test_a_buffer_that_is_not_plain_memory_still_travels(tensor):
    back = Packet.from_frames(writable(Packet((tensor,)).frames()))
    assert torch.equal(back.buffers[0], tensor.detach())


def test_nbytes_is_what_the_frames_occupy():
    packet = Packet((torch.zeros(5), torch.zeros(3, dtype=torch.int64), torch.zeros(0)))
    assert packet.nbytes == len(wire_bytes(packet)) == header_nbytes(3) + 44
    assert packet.payload_nbytes == 44


def test_counts_beyond_32_bits_are_declared():
    count = 2**32 + 5
    header = Packet((torch.empty(count, dtype=torch.int8, device="meta"),)).header()
    assert header[16:].hex() == "0400050000000100"
    frame = bytearray(4)
    with pytest.raises(InputError, match=rf"4 bytes came, {count} of torch.int8"):
        Packet.from_frames([header, frame])


def test_frames_of_large_buffers_share_memory_with_them():
    buffer = torch.zeros(10_000)
    frame = Packet((buffer,)).frames()[1]
    buffer[0] = 1.0
    assert bytes(frame[:4]).hex() == "0000803f"


def test_of_copies_so_that_the_caller_may_go_on_writing():
    buffer = torch.zeros(4)
    packet = Packet.of(buffer)
    buffer[0] = 1.0
    assert packet.buffers[0][0] == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: [b"HTTP/1.1 400 Bad", *f[1:]], "not a thinwire packet: it begins 48545450"),
        (lambda f: [f[0][:10], *f[1:]], "not a thinwire packet"),
        (lambda f: [f[0][:2] + b"\x02" + f[0][3:], *f[1:]], "version 2, this side reads 1"),
        (lambda f: [f[0][:-8], *f[1:]], "a packet of 1 buffers came with a header of 16 bytes"),
        (lambda f: f[:1], "and 0 buffers"),
        (lambda f: [f[0], f[1][:-1]], "11 bytes came, 3 of torch.float32 were declared"),
        (lambda f: [f[0][:3] + b"\x63" + f[0][4:], f[1]], "kind code 99 is unknown"),
        (lambda f: [f[0][:16] + b"\x63" + f[0][17:], f[1]], "dtype code 99 is unknown"),
    ],
)
def test_a_foreign_or_damaged_packet_is_refused_by_name(change, message):
    frames = writable(Packet((torch.zeros(3),)).frames())
    with pytest.raises(InputError, match=message):
        Packet.from_frames(change(frames))


def test_unknown_kinds_and_dtypes_are_refused():
    with pytest.raises(InputError, match=r"kind = 'dence'; valid: dense"):
        Packet((), kind="dence").header()
    with pytest.raises(InputError, match="complex64 cannot travel"):
        Packet((torch.zeros(1, dtype=torch.complex64),)).header()
