"""How each column of a record batch is made of the buffers that a kernel fills."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from segment_format.kernels import contract as c

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Arrays = Mapping[int, NDArray[Any]]
    Builder = Callable[[Arrays, list[int], int], pa.Array]
    """Arrays by slot, the filled frame, the number of rows -> the column."""

_BINARY: Final = pa.binary()
_STRING: Final = pa.string()
_HEADER: Final = pa.struct([("key", _STRING), ("value", _BINARY)])
_HEADERS: Final = pa.list_(pa.field("element", _HEADER))
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

TYPES: Final[dict[str, pa.DataType]] = {
    "key": _BINARY,
    "value": _BINARY,
    "offset": pa.int64(),
    "timestamp": _TIMESTAMP,
    "timestampType": pa.int32(),
    "headers": _HEADERS,
    "leaderEpoch": pa.int32(),
    "producerId": pa.int64(),
    "producerEpoch": pa.int32(),
    "sequence": pa.int32(),
    "isTransactional": pa.bool_(),
    "batchBaseOffset": pa.int64(),
    "codec": _STRING,
}
"""Column name -> type: those of Spark's Kafka source, then those that say where a record came
from."""

WANTED: Final[dict[str, int]] = {
    "key": c.WANT_KEY,
    "value": c.WANT_VALUE,
    "offset": c.WANT_OFFSET,
    "timestamp": c.WANT_TIMESTAMP,
    "timestampType": c.WANT_TIMESTAMP_TYPE,
    "headers": c.WANT_HEADERS,
    "leaderEpoch": c.WANT_LEADER_EPOCH,
    "producerId": c.WANT_PRODUCER_ID,
    "producerEpoch": c.WANT_PRODUCER_EPOCH,
    "sequence": c.WANT_SEQUENCE,
    "isTransactional": c.WANT_TRANSACTIONAL,
    "batchBaseOffset": c.WANT_BASE_OFFSET,
    "codec": c.WANT_CODEC,
}
"""Column name -> its bit in the frame."""


def _buffer(array: NDArray[Any], count: int) -> pa.Buffer:
    return pa.py_buffer(array[:count])


def _fixed(slot: int, kind: pa.DataType) -> Builder:
    def column(arrays: Arrays, fill: list[int], rows: int) -> pa.Array:
        return pa.Array.from_buffers(kind, rows, [None, _buffer(arrays[slot], rows)], 0)

    return column


def _variable(
    ends: int, data: int, valid: int, size: int, nulls: int, kind: pa.DataType
) -> Builder:
    def column(arrays: Arrays, fill: list[int], rows: int) -> pa.Array:
        null_count = fill[nulls]
        validity = _buffer(arrays[valid], (rows + 7) >> 3) if null_count else None
        ends_buffer = _buffer(arrays[ends], rows + 1)
        data_buffer = _buffer(arrays[data], fill[size])
        return pa.Array.from_buffers(kind, rows, [validity, ends_buffer, data_buffer], null_count)

    return column


_header_values = _variable(
    c.HEADER_VALUE_ENDS,
    c.HEADER_VALUE_BYTES,
    c.HEADER_VALUE_VALID,
    c.HEADER_VALUE_SIZE,
    c.HEADER_VALUE_NULLS,
    _BINARY,
)


def _headers(arrays: Arrays, fill: list[int], rows: int) -> pa.Array:
    count = fill[c.HEADERS]
    keys = pa.Array.from_buffers(
        _STRING,
        count,
        [
            None,
            _buffer(arrays[c.HEADER_KEY_ENDS], count + 1),
            _buffer(arrays[c.HEADER_KEY_BYTES], fill[c.HEADER_KEY_SIZE]),
        ],
        0,
    )
    values = _header_values(arrays, fill, count)
    pairs = pa.Array.from_buffers(_HEADER, count, [None], 0, children=[keys, values])
    ends = _buffer(arrays[c.HEADER_ENDS], rows + 1)
    return pa.Array.from_buffers(_HEADERS, rows, [None, ends], 0, children=[pairs])


def _optional(slot: int) -> Builder:
    def column(arrays: Arrays, fill: list[int], rows: int) -> pa.Array:
        values = arrays[slot][:rows]
        return pa.array(values, mask=values < 0)

    return column


def _is_transactional(arrays: Arrays, fill: list[int], rows: int) -> pa.Array:
    return pa.array(arrays[c.TRANSACTIONALS][:rows].astype(np.bool_))


@functools.cache
def _codec_names() -> pa.Array:
    # Not at import time: pa.array imports pandas where it is installed, a third of a second.
    return pa.array(["none", "gzip", "snappy", "lz4", "zstd"], pa.string())


def _codec(arrays: Arrays, fill: list[int], rows: int) -> pa.Array:
    return _codec_names().take(pa.array(arrays[c.CODECS][:rows]))


COLUMNS: Final[dict[str, Builder]] = {
    "key": _variable(c.KEY_ENDS, c.KEY_BYTES, c.KEY_VALID, c.KEY_SIZE, c.KEY_NULLS, _BINARY),
    "value": _variable(
        c.VALUE_ENDS, c.VALUE_BYTES, c.VALUE_VALID, c.VALUE_SIZE, c.VALUE_NULLS, _BINARY
    ),
    "offset": _fixed(c.OFFSETS, pa.int64()),
    "timestamp": _fixed(c.TIMESTAMPS, _TIMESTAMP),
    "timestampType": _fixed(c.TIMESTAMP_TYPES, pa.int32()),
    "headers": _headers,
    "leaderEpoch": _optional(c.LEADER_EPOCHS),
    "producerId": _optional(c.PRODUCER_IDS),
    "producerEpoch": _optional(c.PRODUCER_EPOCHS),
    "sequence": _optional(c.SEQUENCES),
    "isTransactional": _is_transactional,
    "batchBaseOffset": _fixed(c.BASE_OFFSETS, pa.int64()),
    "codec": _codec,
}

FIXED: Final[dict[str, tuple[int, Any]]] = {
    "offset": (c.OFFSETS, np.int64),
    "timestamp": (c.TIMESTAMPS, np.int64),
    "timestampType": (c.TIMESTAMP_TYPES, np.int32),
    "leaderEpoch": (c.LEADER_EPOCHS, np.int32),
    "producerId": (c.PRODUCER_IDS, np.int64),
    "producerEpoch": (c.PRODUCER_EPOCHS, np.int32),
    "sequence": (c.SEQUENCES, np.int32),
    "isTransactional": (c.TRANSACTIONALS, np.uint8),
    "batchBaseOffset": (c.BASE_OFFSETS, np.int64),
    "codec": (c.CODECS, np.int32),
}
