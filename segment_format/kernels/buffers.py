"""Column buffers: memory that kernels fill and Arrow arrays show.

Each batch has fresh memory, so it does not change while somebody holds it. The memory is Arrow's
own (`pool_memory`): any thread can release a batch without the GIL.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from segment_format.kernels import contract as c
from segment_format.kernels.columns import COLUMNS, BufferLayout, Column, Filled
from segment_format.kernels.pool_memory import allocate

if TYPE_CHECKING:
    import pyarrow as pa

_FIRST_FILL: Final = c.ROWS
_STOP_FILL: Final = c.NEW_HEADER_VALUE_SIZE + 1
_NOTHING_FILLED: Final = np.zeros(_STOP_FILL - _FIRST_FILL, np.int64).data
_ALIGNMENT: Final = 64
_WORTH_COPYING: Final = 4
"""Memory of more than so many times what a batch has filled is worth giving back by a copy."""


class _Growing(NamedTuple):
    """Buffers without a fixed size per row, which grow together.

    Attributes:
        column: Whose they are.
        first_room: Entries that there is room for at first.
        room: Slot of the entries that there is room for.
        filled: Slot of the entries that are filled.
        wanted: Slot of the entries that the next record takes in all.
        buffers: What they are; their rows are entries.
    """

    column: str
    first_room: int
    room: int
    filled: int
    wanted: int
    buffers: tuple[BufferLayout, ...]


def _bytes(
    column: str, first_room: int, data: int, room: int, filled: int, wanted: int
) -> _Growing:
    return _Growing(
        column, first_room, room, filled, wanted, (BufferLayout(data, 8, c.COPY_SLACK),)
    )


_GROWING: Final = (
    _bytes("key", 64 << 10, c.KEY_BYTES, c.KEY_ROOM, c.KEY_SIZE, c.NEW_KEY_SIZE),
    _bytes("value", 512 << 10, c.VALUE_BYTES, c.VALUE_ROOM, c.VALUE_SIZE, c.NEW_VALUE_SIZE),
    _bytes(
        *("headers", 64 << 10, c.HEADER_KEY_BYTES),
        *(c.HEADER_KEY_ROOM, c.HEADER_KEY_SIZE, c.NEW_HEADER_KEY_SIZE),
    ),
    _bytes(
        *("headers", 64 << 10, c.HEADER_VALUE_BYTES),
        *(c.HEADER_VALUE_ROOM, c.HEADER_VALUE_SIZE, c.NEW_HEADER_VALUE_SIZE),
    ),
    _Growing(
        *("headers", 4 << 10, c.HEADER_ROOM, c.HEADERS, c.NEW_HEADERS),
        (
            BufferLayout(c.HEADER_KEY_ENDS, 32, 1),
            BufferLayout(c.HEADER_VALUE_ENDS, 32, 1),
            BufferLayout(c.HEADER_VALUE_VALID, 1),
        ),
    ),
)


class _Layout(NamedTuple):
    """Where the buffers of a batch stand in its memory.

    Attributes:
        size: Bytes in all.
        starts: Slot -> first byte.
        zeros: Where the int32 stand that ends begin with, in int32.
    """

    size: int
    starts: dict[int, int]
    zeros: list[int]


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """What the batches of a decoder have in common, see `ColumnBuffers`. There is one of a kind.

    Attributes:
        bits: Of a row in `columns`, and of an entry in each of `growing`.
    """

    columns: tuple[Column, ...]
    growing: tuple[_Growing, ...]
    first_rooms: tuple[int, ...]
    max_rows: int
    max_bytes: int
    bits: tuple[int, tuple[int, ...]]


@functools.lru_cache(64)
def _shape(names: tuple[str, ...], max_rows: int, max_bytes: int) -> _Shape:
    columns = tuple(COLUMNS[name] for name in names)
    growing = tuple(each for each in _GROWING if each.column in names)
    rooms = tuple(min(each.first_room, max_bytes) for each in growing)
    bits = (
        sum(buffer.bits for column in columns for buffer in column.buffers),
        tuple(sum(buffer.bits for buffer in each.buffers) for each in growing),
    )
    return _Shape(columns, growing, rooms, max_rows, max_bytes, bits)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


@functools.lru_cache(64)
def _layout(shape: _Shape, rooms: tuple[int, ...]) -> _Layout:
    sized = [(buffer, shape.max_rows) for column in shape.columns for buffer in column.buffers]
    for growing, room in zip(shape.growing, rooms, strict=True):
        sized += [(buffer, room) for buffer in growing.buffers]
    starts: dict[int, int] = {}
    size = 0
    for buffer, entries in sized:
        starts[buffer.slot] = size
        size += _aligned(buffer.size(entries))
    zeros = [starts[buffer.slot] // 4 for buffer, _ in sized if buffer.has_leading_zero]
    return _Layout(size, starts, zeros)


_last_rooms: tuple[_Shape | None, tuple[int, ...]] = (None, ())
"""A shape and the rooms that its last batch led to: the next decoder begins with them."""


class ColumnBuffers:
    """The memory of the batch that a kernel is filling: all its columns' buffers, side by side.

    Args:
        slots: The frame, which tells the kernel where they are.
        columns: Names of `segment_format.kernels.columns.COLUMNS`.
        max_rows: Most rows of a batch.
        max_bytes: Most bytes of all variable-size columns, unless a single row has more.
    """

    def __init__(
        self, slots: memoryview, columns: tuple[str, ...], *, max_rows: int, max_bytes: int
    ) -> None:
        self._slots = slots
        self._shape = _shape(columns, max_rows, max_bytes)
        self._has_given = False
        shape, rooms = _last_rooms
        self._set_rooms(rooms if shape is self._shape else self._shape.first_rooms)
        self.begin()

    def _set_rooms(self, rooms: tuple[int, ...]) -> None:
        """Set the rooms of memory yet to be taken."""
        self._rooms = rooms
        self._layout = _layout(self._shape, rooms)
        for growing, room in zip(self._shape.growing, rooms, strict=True):
            self._slots[growing.room] = room

    def begin(self) -> None:
        """Take fresh memory, empty."""
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
        """Make room for the record that the frame names, keeping what is filled."""
        old, starts = np.frombuffer(self._memory, np.uint8), self._layout.starts
        self._set_rooms(tuple(map(self._grown, self._shape.growing)))
        self._allocate()
        new, to_starts = np.frombuffer(self._memory, np.uint8), self._layout.starts
        for growing, room in zip(self._shape.growing, self._rooms, strict=True):
            for buffer in growing.buffers:
                if buffer.slot == c.HEADER_VALUE_VALID:  # kernels clear bits
                    start = to_starts[buffer.slot]
                    new[start : start + buffer.size(room)] = 0xFF
        for slot, size in self._used():
            start, to = starts[slot], to_starts[slot]
            new[to : to + size] = old[start : start + size]

    def _used(self) -> list[tuple[int, int]]:
        """Slot and bytes of the buffers, as far as they are filled."""
        slots = self._slots
        rows = slots[c.ROWS]
        used = [(b.slot, b.size(rows)) for column in self._shape.columns for b in column.buffers]
        for growing in self._shape.growing:
            used += [(b.slot, b.size(slots[growing.filled])) for b in growing.buffers]
        return used

    def _filled(self) -> Filled:
        """What is filled, copied where it is little: the last batches of many segments, of a few
        rows each, would otherwise keep a MiB each.
        """
        layout, slots, (row_bits, growing_bits) = self._layout, self._slots, self._shape.bits
        bits = row_bits * slots[c.ROWS]
        for growing, each in zip(self._shape.growing, growing_bits, strict=True):
            bits += each * slots[growing.filled]
        if _WORTH_COPYING * bits >= 8 * layout.size:
            return Filled(slots, self._memory, layout.starts)
        used = self._used()
        size = sum(_aligned(one) for _, one in used)
        old, memory = np.frombuffer(self._memory, np.uint8), allocate(size)
        new = np.frombuffer(memory, np.uint8)
        starts: dict[int, int] = {}
        to = 0
        for slot, one in used:
            start = layout.starts[slot]
            new[to : to + one] = old[start : start + one]
            starts[slot] = to
            to += _aligned(one)
        return Filled(slots, memory, starts)

    def _grown(self, growing: _Growing) -> int:
        max_rows, max_bytes = self._shape.max_rows, self._shape.max_bytes
        needed, room = self._slots[growing.wanted], self._slots[growing.room]
        if needed <= room:
            return room
        # Room for the rest of the batch if it goes on like this, within the bound.
        expected = needed * max_rows // (self._slots[c.ROWS] + 1) * 9 // 8
        return max(needed, min(max(2 * room, expected), max_bytes))

    def arrays(self, *, last: bool = False) -> list[pa.Array]:
        """What the kernel has filled, by reference (but for the lineage columns, and where it is
        little). Call `begin` before it fills more.

        Args:
            last: Whether nothing more will come. Behind full batches, the few rows of the last one
                do not tell what the next decoder needs.
        """
        global _last_rooms
        shape = self._shape
        rows = self._slots[c.ROWS]
        filled = self._filled()
        arrays = [column.build(filled, rows) for column in shape.columns]
        if self._rooms is not shape.first_rooms:
            if not (last and self._has_given):
                rooms = tuple(map(self._next_room, shape.growing, shape.first_rooms))
                if rooms != self._rooms:
                    self._set_rooms(rooms)
            _last_rooms = shape, self._rooms
        self._has_given = True
        return arrays

    def _next_room(self, growing: _Growing, first: int) -> int:
        """A batch that is held keeps its room, so the next one has not much more than it needs."""
        room = self._slots[growing.room]
        if 4 * self._slots[growing.filled] < room:
            room = max(first, room // 2)
        return min(room, self._shape.max_bytes)
