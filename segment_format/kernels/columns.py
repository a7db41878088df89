"""How each column of a record batch is made of the buffers that a kernel fills."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from segment_format.kernels import contract as c
from segment_format.kernels.pool_memory import copied

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

    from numpy.typing import NDArray

_BINARY: Final = pa.binary()
_STRING: Final = pa.string()
_HEADER: Final = pa.struct([("key", _STRING), ("value", _BINARY)])
_HEADERS: Final = pa.list_(pa.field("element", _HEADER))
# Not `pa.array`, here and below: its first call imports pandas, which takes long.
_CODEC_NAMES: Final = pa.Array.from_buffers(
    _STRING,
    5,
    [
        None,
        copied(np.array([0, 4, 8, 14, 17, 21], np.int32)),
        copied(np.frombuffer(b"nonegzipsnappylz4zstd", np.uint8)),
    ],
    0,
)
_NO_HEADERS: Final = pa.nulls(0, _HEADER)


class BufferLayout(NamedTuple):
    """A buffer with a fixed size per row.

    Attributes:
        slot: Where the frame has its address.
        bits: Per row.
        extra: Entries more than rows.
    """

    slot: int
    bits: int
    extra: int = 0

    @property
    def has_leading_zero(self) -> bool:
        """Whether it holds ends: each entry's, behind where the first begins."""
        return self.bits == 32 and self.extra == 1

    def size(self, rows: int) -> int:
        """Bytes for `rows` rows."""
        return (self.bits * (rows + self.extra) + 7) // 8


class Filled(NamedTuple):
    """Buffers after a kernel has filled them.

    Attributes:
        slots: The frame.
        memory: All buffers.
        starts: Slot -> first byte of its buffer in the memory.
    """

    slots: memoryview
    memory: pa.Buffer
    starts: Mapping[int, int]

    def buffer(self, layout: BufferLayout, rows: int) -> pa.Buffer:
        """The first `rows` rows of a buffer."""
        return self.memory.slice(self.starts[layout.slot], layout.size(rows))

    def values(self, layout: BufferLayout, rows: int, dtype: type[np.generic]) -> NDArray[Any]:
        """Their values, one per row."""
        return np.frombuffer(self.buffer(layout, rows), dtype)

    def first(self, slot: int, size: int) -> pa.Buffer:
        """The first `size` bytes of the buffer of a slot."""
        return self.memory.slice(self.starts[slot], size)


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        type: Its Arrow type.
        wanted: Its bit in the frame.
        buffers: Those of a fixed size per row.
        build: Filled buffers and the number of rows -> the column.
    """

    type: pa.DataType
    wanted: int
    buffers: tuple[BufferLayout, ...]
    build: Callable[[Filled, int], pa.Array]


def _fixed(kind: pa.DataType, wanted: int, slot: int) -> Column:
    layout = BufferLayout(slot, kind.bit_width)

    def build(filled: Filled, rows: int) -> pa.Array:
        return pa.Array.from_buffers(kind, rows, [None, filled.buffer(layout, rows)], 0)

    return Column(kind, wanted, (layout,), build)


def _binary(
    wanted: int, ends_slot: int, data: int, valid_slot: int, size: int, nulls: int
) -> Column:
    ends = BufferLayout(ends_slot, 32, 1)
    valid = BufferLayout(valid_slot, 1, 63)  # kernels write whole words of 64 rows

    def build(filled: Filled, rows: int) -> pa.Array:
        null_count = filled.slots[nulls]
        if null_count == rows:
            return pa.nulls(rows, _BINARY)
        validity = filled.buffer(valid, rows) if null_count else None
        buffers = [validity, filled.buffer(ends, rows), filled.first(data, filled.slots[size])]
        return pa.Array.from_buffers(_BINARY, rows, buffers, null_count)

    return Column(_BINARY, wanted, (ends, valid), build)


def _optional(kind: pa.DataType, wanted: int, slot: int, dtype: type[np.generic]) -> Column:
    """Numbers of which −1 means none."""
    layout = BufferLayout(slot, kind.bit_width)

    def build(filled: Filled, rows: int) -> pa.Array:
        values = filled.values(layout, rows, dtype)
        present = values >= 0
        nulls = rows - int(np.count_nonzero(present))
        validity = copied(np.packbits(present, bitorder="little")) if nulls else None
        return pa.Array.from_buffers(kind, rows, [validity, filled.buffer(layout, rows)], nulls)

    return Column(kind, wanted, (layout,), build)


def _headers() -> Column:
    ends = BufferLayout(c.HEADER_ENDS, 32, 1)

    def build(filled: Filled, rows: int) -> pa.Array:
        buffers = [None, filled.buffer(ends, rows)]
        pairs = _header_pairs(filled) if filled.slots[c.HEADERS] else _NO_HEADERS
        return pa.Array.from_buffers(_HEADERS, rows, buffers, 0, children=[pairs])

    return Column(_HEADERS, c.WANT_HEADERS, (ends,), build)


def _header_pairs(filled: Filled) -> pa.Array:
    slots = filled.slots
    count, nulls = slots[c.HEADERS], slots[c.HEADER_VALUE_NULLS]
    key_buffers = [
        None,
        filled.first(c.HEADER_KEY_ENDS, 4 * (count + 1)),
        filled.first(c.HEADER_KEY_BYTES, slots[c.HEADER_KEY_SIZE]),
    ]
    value_buffers = [
        filled.first(c.HEADER_VALUE_VALID, (count + 7) // 8) if nulls else None,
        filled.first(c.HEADER_VALUE_ENDS, 4 * (count + 1)),
        filled.first(c.HEADER_VALUE_BYTES, slots[c.HEADER_VALUE_SIZE]),
    ]
    keys = pa.Array.from_buffers(_STRING, count, key_buffers, 0)
    values = pa.Array.from_buffers(_BINARY, count, value_buffers, nulls)
    return pa.Array.from_buffers(_HEADER, count, [None], 0, children=[keys, values])


def _is_transactional() -> Column:
    layout = BufferLayout(c.TRANSACTIONALS, 8)

    def build(filled: Filled, rows: int) -> pa.Array:
        bits = np.packbits(filled.values(layout, rows, np.bool_), bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), rows, [None, copied(bits)], 0)

    return Column(pa.bool_(), c.WANT_TRANSACTIONAL, (layout,), build)


def _codec() -> Column:
    layout = BufferLayout(c.CODECS, 32)

    def build(filled: Filled, rows: int) -> pa.Array:
        numbers = pa.Array.from_buffers(pa.int32(), rows, [None, filled.buffer(layout, rows)], 0)
        return _CODEC_NAMES.take(numbers)

    return Column(_STRING, c.WANT_CODEC, (layout,), build)


COLUMNS: Final[dict[str, Column]] = {
    "key": _binary(c.WANT_KEY, c.KEY_ENDS, c.KEY_BYTES, c.KEY_VALID, c.KEY_SIZE, c.KEY_NULLS),
    "value": _binary(
        c.WANT_VALUE, c.VALUE_ENDS, c.VALUE_BYTES, c.VALUE_VALID, c.VALUE_SIZE, c.VALUE_NULLS
    ),
    "offset": _fixed(pa.int64(), c.WANT_OFFSET, c.OFFSETS),
    "timestamp": _fixed(pa.timestamp("us", tz="UTC"), c.WANT_TIMESTAMP, c.TIMESTAMPS),
    "timestampType": _fixed(pa.int32(), c.WANT_TIMESTAMP_TYPE, c.TIMESTAMP_TYPES),
    "headers": _headers(),
    "leaderEpoch": _optional(pa.int32(), c.WANT_LEADER_EPOCH, c.LEADER_EPOCHS, np.int32),
    "producerId": _optional(pa.int64(), c.WANT_PRODUCER_ID, c.PRODUCER_IDS, np.int64),
    "producerEpoch": _optional(pa.int32(), c.WANT_PRODUCER_EPOCH, c.PRODUCER_EPOCHS, np.int32),
    "sequence": _optional(pa.int32(), c.WANT_SEQUENCE, c.SEQUENCES, np.int32),
    "isTransactional": _is_transactional(),
    "batchBaseOffset": _fixed(pa.int64(), c.WANT_BASE_OFFSET, c.BASE_OFFSETS),
    "codec": _codec(),
}
"""Column name -> column: those of Spark's Kafka source, then those that say where a record came
from."""


def column_names(columns: Iterable[str], others: Container[str] = ()) -> tuple[str, ...]:
    """Those of the names that are not among `others`, in order.

    Raises:
        ValueError: A name that is neither in `COLUMNS` nor in `others`, or twice.
    """
    every = tuple(columns)
    names = tuple(name for name in every if name not in others)
    if len(set(every)) < len(every) or not set(names) <= COLUMNS.keys():
        known = ", ".join(COLUMNS)
        raise ValueError(f"columns must be distinct and of {known}: {', '.join(every)}")
    return names
