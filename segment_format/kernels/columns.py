"""Defines the columns of a record batch, and the memory that the record kernel fills.

New memory is allocated for each batch, so a batch does not change while a consumer uses it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from segment_format.kernels import contract as c
from segment_format.kernels.arrow_buffers import (
    WORTH_COPYING,
    allocate,
    copied,
    make_array,
    pack_bits,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from numpy.typing import NDArray


_BINARY: Final = pa.binary()
_STRING: Final = pa.string()
_HEADER: Final = pa.struct([("key", _STRING), ("value", _BINARY)])
_HEADERS: Final = pa.list_(pa.field("element", _HEADER))
# `pa.array` is not used in this module, because its first call imports pandas, which is slow.
_CODEC_NAMES: Final = make_array(
    _STRING,
    5,
    None,
    [
        copied(np.array([0, 4, 8, 14, 17, 21], np.int32)),
        copied(np.frombuffer(b"nonegzipsnappylz4zstd", np.uint8)),
    ],
)
_NO_HEADERS: Final = pa.nulls(0, _HEADER)


class BufferLayout(NamedTuple):
    """Describes a buffer with a fixed size per row.

    Attributes:
        slot: Slot of the frame that contains the buffer's address.
        bits: Bits per row.
        extra: Number of entries that the buffer has in addition to one entry per row.
    """

    slot: int
    bits: int
    extra: int = 0

    @property
    def has_leading_zero(self) -> bool:
        """True if the buffer has Arrow offsets. Such a buffer has one number more than rows, and
        begins with 0.
        """
        return self.bits == 32 and self.extra == 1

    def size(self, rows: int) -> int:
        """Returns the number of bytes that `rows` rows need."""
        return (self.bits * (rows + self.extra) + 7) // 8


class Filled(NamedTuple):
    """Buffers after a kernel has filled them.

    Attributes:
        slots: The frame of the kernel. It contains the numbers of filled rows and bytes.
        memory: Memory that contains all buffers.
        starts: Mapping from a buffer's slot to the buffer's position in the memory.
    """

    slots: memoryview
    memory: pa.Buffer
    starts: Mapping[int, int]

    def buffer(self, layout: BufferLayout, rows: int) -> pa.Buffer:
        """Returns the first `rows` rows of the buffer that `layout` describes."""
        return self.memory.slice(self.starts[layout.slot], layout.size(rows))

    def values(self, layout: BufferLayout, rows: int, dtype: type[np.generic]) -> NDArray[Any]:
        """Returns the first `rows` values of the buffer that `layout` describes."""
        return np.frombuffer(self.buffer(layout, rows), dtype)

    def first(self, slot: int, size: int) -> pa.Buffer:
        """Returns the first `size` bytes of the buffer with this slot."""
        return self.memory.slice(self.starts[slot], size)


@dataclass(frozen=True, slots=True)
class Column:
    """Describes how a column of a record batch is filled and built.

    Attributes:
        type: Arrow type of the column.
        wanted: Bit of the column in slot `WANTED` of the frame.
        buffers: Those buffers of the column that have a fixed size per row.
        build: Builds the Arrow array from filled buffers and the number of rows.
    """

    type: pa.DataType
    wanted: int
    buffers: tuple[BufferLayout, ...]
    build: Callable[[Filled, int], pa.Array]


def _fixed(kind: pa.DataType, wanted: int, slot: int) -> Column:
    layout = BufferLayout(slot, kind.bit_width)

    def build(filled: Filled, rows: int) -> pa.Array:
        return make_array(kind, rows, None, [filled.buffer(layout, rows)])

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
    """Returns a column of numbers. A row is null if the kernel writes −1 to it."""
    layout = BufferLayout(slot, kind.bit_width)

    def build(filled: Filled, rows: int) -> pa.Array:
        present = filled.values(layout, rows, dtype) >= 0
        return make_array(kind, rows, present, [filled.buffer(layout, rows)])

    return Column(kind, wanted, (layout,), build)


def _headers() -> Column:
    ends = BufferLayout(c.HEADER_ENDS, 32, 1)

    def build(filled: Filled, rows: int) -> pa.Array:
        pairs = _header_pairs(filled) if filled.slots[c.HEADERS] else _NO_HEADERS
        return make_array(_HEADERS, rows, None, [filled.buffer(ends, rows)], [pairs])

    return Column(_HEADERS, c.WANT_HEADERS, (ends,), build)


def _header_pairs(filled: Filled) -> pa.Array:
    slots = filled.slots
    count, nulls = slots[c.HEADERS], slots[c.HEADER_VALUE_NULLS]
    key_buffers = [
        filled.first(c.HEADER_KEY_ENDS, 4 * (count + 1)),
        filled.first(c.HEADER_KEY_BYTES, slots[c.HEADER_KEY_SIZE]),
    ]
    value_buffers = [
        filled.first(c.HEADER_VALUE_VALID, (count + 7) // 8) if nulls else None,
        filled.first(c.HEADER_VALUE_ENDS, 4 * (count + 1)),
        filled.first(c.HEADER_VALUE_BYTES, slots[c.HEADER_VALUE_SIZE]),
    ]
    keys = make_array(_STRING, count, None, key_buffers)
    values = pa.Array.from_buffers(_BINARY, count, value_buffers, nulls)
    return make_array(_HEADER, count, None, children=[keys, values])


def _is_transactional() -> Column:
    layout = BufferLayout(c.TRANSACTIONALS, 8)

    def build(filled: Filled, rows: int) -> pa.Array:
        bits = pack_bits(filled.values(layout, rows, np.bool_))
        return make_array(pa.bool_(), rows, None, [bits])

    return Column(pa.bool_(), c.WANT_TRANSACTIONAL, (layout,), build)


def _codec() -> Column:
    layout = BufferLayout(c.CODECS, 32)

    def build(filled: Filled, rows: int) -> pa.Array:
        return _CODEC_NAMES.take(make_array(pa.int32(), rows, None, [filled.buffer(layout, rows)]))

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
"""Maps names to columns: first the columns of Spark's Kafka source, then columns about a record's
origin.
"""


def column_names(columns: Iterable[str], others: Container[str] = ()) -> tuple[str, ...]:
    """Returns the names in `columns` that are not in `others`. Keeps their order.

    Raises:
        ValueError: A name is neither in `COLUMNS` nor in `others`, or is repeated.
    """
    every = tuple(columns)
    names = tuple(name for name in every if name not in others)
    if len(set(every)) < len(every) or not set(names) <= COLUMNS.keys():
        allowed = ", ".join(COLUMNS)
        raise ValueError(
            f"columns must be distinct names among {allowed}, but are {', '.join(every)}"
        )
    return names


_FIRST_FILL: Final = c.ROWS
_STOP_FILL: Final = c.NEW_HEADER_VALUE_SIZE + 1
_NOTHING_FILLED: Final = np.zeros(_STOP_FILL - _FIRST_FILL, np.int64).data
_ALIGNMENT: Final = 64


class _Growing(NamedTuple):
    """Describes buffers of one column that have no fixed size per row, such as the bytes of all
    keys. All buffers of a column have the same number of entries.

    Attributes:
        column: Name of the column that the buffers store.
        first_capacity: Initial capacity, in entries.
        capacity: Slot of the kernel's frame with the capacity, in entries.
        filled: Slot of the frame with the number of filled entries.
        wanted: Slot of the frame with the capacity that the next record needs, in entries.
        buffers: Layouts of the buffers. In these layouts, a row is one entry.
    """

    column: str
    first_capacity: int
    capacity: int
    filled: int
    wanted: int
    buffers: tuple[BufferLayout, ...]


def _bytes(
    column: str, first_capacity: int, data: int, capacity: int, filled: int, wanted: int
) -> _Growing:
    return _Growing(
        column, first_capacity, capacity, filled, wanted, (BufferLayout(data, 8, c.COPY_SLACK),)
    )


_GROWING: Final = (
    _bytes("key", 64 << 10, c.KEY_BYTES, c.KEY_CAPACITY, c.KEY_SIZE, c.NEW_KEY_SIZE),
    _bytes("value", 512 << 10, c.VALUE_BYTES, c.VALUE_CAPACITY, c.VALUE_SIZE, c.NEW_VALUE_SIZE),
    _bytes(
        *("headers", 64 << 10, c.HEADER_KEY_BYTES),
        *(c.HEADER_KEY_CAPACITY, c.HEADER_KEY_SIZE, c.NEW_HEADER_KEY_SIZE),
    ),
    _bytes(
        *("headers", 64 << 10, c.HEADER_VALUE_BYTES),
        *(c.HEADER_VALUE_CAPACITY, c.HEADER_VALUE_SIZE, c.NEW_HEADER_VALUE_SIZE),
    ),
    _Growing(
        *("headers", 4 << 10, c.HEADER_CAPACITY, c.HEADERS, c.NEW_HEADERS),
        (
            BufferLayout(c.HEADER_KEY_ENDS, 32, 1),
            BufferLayout(c.HEADER_VALUE_ENDS, 32, 1),
            BufferLayout(c.HEADER_VALUE_VALID, 1),
        ),
    ),
)


class _Layout(NamedTuple):
    """Positions of the buffers in the memory of a batch.

    Attributes:
        size: Total size of all buffers in bytes.
        starts: Mapping from a buffer's slot to the buffer's position in bytes.
        zeros: Positions of the leading 0 in each Arrow offsets buffer, in units of 4 bytes.
    """

    size: int
    starts: dict[int, int]
    zeros: list[int]


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """Properties that all batches of a decoder share, see `ColumnBuffers`. Cached for decoders with
    equal arguments.

    Attributes:
        growing: Buffers of these columns without a fixed size per row.
        first_capacities: Initial capacity of each item of `growing`.
        max_rows: Maximum number of rows of a batch.
        max_bytes: Maximum number of bytes of all variable-size columns.
        bits: Two values: the sum of the bits per row of all `columns`, and the bits per entry of
            each item of `growing`.
    """

    columns: tuple[Column, ...]
    growing: tuple[_Growing, ...]
    first_capacities: tuple[int, ...]
    max_rows: int
    max_bytes: int
    bits: tuple[int, tuple[int, ...]]


@functools.lru_cache(64)
def _shape(names: tuple[str, ...], max_rows: int, max_bytes: int) -> _Shape:
    columns = tuple(COLUMNS[name] for name in names)
    growing = tuple(each for each in _GROWING if each.column in names)
    capacities = tuple(min(each.first_capacity, max_bytes) for each in growing)
    bits = (
        sum(buffer.bits for column in columns for buffer in column.buffers),
        tuple(sum(buffer.bits for buffer in each.buffers) for each in growing),
    )
    return _Shape(columns, growing, capacities, max_rows, max_bytes, bits)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


@functools.lru_cache(64)
def _layout(shape: _Shape, capacities: tuple[int, ...]) -> _Layout:
    sized = [(buffer, shape.max_rows) for column in shape.columns for buffer in column.buffers]
    for growing, capacity in zip(shape.growing, capacities, strict=True):
        sized += [(buffer, capacity) for buffer in growing.buffers]
    starts: dict[int, int] = {}
    size = 0
    for buffer, entries in sized:
        starts[buffer.slot] = size
        size += _aligned(buffer.size(entries))
    zeros = [starts[buffer.slot] // 4 for buffer, _ in sized if buffer.has_leading_zero]
    return _Layout(size, starts, zeros)


_last_capacities: tuple[_Shape | None, tuple[int, ...]] = (None, ())
"""Shape and capacities of the last batch. The next decoder with this shape starts with them."""


class ColumnBuffers:
    """The memory of the batch that the record kernel is filling. All buffers are parts of one
    allocation.

    `arrow_buffers.GrowingBuffers` allocates each buffer separately; for small batches of records, a
    single allocation takes less time.

    Args:
        slots: The frame. The kernel reads the addresses of the buffers from it.
        columns: Names of `COLUMNS`.
        max_rows: Maximum number of rows of a batch.
        max_bytes: Maximum number of bytes of all variable-size columns together. A single row may
            have more.
    """

    def __init__(
        self, slots: memoryview, columns: tuple[str, ...], *, max_rows: int, max_bytes: int
    ) -> None:
        self._slots = slots
        self._shape = _shape(columns, max_rows, max_bytes)
        self._has_given = False
        shape, capacities = _last_capacities
        self._set_capacities(capacities if shape is self._shape else self._shape.first_capacities)
        self.begin()

    def _set_capacities(self, capacities: tuple[int, ...]) -> None:
        """Sets the capacities of the growing buffers for the next allocation."""
        self._capacities = capacities
        self._layout = _layout(self._shape, capacities)
        for growing, capacity in zip(self._shape.growing, capacities, strict=True):
            self._slots[growing.capacity] = capacity

    def begin(self) -> None:
        """Allocates memory for the next batch."""
        self._allocate()
        self._slots[_FIRST_FILL:_STOP_FILL] = _NOTHING_FILLED

    def _allocate(self) -> None:
        layout = self._layout
        self._memory = allocate(layout.size)
        address = self._memory.address
        for slot, start in layout.starts.items():
            self._slots[slot] = address + start
        numbers = np.frombuffer(self._memory, np.int32)
        for index in layout.zeros:
            numbers[index] = 0

    def grow(self) -> None:
        """Enlarges the buffers to fit the next record. Keeps the filled rows. The frame contains
        the sizes that the record needs.
        """
        old, starts = np.frombuffer(self._memory, np.uint8), self._layout.starts
        self._set_capacities(tuple(map(self._grown, self._shape.growing)))
        self._allocate()
        new, to_starts = np.frombuffer(self._memory, np.uint8), self._layout.starts
        for growing, capacity in zip(self._shape.growing, self._capacities, strict=True):
            for buffer in growing.buffers:
                if buffer.slot == c.HEADER_VALUE_VALID:  # kernels clear bits
                    start = to_starts[buffer.slot]
                    new[start : start + buffer.size(capacity)] = 0xFF
        for slot, size in self._used():
            start, to = starts[slot], to_starts[slot]
            new[to : to + size] = old[start : start + size]

    def _used(self) -> list[tuple[int, int]]:
        """Returns the slot and the number of filled bytes of each buffer."""
        slots = self._slots
        rows = slots[c.ROWS]
        used = [(b.slot, b.size(rows)) for column in self._shape.columns for b in column.buffers]
        for growing in self._shape.growing:
            used += [(b.slot, b.size(slots[growing.filled])) for b in growing.buffers]
        return used

    def _filled(self) -> Filled:
        """Returns the filled bytes of all buffers.

        If they are a small part of the allocated memory, they are copied to a smaller allocation.
        Otherwise the last batch of each segment would occupy a MiB even with a few rows.
        """
        layout, slots, (row_bits, growing_bits) = self._layout, self._slots, self._shape.bits
        bits = row_bits * slots[c.ROWS]
        for growing, each in zip(self._shape.growing, growing_bits, strict=True):
            bits += each * slots[growing.filled]
        if WORTH_COPYING * bits >= 8 * layout.size:
            return Filled(slots, self._memory, layout.starts)
        used = self._used()
        size = sum(_aligned(buffer_size) for _, buffer_size in used)
        old, memory = np.frombuffer(self._memory, np.uint8), allocate(size)
        new = np.frombuffer(memory, np.uint8)
        starts: dict[int, int] = {}
        to = 0
        for slot, buffer_size in used:
            start = layout.starts[slot]
            new[to : to + buffer_size] = old[start : start + buffer_size]
            starts[slot] = to
            to += _aligned(buffer_size)
        return Filled(slots, memory, starts)

    def _grown(self, growing: _Growing) -> int:
        max_rows, max_bytes = self._shape.max_rows, self._shape.max_bytes
        needed, capacity = self._slots[growing.wanted], self._slots[growing.capacity]
        if needed <= capacity:
            return capacity
        # Enough for the rest of the batch if its rows have the same size as the rows so far.
        expected = needed * max_rows // (self._slots[c.ROWS] + 1) * 9 // 8
        return max(needed, min(max(2 * capacity, expected), max_bytes))

    def arrays(self, *, last: bool = False) -> list[pa.Array]:
        """Returns the rows that the kernel has filled, as one array per column. Small batches are
        copied, see `_filled`.

        Call `begin` before the kernel fills more rows.

        Args:
            last: True for the last batch of the decoder. Its size does not affect the initial
                capacities of the next decoder, unless it is the only batch.
        """
        global _last_capacities
        shape = self._shape
        rows = self._slots[c.ROWS]
        filled = self._filled()
        arrays = [column.build(filled, rows) for column in shape.columns]
        if self._capacities is not shape.first_capacities:
            if not (last and self._has_given):
                capacities = tuple(map(self._next_capacity, shape.growing, shape.first_capacities))
                if capacities != self._capacities:
                    self._set_capacities(capacities)
            _last_capacities = shape, self._capacities
        self._has_given = True
        return arrays

    def _next_capacity(self, growing: _Growing, first: int) -> int:
        """Returns the capacity of a growing buffer in the next batch. The capacity is halved if
        less than a quarter of it was filled, because a consumer of a batch keeps all memory of the
        batch alive.
        """
        capacity = self._slots[growing.capacity]
        if 4 * self._slots[growing.filled] < capacity:
            capacity = max(first, capacity // 2)
        return min(capacity, self._shape.max_bytes)


class Constant:
    """A column with the same value in every row. An array is built once, and each batch gets a
    slice of it.

    Args:
        value: A string, a number that fits into 32 bits, or `None` for a null string.
    """

    def __init__(self, value: str | int | None) -> None:
        self._value = value
        self.type = pa.int32() if isinstance(value, int) else pa.string()
        self._built = _repeated(value, 0)

    def rows(self, count: int) -> pa.Array:
        """Returns an array of `count` rows."""
        if len(self._built) < count:
            self._built = _repeated(self._value, count)
        return self._built.slice(0, count)


def constants_at(
    columns: Sequence[str], values: Mapping[str, str | int | None]
) -> list[tuple[int, Constant]]:
    """For each name in `columns` that `values` contains, returns the position of the name in
    `columns` and a `Constant`.
    """
    return [(index, Constant(values[name])) for index, name in enumerate(columns) if name in values]


def _repeated(value: str | int | None, rows: int) -> pa.Array:
    """Returns an array with the same value in `rows` rows.

    It does not use `pa.scalar` and `pa.array`, because they import pandas, which takes longer than
    a small read.
    """
    if value is None:
        return pa.nulls(rows, pa.string())
    if isinstance(value, int):
        return make_array(pa.int32(), rows, None, [copied(np.full(rows, value, np.int32))])
    data = value.encode()
    ends = np.arange(rows + 1, dtype=np.int32) * np.int32(len(data))
    texts = np.frombuffer(data * rows, np.uint8)
    return pa.StringArray.from_buffers(rows, copied(ends), copied(texts))
