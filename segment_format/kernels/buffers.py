"""Column buffers: numpy arrays that kernels fill and Arrow arrays share, used again once nobody
holds them.

Fresh memory costs a page fault per 4 KiB, more than decoding into it. An Arrow buffer keeps the
numpy array under it alive by a reference, so an array that only its set refers to is free: batches
already handed out never change.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from segment_format.kernels import contract as c
from segment_format.kernels.columns import COLUMNS, Filled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]

_FIRST_COLUMN: Final = c.OFFSETS
_STOP_COLUMN: Final = c.HEADER_VALUE_ROOM + 1
_FIRST_FILL: Final = c.ROWS
_STOP_FILL: Final = c.NEW_HEADER_VALUE_SIZE + 1
_MAX_SETS: Final = 4
_MAX_IDLE_POOLS: Final = 2
_ALIGNMENT: Final = 64

_NOTHING_FILLED: Final = np.zeros(_STOP_FILL - _FIRST_FILL, np.int64).data

_FIRST_ROOM: Final = {
    c.KEY_BYTES: 64 << 10,
    c.VALUE_BYTES: 512 << 10,
    c.HEADER_KEY_BYTES: 64 << 10,
    c.HEADER_VALUE_BYTES: 64 << 10,
}
_FIRST_HEADER_ROOM: Final = 4 << 10

_BYTES: Final = (
    ("key", c.KEY_BYTES, c.KEY_ROOM, c.KEY_SIZE, c.NEW_KEY_SIZE),
    ("value", c.VALUE_BYTES, c.VALUE_ROOM, c.VALUE_SIZE, c.NEW_VALUE_SIZE),
    (
        "headers",
        c.HEADER_KEY_BYTES,
        c.HEADER_KEY_ROOM,
        c.HEADER_KEY_SIZE,
        c.NEW_HEADER_KEY_SIZE,
    ),
    (
        "headers",
        c.HEADER_VALUE_BYTES,
        c.HEADER_VALUE_ROOM,
        c.HEADER_VALUE_SIZE,
        c.NEW_HEADER_VALUE_SIZE,
    ),
)
"""Column, and the slots of its bytes: address, room, filled, wanted."""


class ColumnBuffers:
    """One set of column buffers: filled by a kernel, then shown as Arrow arrays.

    What has a fixed size per row lies in one array, the arena; bytes and headers have arrays of
    their own, which grow.

    Args:
        columns: Names of `segment_format.kernels.columns.COLUMNS`.
        max_rows: Most rows of a batch.
        max_bytes: Most bytes of all variable-size columns, unless a single row has more.
        like: A set whose rooms are the first ones here.
    """

    def __init__(
        self,
        columns: Sequence[str],
        *,
        max_rows: int,
        max_bytes: int,
        like: ColumnBuffers | None = None,
    ) -> None:
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._columns = [COLUMNS[name] for name in columns]
        self._slots = np.zeros(_STOP_COLUMN - _FIRST_COLUMN, np.int64)
        self._view = self._slots.data
        self.is_oversized = False
        """Whether a single record made some array larger than batches need."""
        self._starts: dict[int, int] = {}
        size = 0
        for column in self._columns:
            for part in column.parts:
                self._starts[part.slot] = size
                size += -(-part.size(max_rows) // _ALIGNMENT) * _ALIGNMENT
        self._arena = np.zeros(size, np.uint8)
        for slot, start in self._starts.items():
            self._slots[slot - _FIRST_COLUMN] = self._arena.ctypes.data + start
        self._arrays: dict[int, Array] = {}
        for name, slot, room_slot, _, _ in _BYTES:
            if name in columns:
                room = like.room(room_slot) if like else min(_FIRST_ROOM[slot], max_bytes)
                self._own_bytes(slot, room_slot, room)
        if "headers" in columns:
            self._own_headers(like.room(c.HEADER_ROOM) if like else _FIRST_HEADER_ROOM)

    def room(self, slot: int) -> int:
        """The present value of a room slot."""
        return int(self._slots[slot - _FIRST_COLUMN])

    def _own(self, slot: int, array: Array) -> None:
        self._arrays[slot] = array
        self._slots[slot - _FIRST_COLUMN] = array.ctypes.data

    def _own_bytes(self, slot: int, room_slot: int, room: int) -> None:
        self._own(slot, np.empty(room + c.COPY_SLACK, np.uint8))
        self._set_room(room_slot, room)

    def _set_room(self, slot: int, room: int) -> None:
        self._slots[slot - _FIRST_COLUMN] = room
        self.is_oversized |= room > self._max_bytes

    def _own_headers(self, room: int) -> None:
        for slot in (c.HEADER_KEY_ENDS, c.HEADER_VALUE_ENDS):
            ends = np.empty(room + 1, np.int32)
            ends[0] = 0
            self._own(slot, ends)
        self._own(c.HEADER_VALUE_VALID, np.full((room + 7) // 8, 0xFF, np.uint8))
        self._set_room(c.HEADER_ROOM, room)

    def is_free(self) -> bool:
        """Whether no batch shares the arrays any more."""
        count = sys.getrefcount
        if count(self._arena) != _UNSHARED_ATTRIBUTE:
            return False
        for array in self._arrays.values():  # noqa: SIM110 - a generator would count as well
            if count(array) != _UNSHARED_ITEM:
                return False
        return True

    def attach(self, slots: memoryview) -> None:
        """Make these the buffers of the frame with these slots, empty."""
        slots[_FIRST_COLUMN:_STOP_COLUMN] = self._view
        slots[_FIRST_FILL:_STOP_FILL] = _NOTHING_FILLED

    def grow(self, frame: NDArray[np.int64]) -> None:
        """Make room for the record that `frame` names, keeping what is filled."""
        rows = int(frame[c.ROWS]) + 1
        for _, slot, room_slot, size_slot, new_slot in _BYTES:
            needed = int(frame[new_slot])
            if slot in self._arrays and needed > self.room(room_slot):
                old, used = self._arrays[slot], int(frame[size_slot])
                self._own_bytes(slot, room_slot, self._more(room_slot, needed, rows))
                self._arrays[slot][:used] = old[:used]
        needed = int(frame[c.NEW_HEADERS])
        if c.HEADER_KEY_ENDS in self._arrays and needed > self.room(c.HEADER_ROOM):
            slots = (c.HEADER_KEY_ENDS, c.HEADER_VALUE_ENDS, c.HEADER_VALUE_VALID)
            olds = [self._arrays[slot] for slot in slots]
            self._own_headers(self._more(c.HEADER_ROOM, needed, rows))
            for slot, old in zip(slots, olds, strict=True):
                self._arrays[slot][: len(old)] = old
        frame[_FIRST_COLUMN:_STOP_COLUMN] = self._slots

    def _more(self, room_slot: int, needed: int, rows: int) -> int:
        """Room for the rest of the batch if it goes on like this, within the bound."""
        expected = needed * self._max_rows // rows * 9 // 8
        return max(needed, min(max(2 * self.room(room_slot), expected), self._max_bytes))

    def arrays(self, slots: memoryview) -> list[pa.Array]:
        """What the kernel has filled, by reference (but for the lineage columns)."""
        rows = slots[c.ROWS]
        filled = Filled(slots, pa.py_buffer(self._arena), self._starts, self._arrays)
        return [column.build(filled, rows) for column in self._columns]


class BufferPool:
    """At most four sets of column buffers of one shape.

    More are made, and dropped, when a consumer keeps more batches than that.
    """

    def __init__(self, columns: tuple[str, ...], *, max_rows: int, max_bytes: int) -> None:
        self.shape = (columns, max_rows, max_bytes)
        self._sets: list[ColumnBuffers] = []

    def acquire(self) -> ColumnBuffers:
        """A set that nobody else uses; the one acquired before must have been handed out."""
        columns, max_rows, max_bytes = self.shape
        for index, buffers in enumerate(self._sets):
            if buffers.is_free():
                del self._sets[index]
                if buffers.is_oversized:
                    break
                self._sets.append(buffers)  # the longest unused comes first
                return buffers
        like = self._sets[-1] if self._sets and not self._sets[-1].is_oversized else None
        buffers = ColumnBuffers(columns, max_rows=max_rows, max_bytes=max_bytes, like=like)
        if len(self._sets) >= _MAX_SETS:
            del self._sets[0]
        self._sets.append(buffers)
        return buffers


_idle_pools: list[BufferPool] = []
_idle_lock = threading.Lock()


def borrow_pool(columns: tuple[str, ...], *, max_rows: int, max_bytes: int) -> BufferPool:
    """A pool for one decoder: one that an earlier decoder of the same shape gave back, or new."""
    shape = (columns, max_rows, max_bytes)
    with _idle_lock:
        for index, pool in enumerate(_idle_pools):
            if pool.shape == shape:
                return _idle_pools.pop(index)
    return BufferPool(columns, max_rows=max_rows, max_bytes=max_bytes)


def give_back(pool: BufferPool) -> None:
    """Keep a pool for the next decoder of its shape; two are kept, the oldest goes."""
    with _idle_lock:
        _idle_pools.append(pool)
        del _idle_pools[:-_MAX_IDLE_POOLS]


class _Holder:
    def __init__(self) -> None:
        self.array = np.empty(0)
        self.arrays = {0: np.empty(0)}


def _unshared() -> tuple[int, int]:
    holder = _Holder()
    (item,) = [sys.getrefcount(array) for array in holder.arrays.values()]
    return sys.getrefcount(holder.array), item


_UNSHARED_ATTRIBUTE, _UNSHARED_ITEM = _unshared()
"""References to an array that only its holder has, counted as `is_free` counts them."""
