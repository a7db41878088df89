"""Protobuf values in Confluent's wire format.

A value starts with a head: Confluent's header (see `registry_framing`), then the message index,
which is the path to the message type in its file as zigzag varints: a count, then an index into the
file's messages, then into those nested in that message, and so on. A lone 0 means the first
message. Most values of a batch have the same head: heads are compared as bytes, and only new ones
are parsed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from segment_format.kernels.compiled import kernel
from segment_format.kernels.primitives import load_i64_native, load_u8, load_u32_native, store_i32
from segment_format.values.protobuf.schema import read_varint
from segment_format.values.registry_framing import CONFLUENT_GUID_HEADER, read_confluent_header

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from segment_format.kernels.compiled import Address, Value
    from segment_format.values.decoded import DecodedValues
    from segment_format.values.protobuf.decoder import ProtobufDecoder


MAX_INDEXES: Final = 100
FIRST: Final = (0,)


def read_message_index(data: bytes, position: int = 0) -> tuple[tuple[int, ...], int]:
    """Returns the path to a message type, and the position of the message.

    Args:
        data: A value.
        position: Position of the index.

    Raises:
        ValueError: The index is invalid.
    """
    count, position = _read_zigzag(data, position)
    if count == 0:
        return FIRST, position
    if not 0 < count <= MAX_INDEXES:
        raise ValueError(f"a message index has {count} numbers; 1 to {MAX_INDEXES} are valid")
    path = []
    for _ in range(count):
        index, position = _read_zigzag(data, position)
        if index < 0:
            raise ValueError(f"a message index has the negative number {index}")
        path.append(index)
    return tuple(path), position


def _read_zigzag(data: bytes, position: int) -> tuple[int, int]:
    raw, position = read_varint(data, position)
    return raw >> 1 ^ -(raw & 1), position


_MAX_HEADS: Final = 64
"""Heads that values are compared with; further ones are parsed value by value."""
_MAX_HEAD_SIZE: Final = CONFLUENT_GUID_HEADER + 10 * (MAX_INDEXES + 1)


@dataclass(frozen=True, slots=True)
class _Head:
    """The bytes in front of a message.

    Attributes:
        data: The bytes; empty if the head is invalid.
        refused: Why the message cannot be read; `None` if it can.
    """

    data: bytes
    refused: str | None


class ConfluentProtobufDecoder:
    """Decodes values that each name their writer's schema by its id, or its GUID.

    Fields are identified by numbers, so the writer's schema only determines the message type.

    Args:
        decoder: Decoder of the expected message type.
        message_of: Returns the full name of the message type for an id, or a GUID as text, and a
            message index. If it raises LookupError, the values with that head are bad, with the
            error's text as reason, and the next batch calls it again. Without the function, the
            index is looked up in the reader's file, which is right as long as writers have the same
            messages in the same order.
    """

    def __init__(
        self,
        decoder: ProtobufDecoder,
        message_of: Callable[[int | str, tuple[int, ...]], str] | None = None,
    ) -> None:
        self._decoder = decoder
        self._message_of = message_of
        self._known: tuple[_Head, ...] = ()

    @property
    def type(self) -> pa.DataType:
        """See `ValueDecoder.type`."""
        return self._decoder.type

    def decode(self, values: pa.Array) -> DecodedValues:
        """See `ValueDecoder.decode`.

        Raises:
            TypeError: Not a `pa.binary()` array.
        """
        decoder = self._decoder
        if not len(values) or values.type != pa.binary():
            return decoder.decode(values)  # rejects other types
        valid = np.ones(len(values), np.bool_)
        if values.null_count:
            valid = values.is_valid().to_numpy(zero_copy_only=False)
        heads = list(self._known)
        while True:
            starts, which = _match(values, heads)
            left = np.flatnonzero((which < 0) & valid)
            if not len(left) or len(heads) >= _MAX_HEADS:
                break
            head = self._first_head(values, left)
            if head is None:
                break
            heads.append(head)
        self._known = tuple(head for head in heads if head.refused is None)
        reasons: dict[int, str] = {}
        for row in left.tolist():
            head = self._head(values, row)
            if head.refused is None:
                starts[row] = len(head.data)
            else:
                reasons[row] = head.refused
        for index, head in enumerate(heads):
            if head.refused is not None:
                rows = np.flatnonzero((which == index) & valid)
                starts[rows] = -1
                reasons |= dict.fromkeys(rows.tolist(), head.refused)
        return decoder.decode_from(values, starts, reasons)

    def _first_head(self, values: pa.Array, rows: NDArray[np.intp]) -> _Head | None:
        """Returns the head of the first row that has one."""
        for row in rows.tolist():
            head = self._head(values, row)
            if head.data:
                return head
        return None

    def _head(self, values: pa.Array, row: int) -> _Head:
        """Returns the head of a value."""
        _, ends, data = values.buffers()
        start, stop = np.frombuffer(ends, np.int32, 2, 4 * (values.offset + row)).tolist()
        value = b""
        if stop > start:
            value = data.slice(start, min(stop - start, _MAX_HEAD_SIZE)).to_pybytes()
        try:
            schema_id, size = read_confluent_header(value)
        except ValueError as error:
            return _Head(b"", str(error))
        try:
            path, size = read_message_index(value, size)
        except ValueError as error:
            return _Head(b"", f"no message index after the schema id: {error}")
        return _Head(value[:size], self._refused(schema_id, path))

    def _refused(self, schema_id: int | str, path: tuple[int, ...]) -> str | None:
        decoder = self._decoder
        if self._message_of is None:
            if path == decoder.message_index:
                return None
            return f"message index {list(path)}, not {list(decoder.message_index)}"
        try:
            name = self._message_of(schema_id, path)
        except LookupError as error:
            return f"schema {schema_id}: {error.args[0] if error.args else type(error).__name__}"
        if name == decoder.message:
            return None
        return f"schema {schema_id}: message {name}, not {decoder.message}"


def _match(values: pa.Array, heads: list[_Head]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Returns the start of each message, and the index of its head; -1 without one."""
    starts = np.full(len(values), -1, np.int32)
    which = np.full(len(values), -1, np.int32)
    if heads:
        _, ends, data = values.buffers()
        text = np.frombuffer(b"".join(head.data for head in heads), np.uint8)
        bounds = np.cumsum([0, *(len(head.data) for head in heads)], dtype=np.int64)
        match_heads(
            *(ends.address + 4 * values.offset, len(values), data.address if data else 0),
            *(text.ctypes.data, bounds.ctypes.data, len(heads)),
            *(starts.ctypes.data, which.ctypes.data),
        )
    return starts, which


@kernel("int64(uint64, int64, uint64, uint64, uint64, int64, uint64, uint64)")
def match_heads(
    ends: Address,
    rows: Value,
    data: Address,
    heads: Address,
    bounds: Address,
    count: Value,
    starts: Address,
    which: Address,
) -> Value:
    """Sets start and head of each value with a known head; no head is a prefix of another.

    Args:
        ends: int32: start of each value, then the end of the last.
        rows: Number of values.
        data: Bytes of the values.
        heads: Bytes of all heads.
        bounds: int64: start of each head, then the end of the last.
        count: Number of heads.
        starts: int32 of each value.
        which: int32 of each value.
    """
    last = np.int64(0)
    for row in range(rows):
        position = np.int64(load_u32_native(ends + np.uint64(4 * row)))
        size = np.int64(load_u32_native(ends + np.uint64(4 * (row + 1)))) - position
        for turn in range(count):  # starts with the head of the value before
            each = last + turn
            if each >= count:
                each -= count
            first = load_i64_native(bounds + np.uint64(8 * each))
            length = load_i64_native(bounds + np.uint64(8 * (each + 1))) - first
            if length <= size:
                same = np.int64(0)
                while same < length and load_u8(data + np.uint64(position + same)) == load_u8(
                    heads + np.uint64(first + same)
                ):
                    same += 1
                if same == length:
                    store_i32(starts + np.uint64(4 * row), length)
                    store_i32(which + np.uint64(4 * row), each)
                    last = each
                    break
    return last
