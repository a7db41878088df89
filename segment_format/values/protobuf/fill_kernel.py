"""What the kernel does to columns and levels while it reads fields."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels.compiled import helper, inlined
from segment_format.kernels.memory import (
    fill_bytes,
    load_u32_native,
    store_i32,
    store_i64,
    store_u8,
)
from segment_format.values.frames import get, put
from segment_format.values.protobuf import contract as c
from segment_format.values.protobuf.wire_kernel import EIGHT, FOUR, NOWHERE, zigzag

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Value

ENTRY_BYTES = np.uint64(8 * c.ENTRY_SIZE)
_MASK_32 = np.uint64(0xFFFFFFFF)


@inlined
def at_i32(base: Address, index: Value) -> Value:
    """One of the offsets that stand at an address."""
    return np.int64(load_u32_native(base + (np.uint64(index) << np.uint64(2))))


@inlined
def end_entry(state: Address, level: Value) -> None:
    """Ends the entry of a level: what its children have so far is its."""
    counts = np.uint64(get(state, c.COUNTS))
    index = get(counts, level) + 1
    row = np.uint64(get(state, c.LEVELS)) + np.uint64(8 * c.LEVEL_SIZE) * np.uint64(level)
    kids = get(row, c.KID_COUNT)
    if kids > 0:
        kid = np.uint64(get(state, c.KIDS)) + EIGHT * np.uint64(get(row, c.KID))
        offsets = np.uint64(get(state, c.OFFSETS))
        for each in range(kids):
            child = get(kid, each)
            target = np.uint64(get(offsets, child)) + FOUR * np.uint64(index)
            store_i32(target, get(counts, child))
    put(counts, level, index)


@helper
def clear_entries(
    state: Address, column: Value, stop_column: Value, first_level: Value, stop_level: Value
) -> None:
    """Empties ranges of columns and levels in the entries under way: those of the levels begin
    anew, and the rest stands in entries of levels outside the range.
    """
    counts = np.uint64(get(state, c.COUNTS))
    before = np.uint64(get(state, c.BEFORE))
    rooms = np.uint64(get(state, c.ROOMS))
    offsets = np.uint64(get(state, c.OFFSETS))
    levels = np.uint64(get(state, c.LEVELS))
    for level in range(first_level, stop_level):  # parents come first
        parent = get(levels, level * c.LEVEL_SIZE + c.PARENT)
        put(before, level, get(counts, level))
        put(counts, level, at_i32(np.uint64(get(offsets, level)), get(counts, parent)))
    columns = np.uint64(get(state, c.COLUMNS))
    bases = np.uint64(get(state, c.BASES))
    for each in range(column, stop_column):
        width = get(columns, each * c.COLUMN_SIZE)
        level = get(columns, each * c.COLUMN_SIZE + 1)
        first = get(counts, level)
        stop = first + 1
        if level >= first_level and level < stop_level:  # the entry under way may be begun
            stop = min(get(before, level) + 1, get(rooms, level))
        if stop > first:
            start = np.uint64(get(bases, each)) + np.uint64(first * width)
            fill_bytes(start, np.int64(0), np.uint64((stop - first) * width))


@helper
def has_number(state: Address, entry: Address, number: Value) -> Value:
    """Whether a closed enum has a number."""
    low = get(entry, c.ENUM)
    high = low + get(entry, c.ENUM_SIZE)
    enums = np.uint64(get(state, c.ENUMS))
    while low < high:
        middle = (low + high) >> 1
        found = get(enums, middle)
        if found == number:
            return True
        if found < number:
            low = middle + 1
        else:
            high = middle
    return False


@helper
def _search(state: Address, first: Value, count: Value, number: Value) -> Value:
    low = first
    high = first + count
    entries = np.uint64(get(state, c.ENTRIES))
    while low < high:
        middle = (low + high) >> 1
        found = get(entries, middle * c.ENTRY_SIZE + c.NUMBER)
        if found == number:
            return middle
        if found < number:
            low = middle + 1
        else:
            high = middle
    return np.int64(-1)


@inlined
def find_entry(state: Address, node: Address, number: Value) -> Value:
    """The entry of a field number, −1 for none."""
    if number < get(node, c.NODE_DENSE_SIZE):
        return get(np.uint64(get(state, c.DENSE)), get(node, c.NODE_DENSE) + number)
    if get(node, c.NODE_DENSE_SIZE) > 0:
        return np.int64(-1)
    return _search(state, get(node, c.NODE_ENTRY), get(node, c.NODE_ENTRY_COUNT), number)


@inlined
def node_at(state: Address, index: Value) -> Address:
    """Where a node's numbers are."""
    return np.uint64(get(state, c.NODES)) + np.uint64(8 * c.NODE_SIZE) * np.uint64(index)


@inlined
def store_number(op: Value, target: Address, raw: Value) -> None:
    """Stores a number as its column has it; of fixed sizes, the bytes as they are."""
    if op == c.INT64 or op == c.RAW64:
        store_i64(target, np.int64(raw))
    elif op == c.INT32 or op == c.RAW32 or op == c.CLOSED_ENUM:
        store_i32(target, np.int64(raw))
    elif op == c.BOOL:
        store_u8(target, np.int64(raw != NOWHERE))
    elif op == c.SINT64:
        store_i64(target, zigzag(raw))
    elif op == c.SINT32:
        store_i32(target, zigzag(raw & _MASK_32))
    elif op == c.UINT32 or op == c.FIXED32:
        store_i64(target, np.int64(raw & _MASK_32))
    else:
        store_i64(target, np.int64(raw))
        store_i64(target + EIGHT, np.int64(0))


@inlined
def has_room(state: Address, level: Value, more: Value) -> Value:
    """Whether a level has room for more entries; if not, the state says how much it takes."""
    wanted = get(np.uint64(get(state, c.COUNTS)), level) + more
    if wanted <= get(np.uint64(get(state, c.ROOMS)), level):
        return True
    put(state, c.LEVEL_WANTED, level)
    put(state, c.ROOM_WANTED, wanted)
    return False


@helper
def _replace_member(state: Address, base: Address, index: Value, level_index: Value) -> None:
    at = base + FOUR * np.uint64(level_index)
    other = np.int64(load_u32_native(at)) - 1
    if other >= 0 and other != index:
        row = np.uint64(get(state, c.ENTRIES)) + ENTRY_BYTES * np.uint64(other)
        clear_entries(
            state,
            get(row, c.FIRST_COLUMN),
            get(row, c.STOP_COLUMN),
            get(row, c.FIRST_LEVEL),
            get(row, c.STOP_LEVEL),
        )
    store_i32(at, index + 1)


@inlined
def take_place(state: Address, entry: Address, index: Value, level_index: Value) -> None:
    """A field that is not repeated is there: the other members of its oneof are not any more."""
    bases = np.uint64(get(state, c.BASES))
    present = get(entry, c.PRESENT)
    oneof = get(entry, c.ONEOF)
    if oneof >= 0:
        _replace_member(state, np.uint64(get(bases, oneof)), index, level_index)
    if present >= 0:
        store_u8(np.uint64(get(bases, present)) + np.uint64(level_index), np.int64(1))
