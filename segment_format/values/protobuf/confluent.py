"""Protobuf values in Confluent's wire format.

Byte 0 and the id of the writer's schema (4 bytes, big-endian, above 0), or byte 1 and its GUID (16
bytes); then the message index (`message_index`); the message follows. These are the head of a
value. Most values of a batch have the same one: heads are compared as bytes, and only new ones are
looked into.

The message index that Confluent's serializers put before a message: which one of its file it is.

Zigzag varints: a count, then an index among the file's messages, among those nested in that, and
so on; a lone 0 means the first message. It stands behind the magic byte and the schema's id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from segment_format.kernels.compiled import kernel
from segment_format.kernels.primitives import load_i64_native, load_u8, load_u32_native, store_i32
from segment_format.values.confluent_header import GUID_HEADER, read_header
from segment_format.values.protobuf.schema import read_varint

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from segment_format.kernels.compiled import Address, Value
    from segment_format.values.decoded import DecodedValues
    from segment_format.values.protobuf.decoder import ProtobufDecoder


MOST_INDEXES: Final = 100
FIRST: Final = (0,)


def read_message_index(data: bytes, at: int = 0) -> tuple[tuple[int, ...], int]:
    """The path to a message type, and where the message begins.

    Args:
        data: A value.
        at: Where in it the index begins.

    Raises:
        ValueError: There is no index.
    """
    count, at = _read_zigzag(data, at)
    if count == 0:
        return FIRST, at
    if not 0 < count <= MOST_INDEXES:
        raise ValueError(f"a message index of {count} numbers")
    path = []
    for _ in range(count):
        index, at = _read_zigzag(data, at)
        if index < 0:
            raise ValueError(f"message index {index}")
        path.append(index)
    return tuple(path), at


def _read_zigzag(data: bytes, at: int) -> tuple[int, int]:
    raw, at = read_varint(data, at)
    return raw >> 1 ^ -(raw & 1), at


_MOST_HEADS: Final = 64
"""Heads that values are compared with; those of more are looked into one by one."""
_LONGEST_HEAD: Final = GUID_HEADER + 10 * (MOST_INDEXES + 1)


@dataclass(frozen=True, slots=True)
class _Head:
    """What stands before a message.

    Attributes:
        data: Its bytes.
        refused: Why the message cannot be read; None if it can.
    """

    data: bytes
    refused: str | None


class ConfluentProtobufDecoder:
    """Decodes values that each name their writer's schema by its id, or its GUID.

    Fields go by their numbers, so the writer's schema only says which message a value is.

    Args:
        decoder: Of the message wanted.
        message_of: Gives the full name of a message: of an id, or a GUID as text, and a message
            index. Raises LookupError with the reason where there is none: then the values of that
            head are bad, and it is called again in the next batch. Without one, the index is taken
            to be of the reader's file, which is right as long as its messages stand as in the
            writers'.
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
            return decoder.decode(values)  # which refuses other types
        valid = np.ones(len(values), np.bool_)
        if values.null_count:
            valid = values.is_valid().to_numpy(zero_copy_only=False)
        heads = list(self._known)
        while True:
            starts, which = _match(values, heads)
            left = np.flatnonzero((which < 0) & valid)
            if not len(left) or len(heads) >= _MOST_HEADS:
                break
            found = self._first_head(values, left)
            if found is None:
                break
            heads.append(found)
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
        """The head of the first of the rows that has one."""
        for row in rows.tolist():
            head = self._head(values, row)
            if head.data:
                return head
        return None

    def _head(self, values: pa.Array, row: int) -> _Head:
        """The head of a value; without bytes if it has none."""
        _, ends, data = values.buffers()
        start, stop = np.frombuffer(ends, np.int32, 2, 4 * (values.offset + row)).tolist()
        value = b""
        if stop > start:
            value = data.slice(start, min(stop - start, _LONGEST_HEAD)).to_pybytes()
        try:
            schema_id, size = read_header(value)
        except ValueError as error:
            return _Head(b"", str(error))
        try:
            path, size = read_message_index(value, size)
        except ValueError as error:
            return _Head(b"", f"no message index behind the schema id: {error}")
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
    """Of each value: where its message begins, and which head it has; −1 where it has none."""
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
    """Sets start and head of each value that has one of them; no head begins another one.

    Args:
        ends: int32: where each value begins, and where the last ends.
        rows: How many there are.
        data: Their bytes.
        heads: The bytes of all heads.
        bounds: int64: where each head begins, and where the last ends.
        count: How many there are.
        starts: int32 of each value.
        which: int32 of each value.
    """
    last = np.int64(0)
    for row in range(rows):
        at = np.int64(load_u32_native(ends + np.uint64(4 * row)))
        size = np.int64(load_u32_native(ends + np.uint64(4 * (row + 1)))) - at
        for turn in range(count):  # the one that the value before has comes first
            each = last + turn
            if each >= count:
                each -= count
            first = load_i64_native(bounds + np.uint64(8 * each))
            length = load_i64_native(bounds + np.uint64(8 * (each + 1))) - first
            if length <= size:
                same = np.int64(0)
                while same < length and load_u8(data + np.uint64(at + same)) == load_u8(
                    heads + np.uint64(first + same)
                ):
                    same += 1
                if same == length:
                    store_i32(starts + np.uint64(4 * row), length)
                    store_i32(which + np.uint64(4 * row), each)
                    last = each
                    break
    return last
