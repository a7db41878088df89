"""Column buffers: numpy arrays that kernels fill and Arrow arrays share, used again once nobody
holds them.

Fresh memory costs a page fault per 4 KiB, more than decoding into it. An Arrow buffer keeps the
numpy array under it alive by a reference, so an array that only its set refers to is free: batches
already handed out never change.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from segment_format.kernels import contract as c
from segment_format.kernels.columns import COLUMNS, FIXED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

_FIRST_COLUMN: Final = c.OFFSETS
_STOP_COLUMN: Final = c.HEADER_VALUE_ROOM + 1
_FIRST_FILL: Final = c.ROWS
_STOP_FILL: Final = c.NEW_HEADER_VALUE_SIZE + 1
_MAX_SETS: Final = 4

_FIRST_KEY_ROOM: Final = 64 << 10
_FIRST_VALUE_ROOM: Final = 512 << 10
_FIRST_HEADER_ROOM: Final = 4 << 10


_GROWING: Final = (
    (c.KEY_BYTES, c.KEY_ROOM, c.KEY_SIZE, c.NEW_KEY_SIZE),
    (c.VALUE_BYTES, c.VALUE_ROOM, c.VALUE_SIZE, c.NEW_VALUE_SIZE),
    (c.HEADER_KEY_BYTES, c.HEADER_KEY_ROOM, c.HEADER_KEY_SIZE, c.NEW_HEADER_KEY_SIZE),
    (c.HEADER_VALUE_BYTES, c.HEADER_VALUE_ROOM, c.HEADER_VALUE_SIZE, c.NEW_HEADER_VALUE_SIZE),
)


class ColumnBuffers:
    """One set of column buffers: filled by a kernel, then shown as one RecordBatch.

    Args:
        schema: Of the batches; its names are columns of `segment_format.arrow`.
        max_rows: Most rows of a batch.
        max_bytes: Most bytes of all variable-size columns, unless a single row has more.
    """

    def __init__(self, schema: pa.Schema, *, max_rows: int, max_bytes: int) -> None:
        self._schema = schema
        self._max_bytes = max_bytes
        self._arrays: dict[int, Array] = {}
        self._slots = np.zeros(_STOP_COLUMN - _FIRST_COLUMN, np.int64)
        self._columns = [COLUMNS[name] for name in schema.names]
        names = set(schema.names)
        for name in names & FIXED.keys():
            slot, dtype = FIXED[name]
            self._own(slot, np.empty(max_rows, dtype))
        if "key" in names:
            self._own_variable(c.KEY_ENDS, c.KEY_VALID, max_rows)
            self._own_bytes(c.KEY_BYTES, c.KEY_ROOM, min(_FIRST_KEY_ROOM, max_bytes))
        if "value" in names:
            self._own_variable(c.VALUE_ENDS, c.VALUE_VALID, max_rows)
            self._own_bytes(c.VALUE_BYTES, c.VALUE_ROOM, min(_FIRST_VALUE_ROOM, max_bytes))
        if "headers" in names:
            self._own(c.HEADER_ENDS, _ends(max_rows))
            self._own_headers(_FIRST_HEADER_ROOM)
            self._own_bytes(c.HEADER_KEY_BYTES, c.HEADER_KEY_ROOM, _FIRST_KEY_ROOM)
            self._own_bytes(c.HEADER_VALUE_BYTES, c.HEADER_VALUE_ROOM, _FIRST_KEY_ROOM)

    def _own(self, slot: int, array: Array) -> None:
        self._arrays[slot] = array
        self._slots[slot - _FIRST_COLUMN] = array.ctypes.data

    def _own_bytes(self, slot: int, room_slot: int, room: int) -> None:
        self._own(slot, np.empty(room + c.COPY_SLACK, np.uint8))
        self._slots[room_slot - _FIRST_COLUMN] = room

    def _own_variable(self, ends_slot: int, valid_slot: int, rows: int) -> None:
        self._own(ends_slot, _ends(rows))
        self._own(valid_slot, np.empty((rows + 7) // 8, np.uint8))

    def _own_headers(self, room: int) -> None:
        self._own(c.HEADER_KEY_ENDS, _ends(room))
        self._own_variable(c.HEADER_VALUE_ENDS, c.HEADER_VALUE_VALID, room)
        self._slots[c.HEADER_ROOM - _FIRST_COLUMN] = room

    def is_free(self) -> bool:
        """Whether no batch shares the arrays any more."""
        return all(count == _UNSHARED for count in _references(self._arrays))

    def is_oversized(self) -> bool:
        """Whether a single record made some array larger than batches need."""
        largest = max((array.nbytes for array in self._arrays.values()), default=0)
        return largest > 2 * self._max_bytes + (1 << 20)

    def attach(self, frame: NDArray[np.int64]) -> None:
        """Make these the buffers of `frame`, empty."""
        frame[_FIRST_COLUMN:_STOP_COLUMN] = self._slots
        frame[_FIRST_FILL:_STOP_FILL] = 0

    def grow(self, frame: NDArray[np.int64]) -> None:
        """Make room for the record that `frame` names, keeping what is filled."""
        for bytes_slot, room_slot, size_slot, new_slot in _GROWING:
            room, needed = int(frame[room_slot]), int(frame[new_slot])
            if bytes_slot in self._arrays and needed > room:
                old = self._arrays[bytes_slot]
                self._own_bytes(bytes_slot, room_slot, self._more(room, needed))
                used = int(frame[size_slot])
                self._arrays[bytes_slot][:used] = old[:used]
        room, needed = int(frame[c.HEADER_ROOM]), int(frame[c.NEW_HEADERS])
        if c.HEADER_ENDS in self._arrays and needed > room:
            slots = (c.HEADER_KEY_ENDS, c.HEADER_VALUE_ENDS, c.HEADER_VALUE_VALID)
            olds = [self._arrays[slot] for slot in slots]
            self._own_headers(self._more(room, needed))
            self._arrays[c.HEADER_VALUE_VALID].fill(0xFF)  # valid until a kernel says otherwise
            for slot, old in zip(slots, olds, strict=True):
                self._arrays[slot][: len(old)] = old
        frame[_FIRST_COLUMN:_STOP_COLUMN] = self._slots

    def _more(self, room: int, needed: int) -> int:
        return max(needed, min(2 * room, self._max_bytes))

    def to_batch(self, frame: NDArray[np.int64]) -> pa.RecordBatch:
        """What the kernel has filled, without a copy (but for the lineage columns)."""
        fill = frame.tolist()
        rows = fill[c.ROWS]
        if not self._columns:
            empty = pa.StructArray.from_buffers(pa.struct([]), rows, [None])
            return pa.RecordBatch.from_struct_array(empty)
        arrays = self._arrays
        return pa.RecordBatch.from_arrays(
            [column(arrays, fill, rows) for column in self._columns], schema=self._schema
        )


class BufferPool:
    """At most four sets of column buffers; more are made, and dropped, when a consumer keeps more
    batches.
    """

    def __init__(self, schema: pa.Schema, *, max_rows: int, max_bytes: int) -> None:
        self._schema = schema
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._sets: list[ColumnBuffers] = []

    def acquire(self) -> ColumnBuffers:
        """A set that nobody else uses; the one acquired before must have been handed out."""
        self._sets = [buffers for buffers in self._sets if not buffers.is_oversized()]
        for index, buffers in enumerate(self._sets):
            if buffers.is_free():
                self._sets.append(self._sets.pop(index))  # the longest unused comes first
                return buffers
        buffers = ColumnBuffers(self._schema, max_rows=self._max_rows, max_bytes=self._max_bytes)
        if len(self._sets) >= _MAX_SETS:
            del self._sets[0]
        self._sets.append(buffers)
        return buffers


def _references(arrays: dict[int, Array]) -> list[int]:
    return [sys.getrefcount(array) for array in arrays.values()]


_UNSHARED: Final = _references({0: np.empty(0)})[0]
"""References to an array that only its set holds, as this Python counts them."""


def _ends(count: int) -> Array:
    ends = np.empty(count + 1, np.int32)
    ends[0] = 0
    return ends
