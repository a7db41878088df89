"""Decodes Protobuf values in Confluent's wire format.

A value starts with a *head*, which consists of Confluent's header (see `registry_framing`) and the
message index. The message index states which message type of the schema's file the value has. It
consists of zigzag varints: the number of indices, an index into the messages of the file, an index
into the messages nested in that message, and so on. A count of 0 without indices means the first
message of the file.

Most values of a batch have the same head. So the bytes of heads are compared, and each distinct
head is parsed only once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from segment_format.kernels.native import load_kernel
from segment_format.values.protobuf.schema import read_varint
from segment_format.values.registry_framing import CONFLUENT_GUID_HEADER, read_confluent_header

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from segment_format.values.decoded import DecodedValues
    from segment_format.values.protobuf.decoder import ProtobufDecoder


MAX_INDEXES: Final = 100
FIRST: Final = (0,)


def read_message_index(data: bytes, position: int = 0) -> tuple[tuple[int, ...], int]:
    """Parses the message index at `position` in the value `data`. Returns two values: the indices,
    which are the path to the message type in its file, and the position of the message, which
    follows the message index.

    Raises:
        ValueError: The message index is invalid.
    """
    count, position = _read_zigzag(data, position)
    if count == 0:
        return FIRST, position
    if not 0 < count <= MAX_INDEXES:
        raise ValueError(f"a message index has {count} numbers, but must have 1 to {MAX_INDEXES}")
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
"""Maximum number of distinct heads of a batch that are parsed once. The heads of other values are
parsed one by one.
"""
_MAX_HEAD_SIZE: Final = CONFLUENT_GUID_HEADER + 10 * (MAX_INDEXES + 1)


@dataclass(frozen=True, slots=True)
class _Head:
    """The bytes of a value before its message.

    Attributes:
        data: Bytes of the head; empty if the head is invalid.
        refused: Reason why values with this head are bad; `None` if they can be decoded.
    """

    data: bytes
    refused: str | None


class ConfluentProtobufDecoder:
    """Decodes values whose header states the id or GUID of the writer's schema.

    The writer's schema only determines the message type, because Protobuf identifies fields by
    numbers.

    Args:
        decoder: Decoder of the expected message type. Values of other message types are bad.
        message_of: Function that returns the full name of a message type for a schema id (or a GUID
            as text) and a message index. If it raises LookupError, all values with this head in the
            batch are bad, and the text of the error is their reason; the next batch calls the
            function again. If `message_of` is `None`, the message index is looked up in the file of
            `decoder`, which is correct only if the writers' files contain the same messages in the
            same order.
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
            TypeError: `values` is not a `pa.binary()` array.
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
        """Parses the values in `rows` up to the first one with a valid head. Returns this head;
        `None` if no value has a valid head.
        """
        for row in rows.tolist():
            head = self._head(values, row)
            if head.data:
                return head
        return None

    def _head(self, values: pa.Array, row: int) -> _Head:
        """Parses the head of the value in row `row`, and returns it."""
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
    """Compares the start of each value with the heads. Returns two arrays with one entry per value:
    the position of the message, and the index of the value's head in `heads`. Both are -1 if the
    value has none of these heads.
    """
    starts = np.full(len(values), -1, np.int32)
    which = np.full(len(values), -1, np.int32)
    if heads:
        _, ends, data = values.buffers()
        text = np.frombuffer(b"".join(head.data for head in heads), np.uint8)
        bounds = np.cumsum([0, *(len(head.data) for head in heads)], dtype=np.int64)
        load_kernel("match_heads")(
            *(ends.address + 4 * values.offset, len(values), data.address if data else 0),
            *(text.ctypes.data, bounds.ctypes.data, len(heads)),
            *(starts.ctypes.data, which.ctypes.data),
        )
    return starts, which
