"""The one thing that travels: a declared header and typed buffers.

Byte layout, version 1, little endian::

    offset  size  field
    0       2     magic, "tw"
    2       1     version of the layout, 1
    3       1     kind (the table KINDS)
    4       4     step, unsigned
    8       4     layer, signed; -1 is the whole model
    12      1     number of buffers, 0..255
    13      3     zero
    16      8·n   a buffer each: dtype code (1), zero (1), elements (6, unsigned)
    16+8n   …     the buffers one after the other, without padding

Indices and values never share a buffer: a float32 holds no index above 2^24. `Packet.nbytes` is
what the header and the buffers occupy; it is the only count of traffic in the library, the same on
the virtual and on the real wire. The tag and the framing of the transport are not in it.

A packet belongs to the wire from `post` on: neither side may write into its buffers any more.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence

import msgspec
import torch

from thinwire.errors import InputError

__all__ = ["DTYPES", "KINDS", "SMALL_HEAD", "Packet", "header_nbytes"]

MAGIC = b"tw"
VERSION = 1
_HEAD = struct.Struct("<2sBBIiB3x")
_COPY = 16 * 1024  # below this a copy costs less than a view
_BUFFER = struct.Struct("<BxIH")  # elements as 32 low bits, then 16 high bits
_WHOLE = struct.Struct("<2sBBIiB3xBxIH")  # the header of one buffer, the usual number
_SIZED = struct.Struct("<Q" + _WHOLE.format[1:])  # the same after its buffer's length

SMALL_HEAD = _SIZED.size
"""Bytes before the buffer in what `Packet.small` gives."""

# The codes are part of the layout: append, never renumber.
KINDS = {"dense": 0, "sparse": 1, "control": 2, "model": 3, "gradient": 4, "user": 5}
DTYPES = {
    torch.float32: 0,
    torch.float64: 1,
    torch.float16: 2,
    torch.bfloat16: 3,
    torch.int8: 4,
    torch.uint8: 5,
    torch.int16: 6,
    torch.int32: 7,
    torch.int64: 8,
    torch.bool: 9,
}
_KIND_NAMES = {code: name for name, code in KINDS.items()}
_DTYPE_OF = {code: dtype for dtype, code in DTYPES.items()}


def header_nbytes(num_buffers: int) -> int:
    """Bytes of the header of a packet with this many buffers.

    >>> header_nbytes(2)
    32
    """
    return _HEAD.size + _BUFFER.size * num_buffers


class Packet(msgspec.Struct, frozen=True, eq=False):
    """Typed buffers under a declared header.

    Args:
        buffers: 1-D contiguous tensors of any dtype in `DTYPES`; meta tensors stand for their
            size in timing-only runs and never reach a real wire.
        kind: a name in `KINDS`.
        step: where the sender is, 0..2^32-1.
        layer: index into the layer table, or -1 for the whole model.
    """

    buffers: tuple[torch.Tensor, ...]
    kind: str = "user"
    step: int = 0
    layer: int = -1
    _nbytes: int = -1  # once asked for

    @staticmethod
    def of(*tensors: torch.Tensor, kind: str = "user", step: int = 0, layer: int = -1) -> Packet:
        """A packet of private copies, so that the caller may go on writing into its tensors."""
        flat = tuple(t.detach().reshape(-1).clone() for t in tensors)
        return Packet(flat, kind, step, layer)

    @property
    def nbytes(self) -> int:
        """Bytes of the header and the buffers."""
        if self._nbytes < 0:
            total = _HEAD.size + _BUFFER.size * len(self.buffers)
            for buffer in self.buffers:
                total += buffer.numel() * buffer.itemsize
            msgspec.structs.force_setattr(self, "_nbytes", total)  # asked for again on its way
        return self._nbytes

    @property
    def payload_nbytes(self) -> int:
        """Bytes of the buffers alone."""
        return self.nbytes - header_nbytes(len(self.buffers))

    @property
    def is_meta(self) -> bool:
        """Whether the packet stands for its size only."""
        return any(buffer.is_meta for buffer in self.buffers)

    def header(self) -> bytes:
        """The header as it travels."""
        if self.kind not in KINDS:
            raise InputError(f"packet kind = {self.kind!r}; valid: {', '.join(KINDS)}")
        kind, buffers = KINDS[self.kind], self.buffers
        if len(buffers) == 1 and (code := DTYPES.get(buffers[0].dtype)) is not None:
            count = buffers[0].numel()
            low, high = count & 0xFFFFFFFF, count >> 32
            return _WHOLE.pack(MAGIC, VERSION, kind, self.step, self.layer, 1, code, low, high)
        parts = [_HEAD.pack(MAGIC, VERSION, kind, self.step, self.layer, len(buffers))]
        for buffer in buffers:
            if buffer.dtype not in DTYPES:
                raise InputError(f"packet buffer of dtype {buffer.dtype} cannot travel")
            count = buffer.numel()
            parts.append(_BUFFER.pack(DTYPES[buffer.dtype], count & 0xFFFFFFFF, count >> 32))
        return b"".join(parts)

    def small(self, limit: int) -> bytes | None:
        """The one buffer's length in 8 bytes, the header and the buffer in one piece.

        None where there are more buffers, or more bytes than `limit`, or something that `frames`
        must copy or refuse.
        """
        if len(self.buffers) != 1:
            return None
        buffer = self.buffers[0]
        nbytes, code, kind = buffer.nbytes, DTYPES.get(buffer.dtype), KINDS.get(self.kind)
        if nbytes > limit or code is None or kind is None:
            return None
        if not buffer.is_cpu or not buffer.is_contiguous():
            return None
        count = buffer.numel()
        head = _SIZED.pack(nbytes, MAGIC, VERSION, kind, self.step, self.layer, 1, code, count, 0)
        return head + ctypes.string_at(buffer.data_ptr(), nbytes)

    def frames(self) -> list[bytes | memoryview]:
        """Header and buffers as the frames of one message; large CPU buffers are not copied."""
        frames: list[bytes | memoryview] = [self.header()]
        for buffer in self.buffers:
            frames.append(_as_bytes(buffer))
        return frames

    @staticmethod
    def read_small(data: bytearray, start: int, end: int) -> Packet | None:
        """The packet whose `small` begins at `start`, its buffer copied.

        None where not all of it lies before `end`, or where `from_frames` must say what is wrong
        with it.
        """
        nbytes, magic, version, kind, step, layer, num_buffers, code, low, high = (
            _SIZED.unpack_from(data, start)
        )
        begin = start + _SIZED.size
        dtype, name = _DTYPE_OF.get(code), _KIND_NAMES.get(kind)
        if not 0 < nbytes <= end - begin or magic != MAGIC or version != VERSION:
            return None
        if dtype is None or name is None or num_buffers != 1:
            return None
        if nbytes != (low | high << 32) * dtype.itemsize:
            return None
        buffer = torch.frombuffer(data[begin : begin + nbytes], dtype=dtype)
        return Packet((buffer,), name, step, layer, _WHOLE.size + nbytes)

    @staticmethod
    def from_frames(frames: Sequence[bytes | memoryview]) -> Packet:
        """The packet that `frames` gave; buffers are views of the frames, which must be writable
        or never written.

        Raises:
            InputError: frames that are not a packet of this version, naming what differs.
        """
        head = frames[0]
        if len(head) < _HEAD.size or head[:2] != MAGIC:
            raise InputError(f"not a thinwire packet: it begins {bytes(head[:4]).hex()}")
        _, version, kind, step, layer, num_buffers = _HEAD.unpack_from(head)
        if version != VERSION:
            raise InputError(f"packet layout version {version}, this side reads {VERSION}")
        if len(head) != header_nbytes(num_buffers) or len(frames) != 1 + num_buffers:
            raise InputError(
                f"a packet of {num_buffers} buffers came with a header of {len(head)} bytes "
                f"and {len(frames) - 1} buffers"
            )
        buffers = []
        for i in range(num_buffers):
            code, low, high = _BUFFER.unpack_from(head, _HEAD.size + _BUFFER.size * i)
            dtype, count, frame = _DTYPE_OF.get(code), low | high << 32, frames[1 + i]
            if dtype is None:
                raise InputError(f"packet buffer {i}: dtype code {code} is unknown here")
            if len(frame) != count * dtype.itemsize:
                raise InputError(
                    f"packet buffer {i}: {len(frame)} bytes came, {count} of {dtype} were declared"
                )
            buffers.append(
                torch.frombuffer(frame, dtype=dtype) if count else torch.empty(0, dtype=dtype)
            )
        if kind not in _KIND_NAMES:
            raise InputError(f"packet kind code {kind} is unknown here")
        return Packet(tuple(buffers), _KIND_NAMES[kind], step, layer)


def _as_bytes(buffer: torch.Tensor) -> bytes | memoryview:
    nbytes = buffer.numel() * buffer.itemsize
    if buffer.requires_grad or not buffer.is_contiguous() or not buffer.is_cpu:
        if buffer.is_meta:
            raise InputError("a packet of meta tensors has nothing to send")
        buffer = buffer.detach().contiguous().cpu()
    if nbytes <= _COPY:
        return ctypes.string_at(buffer.data_ptr(), nbytes)
    if buffer.dtype is torch.bfloat16:  # unknown to numpy
        buffer = buffer.view(torch.int16)
    return memoryview(buffer.numpy()).cast("B")  # pyright: ignore[reportArgumentType]
