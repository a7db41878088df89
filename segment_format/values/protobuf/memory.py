"""The memory of a decoding: columns that the kernel fills, and the state it runs by.

Columns are zero until the kernel writes them: zero is what a value has not. All memory is Arrow's
own, see `segment_format.kernels.pool_memory`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from segment_format.values.protobuf import contract as c

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from segment_format.values.protobuf.program import Program

_SLACK: Final = 16
"""Bytes that the kernel may write behind a text, and more so that no buffer is empty."""
_MOST_ENTRIES: Final = 2**31 - 1
_MOST_BYTES: Final = 512 << 20
_BYTES_PER_BYTE: Final = 8
"""Elements and texts of one decoding may take the larger of these: in all, and for each byte of the
values. Two bytes may begin a message of a thousand columns.
"""
_WORTH_SHRINKING: Final = 1 << 16


class ColumnMemory:
    """Columns, offsets and texts of one decoding, and the kernel's state.

    Args:
        program: Of the message type.
        rows: Values to decode.
        rooms: Entries of each level to make room for at first; that of level 0 is `rows`.
        size: Bytes of the values.
    """

    def __init__(self, program: Program, rows: int, rooms: Sequence[int], size: int) -> None:
        self._program = program
        self._most = max(_MOST_BYTES, _BYTES_PER_BYTE * size)
        columns = program.columns.reshape(-1, c.COLUMN_SIZE).tolist()
        levels = program.levels.reshape(-1, c.LEVEL_SIZE).tolist()
        level_count = len(levels)
        parts = (
            *(c.STATE_SIZE, len(columns)),
            *(level_count,) * 5,
            c.FRAME_SIZE * (c.MOST_DEPTH + 1),
        )
        ends = np.cumsum(parts).tolist()
        self._numbers = np.zeros(ends[-1], np.int64)
        self.state = self._numbers.data
        self.address: int = self._numbers.ctypes.data
        self._bases, self._offset_bases, self._byte_bases = ends[0], ends[1], ends[2]
        self._counts, self._rooms, self._stack = ends[3], ends[4], ends[6]
        for slot, start in zip(
            (c.BASES, c.OFFSETS, c.BYTES, c.COUNTS, c.ROOMS, c.BEFORE, c.STACK),
            ends,
            strict=False,
        ):
            self.state[slot] = self.address + 8 * start
        for slot, table in (
            (c.NODES, program.nodes),
            (c.DENSE, program.dense),
            (c.ENTRIES, program.entries),
            (c.COLUMNS, program.columns),
            (c.LEVELS, program.levels),
            (c.KIDS, program.kids),
            (c.ENUMS, program.enums),
        ):
            self.state[slot] = table.ctypes.data
        self.state[c.COLUMN_COUNT] = len(columns)
        self.state[c.LEVEL_COUNT] = level_count
        self.state[c.ROWS] = rows
        self.state[c.DEPTH] = -1
        self._columns: dict[int, pa.Buffer] = {}
        self._offsets: dict[int, pa.Buffer] = {}
        self._texts: dict[int, pa.Buffer] = {}
        self._on_level: list[list[tuple[int, int]]] = [[] for _ in levels]
        self._kids: list[list[int]] = [[] for _ in levels]
        for column, (width, level) in enumerate(columns):
            self._on_level[level].append((column, width))
        for level, (parent, _, _) in enumerate(levels):
            if parent >= 0:
                self._kids[parent].append(level)
        self._text_levels = program.text_levels
        self._grown = 0
        for level in range(level_count):
            self._set_room(level, rooms[level] if level else rows)

    def count(self, level: int) -> int:
        """Entries of a level so far."""
        count: int = self.state[self._counts + level]
        return count

    @property
    def counts(self) -> tuple[int, ...]:
        """Entries of each level so far."""
        return tuple(self.state[self._counts : self._rooms].tolist())

    def grow(self) -> bool:
        """Make the room that the state asks for; False if that would be too much."""
        level, wanted = self.state[c.LEVEL_WANTED], self.state[c.ROOM_WANTED]
        room = min(max(wanted, 2 * self.state[self._rooms + level]), _MOST_ENTRIES)
        more = (room - self.state[self._rooms + level]) * self._program.entry_bytes[level]
        if wanted > room or self._grown + more > self._most:
            return False
        self._grown += more
        self._set_room(level, room)
        return True

    def _set_room(self, level: int, room: int) -> None:
        self.state[self._rooms + level] = room
        if level in self._text_levels:
            self.state[self._byte_bases + level] = _resized(self._texts, level, room + _SLACK)
        for column, width in self._on_level[level]:
            self.state[self._bases + column] = _resized(
                self._columns, column, room * width + _SLACK, zero=True
            )
        for kid in self._kids[level]:
            # The first offset is 0, and the kernel writes the others.
            self.state[self._offset_bases + kid] = _resized(
                self._offsets, kid, 4 * (room + 1) + _SLACK
            )

    def bad_entries(self) -> list[int]:
        """The entries down to where a value went wrong."""
        start = self._stack + c.FRAME_ENTRY
        stop = start + c.FRAME_SIZE * (self.state[c.BAD_DEPTH] + 1)
        entries = [*self.state[start : stop : c.FRAME_SIZE].tolist(), self.state[c.BAD_ENTRY]]
        return [entry for entry in entries if entry >= 0]

    def values(self, column: int, level: int, width: int) -> pa.Buffer:
        """The numbers of a column."""
        return _filled(self._columns, column, self.count(level) * width)

    def numbers(self, column: int, level: int, dtype: type[np.generic]) -> NDArray[np.generic]:
        """The same as an array."""
        return np.frombuffer(self.values(column, level, np.dtype(dtype).itemsize), dtype)

    def offsets(self, level: int, parent: int) -> pa.Buffer:
        """Where the entries of each entry of the parent begin, and where the last ends: int32."""
        return _filled(self._offsets, level, 4 * (self.count(parent) + 1))

    def text(self, level: int) -> pa.Buffer:
        """The bytes of texts."""
        return _filled(self._texts, level, self.count(level))

    def row_of(self, level: int, index: int) -> int:
        """Which value an entry of a level belongs to."""
        while level:
            parent = int(self._program.levels[level * c.LEVEL_SIZE + c.PARENT])
            ends = np.frombuffer(self.offsets(level, parent), np.int32)
            index = int(np.searchsorted(ends, index, side="right")) - 1
            level = parent
        return index


def _resized(buffers: dict[int, pa.Buffer], key: int, size: int, *, zero: bool = False) -> int:
    """Make a buffer, or make it larger; its address."""
    buffer = buffers.get(key)
    old = 0
    if buffer is None:
        buffers[key] = buffer = pa.allocate_buffer(size, resizable=True)
        np.frombuffer(buffer, np.uint8, _SLACK)[:] = 0
    else:
        old = buffer.size
        buffer.resize(size)
    if zero:
        np.frombuffer(buffer, np.uint8)[old:] = 0
    address: int = buffer.address
    return address


def _filled(buffers: dict[int, pa.Buffer], key: int, size: int) -> pa.Buffer:
    buffer = buffers[key]
    if buffer.size > _WORTH_SHRINKING and 2 * size < buffer.size:
        buffer.resize(max(size, 1), shrink_to_fit=True)
    return buffer.slice(0, size)
