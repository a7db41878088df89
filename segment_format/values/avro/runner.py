"""Buffers of a batch's columns: memory that the kernel fills and Arrow arrays show.

The memory is Arrow's own, so that any thread can release a batch without the GIL.

Maps of which some have a key twice: the last one wins, as everywhere else.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from segment_format.kernels import object_code
from segment_format.kernels.columns import allocate, copied
from segment_format.values.avro import columns as k
from segment_format.values.avro import key_contract as c
from segment_format.values.avro import opcodes as o

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from segment_format.values.avro.columns import Column


def without_repeated_keys(
    ends: NDArray[np.int32], children: list[pa.Array]
) -> tuple[NDArray[np.int32], list[pa.Array]]:
    """The same maps with each key once, with its last value.

    Args:
        ends: Of the maps' entries, behind a leading 0.
        children: Keys, without nulls, and values.

    Returns:
        Ends and children; the same objects where no key comes twice.
    """
    keys = children[0]
    sizes = np.diff(ends)
    largest = int(sizes.max()) if len(sizes) else 0
    if largest < 2:
        return ends, children
    kept = np.ones(len(keys), np.uint8)
    table = np.empty(table_size(largest) if largest > c.FEW else 1, np.int64)
    _, key_ends, data = keys.buffers()
    frame = np.zeros(c.FRAME_SIZE, np.int64)
    frame[c.ENDS], frame[c.MAPS] = ends.ctypes.data, len(sizes)
    frame[c.KEYS], frame[c.DATA] = key_ends.address, data.address
    frame[c.KEPT], frame[c.TABLE] = kept.ctypes.data, table.ctypes.data
    frame[c.SEED] = _seed()
    if not _kernel()(frame):
        return ends, children
    mask = kept.view(np.bool_)
    counted: NDArray[Any] = np.concatenate([[0], np.cumsum(mask)])
    return counted[ends].astype(np.int32), [child.filter(pa.array(mask)) for child in children]


def table_size(entries: int) -> int:
    """Places of the table for a map of so many."""
    size = 16
    while size < 2 * entries:
        size *= 2
    return size


@lru_cache(1)
def _kernel() -> Callable[[NDArray[np.int64]], int]:
    found = object_code.load_of_frame("mark_repeated")
    if found is not None:
        return found
    from segment_format.values.avro.mark_repeated import mark_repeated  # brings in numba

    return mark_repeated


def _seed() -> int:
    """Not to be foreseen from outside: where new memory stands."""
    return int(allocate(64).address)


_LEAST_ROOM: Final = 64
_BYTES_OF_A_ROW: Final = 16
"""What a row counts in the size of a batch, beside its bytes: it may have none, and defaults."""
_WORTH_COPYING: Final = 4
"""Memory of more than so many times what is filled is worth giving back by a copy."""


class ValueBuffers:
    """The buffers of all columns, and the tables that tell the kernel of them.

    Args:
        root: The outermost column.
        rows: How many values there will be.
        rooms: What `used` gave for an earlier batch; `None` for none.
        input_size: Bytes of the values.
    """

    def __init__(
        self,
        root: Column,
        rows: int,
        rooms: tuple[list[float], list[float]] | None,
        input_size: int,
    ) -> None:
        self._root = root
        self._rows = rows
        self._columns = list(_all(root))
        self.slots = np.zeros((len(self._columns), o.SLOT_WIDTH), np.int64)
        count = 1 + max(column.items for column in self._columns) if self._columns else 1
        self.levels = np.zeros((max(count, 1), o.LEVEL_WIDTH), np.int64)
        # By slot.
        self._validity: dict[int, pa.Buffer] = {}
        self._values: dict[int, pa.Buffer] = {}
        self._data: dict[int, pa.Buffer] = {}
        texts = sum(column.kind == k.BYTES for column in self._columns)
        # Not rows: after a batch of one huge value, each of many small ones is not expected to be.
        self._measure = input_size + _BYTES_OF_A_ROW * rows
        if rooms is None:
            share = 1 / max(self._measure, 1)
            of_levels = [rows * share] * len(self.levels)
            of_slots = [input_size / max(texts, 1) * share] * len(self._columns)
        else:
            of_levels, of_slots = rooms
        for level in range(len(self.levels)):
            room = rows if level == 0 else self._room(of_levels[level])
            self.levels[level, o.LEVEL_ROOM] = min(room, o.LARGEST - 1)
        for column in self._columns:
            slot = self.slots[column.slot]
            slot[o.KIND], slot[o.SIZE], slot[o.SLOT_LEVEL] = column.kind, column.width, column.level
            self._allocate_values(column)
            if column.kind == k.BYTES:
                self._allocate_data(column.slot, self._room(of_slots[column.slot]))

    def _room(self, share: float) -> int:
        return min(_LEAST_ROOM + int(share * self._measure * 1.125), o.LARGEST)

    def _allocate_values(self, column: Column) -> None:
        """Takes memory for the values of a column's level, keeping what is filled."""
        room = int(self.levels[column.level, o.LEVEL_ROOM])
        slot = self.slots[column.slot]
        if column.nullable:
            validity = _grown(self._validity.get(column.slot), room)
            self._validity[column.slot] = validity
            slot[o.VALIDITY] = validity.address
        if column.kind == k.FIXED:
            values = _grown(self._values.get(column.slot), room * column.width)
        elif column.kind in (k.BYTES, k.ITEMS):
            before = self._values.get(column.slot)
            values = _grown(before, 4 * (room + 1))
            if before is None:
                np.frombuffer(values, np.int32)[0] = 0
        else:
            return
        self._values[column.slot] = values
        slot[o.VALUES] = values.address

    def _allocate_data(self, slot: int, room: int) -> None:
        data = _grown(self._data.get(slot), room + o.SLACK)
        self._data[slot] = data
        self.slots[slot, o.DATA] = data.address
        self.slots[slot, o.ROOM] = room

    def grow_data(self, slot: int, needed: int) -> None:
        """Makes room for the bytes of a slot."""
        room = 2 * int(self.slots[slot, o.ROOM])
        self._allocate_data(slot, min(max(needed, room), o.LARGEST))

    def grow_level(self, level: int, needed: int) -> None:
        """Makes room for the values of a level."""
        room = max(needed, 2 * int(self.levels[level, o.LEVEL_ROOM]))
        self.levels[level, o.LEVEL_ROOM] = min(room, o.LARGEST - 1)
        for column in self._columns:
            if column.level == level:
                self._allocate_values(column)

    def used(self) -> tuple[list[float], list[float]]:
        """Values of each level and bytes of each slot, by the size of the batch."""
        size = max(self._measure, 1)
        sizes = [
            self._end(column) / size if column.kind == k.BYTES else 0.0 for column in self._columns
        ]
        return [self._count(level) / size for level in range(len(self.levels))], sizes

    def _count(self, level: int) -> int:
        return self._rows if level == 0 else int(self.levels[level, o.COUNT])

    def _end(self, column: Column) -> int:
        ends = np.frombuffer(self._values[column.slot], np.int32)
        return int(ends[self._count(column.level)])

    def array(self) -> pa.Array:
        """What is filled."""
        return self._array(self._root)

    def _array(self, column: Column, above: NDArray[np.uint8] | None = None) -> pa.Array:
        """A column.

        Args:
            column: Which.
            above: Where the struct it is in is not null; `None` where that is everywhere. Below a
                null there are nulls, too: some engines look at a field without its struct.
        """
        rows = self._count(column.level)
        if column.kind == k.NOTHING:
            return pa.nulls(rows)
        present = self._present(column, rows) if column.nullable else above
        nulls = 0 if present is None else rows - int(np.count_nonzero(present))
        if nulls == 0:
            present = None
        validity = None if present is None else _packed(present)
        if column.kind == k.STRUCT:
            children = [self._array(child, present) for child in column.children]
            return pa.Array.from_buffers(column.type, rows, [validity], nulls, children=children)
        values = self._values[column.slot]
        if column.kind == k.FIXED:
            if pa.types.is_boolean(column.type):
                shown = _packed(np.frombuffer(values, np.uint8)[:rows])
            else:
                shown = _shown(values, rows * column.width)
            return pa.Array.from_buffers(column.type, rows, [validity, shown], nulls)
        ends = _shown(values, 4 * (rows + 1))
        if column.kind == k.BYTES:
            data = _shown(self._data[column.slot], self._end(column))
            return pa.Array.from_buffers(column.type, rows, [validity, ends, data], nulls)
        children = [self._array(child) for child in column.children]
        if pa.types.is_map(column.type):
            keys, items = without_repeated_keys(np.frombuffer(ends, np.int32), children)
            if items is not children:
                ends, children = copied(keys), items
            kind = column.type
            fields = [kind.key_field, kind.item_field]
            entries = pa.StructArray.from_arrays(children, fields=fields)
            children = [entries]
        return pa.Array.from_buffers(column.type, rows, [validity, ends], nulls, children=children)

    def _present(self, column: Column, rows: int) -> NDArray[np.uint8]:
        return np.frombuffer(self._validity[column.slot], np.uint8)[:rows]


def _all(column: Column) -> Iterator[Column]:
    yield column
    for child in column.children:
        yield from _all(child)


def _packed(values: NDArray[np.uint8]) -> pa.Buffer:
    """Bits of bytes that are 0 or 1."""
    bits: NDArray[np.uint8] = np.packbits(values.view(np.bool_), bitorder="little")
    return copied(bits)


def _grown(before: pa.Buffer | None, size: int) -> pa.Buffer:
    """Memory of a size, not less than before, with the bytes that were there."""
    buffer = allocate(size)
    if before is not None:
        np.frombuffer(buffer, np.uint8)[: before.size] = np.frombuffer(before, np.uint8)
    return buffer


def _shown(buffer: pa.Buffer, size: int) -> pa.Buffer:
    """The first bytes, copied where they are little of the memory."""
    if size * _WORTH_COPYING < buffer.size:
        return copied(np.frombuffer(buffer, np.uint8)[:size])
    return buffer.slice(0, size)
